"""What one receive takes, gathered lane by lane: retries that are due, then new messages."""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.delivery.lanes import Lane, Source
from penstock.delivery.ledger import Dropped, Event, Leased, Part, Passed, Reason
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.delivery.state import GroupState

DROPPED_MAX = 65_536  # messages that one receive may find expired, so that it stays short
WINDOW = 4096  # messages that a lane looks at for one whose key is free


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to be stored as dead letters, or, if they expired, perhaps only to be counted."""

    offsets: Offsets
    reason: Reason
    attempts: int
    first_delivery_us: int | None = None  # None: never handed out
    last_delivery_us: int | None = None
    consumer: str = ""
    error: str = ""
    nonce: int = 0  # of the lease under which they were given up; 0: they were in nobody's hands


class Pick:
    """Looks, and changes nothing but read-ahead."""

    def __init__(
        self, state: GroupState, source: Source, end: int, wall_us: int, *, ordered: bool
    ) -> None:
        self._state = state
        self._source = source
        self._end = end
        self._wall_us = wall_us
        self._ordered = ordered
        self._drawn: dict[int, _Drawn] = {}  # by priority, in the order of their turns
        self._keys: dict[int, int] = {}
        self._keys_seen: set[int] = set()
        self._dropped = 0

    def draw(self, priority: int, want: int) -> int:
        """Take up to `want` messages of a priority; how many it got."""
        drawn = self._drawn.get(priority)
        if drawn is None:
            drawn = self._drawn[priority] = _Drawn()
        got = 0
        if self._state.retries.waiting:
            got = self._draw_due(priority, want, drawn)
        if got < want:
            got += self._draw_new(self._state.lanes[priority], want - got, drawn)
        return got

    def events(
        self, at_ns: int, nonce: int, visibility_ns: int, consumer: str
    ) -> tuple[Event, ...]:
        parts: list[Part] = []
        dropped: list[Part] = []
        keys: list[int] = []
        for priority, drawn in self._drawn.items():
            cursor = drawn.position(self._state.lanes[priority]) if self._ordered else -1
            for count, again in drawn.again.items():
                parts.append(Part(priority, Offsets.of(again), count))
            if drawn.new.count:
                parts.append(Part(priority, drawn.new, 1, cursor))
                if self._ordered:
                    keys += [self._keys[offset] for offset in drawn.new]
            if drawn.expired.count:
                dropped.append(Part(priority, drawn.expired, 0, cursor))
            if drawn.expired_again:
                dropped += [
                    Part(priority, members, history.deliveries)
                    for history, members in self._state.retries.by_history(drawn.expired_again)
                ]
        passed = self._passed()
        events: list[Event] = []
        if parts:
            packed = np.array(keys, dtype="<u8").tobytes() if keys else b""
            # First in the entry: what is dropped may lie between what is handed out.
            events.append(
                Leased(
                    at_ns,
                    nonce,
                    visibility_ns,
                    consumer,
                    self._wall_us,
                    tuple(parts),
                    passed,
                    packed,
                )
            )
        if dropped:
            events.append(Dropped(tuple(dropped), passed))
        if not events and passed > self._state.passed:
            events.append(Passed(passed))
        return tuple(events)

    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Those that outlived their TTL."""
        letters: list[DeadLetter] = []
        if not self._dropped:
            return ()
        for drawn in self._drawn.values():
            if drawn.expired.count:
                letters.append(DeadLetter(offsets=drawn.expired, reason="expired", attempts=0))
            letters += [
                DeadLetter(
                    offsets=members,
                    reason="expired",
                    attempts=history.deliveries,
                    first_delivery_us=history.first_us,
                    last_delivery_us=history.last_us,
                    consumer=history.consumer,
                    error=history.error,
                )
                for history, members in self._state.retries.by_history(drawn.expired_again)
            ]
        return tuple(letters)

    def _draw_due(self, priority: int, want: int, drawn: _Drawn) -> int:
        retries = self._state.retries
        got = 0
        while got < want and self._dropped < DROPPED_MAX:
            due = retries.due(priority, drawn.due_seen, want - got)
            if not due:
                break
            drawn.due_seen += len(due)
            expired = self._source.expired(Offsets.of(due), self._wall_us)
            for offset in due:
                if offset in expired:
                    drawn.expired_again.append(offset)
                    self._dropped += 1
                else:
                    count = retries.histories[offset].deliveries + 1
                    drawn.again.setdefault(count, []).append(offset)
                    got += 1
        return got

    def _draw_new(self, lane: Lane, want: int, drawn: _Drawn) -> int:
        got = 0
        while got < want and self._dropped < DROPPED_MAX:
            step = want - got
            if self._ordered:
                # Most of what is looked at may have to stay: each time look at twice as much.
                step = min(max(step, drawn.seen, 16), WINDOW - drawn.seen)
            elif drawn.expired.count:
                # Where one is too old many are: each time look at twice as many.
                step = max(step, min(drawn.seen, DROPPED_MAX - self._dropped))
            lane.look(drawn.seen + step, self._source, self._end, self._state.unseen)
            found = lane.peek(drawn.seen, step)
            if not found.count:
                break
            expired = self._source.expired(found, self._wall_us)
            if found.count - expired.count > want - got and not self._ordered:
                # More than is wanted: the rest stays where it is.
                wanted = (found - expired).head(want - got)
                found &= Offsets.run(found.first, wanted.stop)
                expired &= found
            drawn.seen += found.count
            if expired.count:
                self._dropped += expired.count
                drawn.expired |= expired
                found -= expired
            if self._ordered:
                found = self._unlocked(found, want - got, drawn)
            drawn.new |= found
            got += found.count
        return got

    def _unlocked(self, found: Offsets, want: int, drawn: _Drawn) -> Offsets:
        """Those whose key is free; the first of the others is where the lane goes on."""
        locks = self._state.keys
        keys = locks.of(found, self._source.keys)
        free = locks.free(keys, self._keys_seen, want)
        chosen = found.array()[free]
        self._keys.update(zip(chosen.tolist(), [keys[index] for index in free], strict=True))
        taken = Offsets.of(chosen)
        if taken.count < found.count and drawn.left_behind is None:
            drawn.left_behind = (found - taken).first
        return taken

    def _passed(self) -> int:
        """Below it no message is ahead of any lane, once this pick is made true."""
        return min(
            self._drawn[lane.priority].position(lane)
            if lane.priority in self._drawn
            else lane.at(0)
            for lane in self._state.lanes
        )


class _Drawn:
    """What was taken from one lane."""

    __slots__ = ("again", "due_seen", "expired", "expired_again", "left_behind", "new", "seen")

    def __init__(self) -> None:
        self.again: dict[int, list[int]] = {}  # by delivery count
        self.new = EMPTY
        self.expired = EMPTY
        self.expired_again: list[int] = []
        self.due_seen = 0  # of the retries that are due
        self.seen = 0  # of the messages ahead
        self.left_behind: int | None = None  # the first that has to wait for its key

    def position(self, lane: Lane) -> int:
        return lane.at(self.seen) if self.left_behind is None else self.left_behind
