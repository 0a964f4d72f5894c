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
LOOKED_MAX = 512  # messages whose keys one receive looks up once it has found some, to stay short


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

    def draw_one(self, priority: int, *, retry: bool) -> int:
        """Take one message of a priority, a retry that is due or a new one; whether it got it."""
        drawn = self._drawn.setdefault(priority, _Drawn())
        if retry:
            return self._draw_due(priority, 1, drawn)
        return self._draw_new(self._state.lanes[priority], 1, drawn)

    def events(
        self, at_ns: int, nonce: int, visibility_ns: int, consumer: str, until_us: int
    ) -> tuple[Event, ...]:
        parts: list[Part] = []
        dropped: list[Part] = []
        keys: list[int] = []
        for priority, drawn in self._drawn.items():
            cursor = self._position(self._state.lanes[priority]) if self._ordered else -1
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
                    until_us,
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
        if self._ordered:
            return self._draw_free(lane, want, drawn)
        got = 0
        while got < want and self._dropped < DROPPED_MAX:
            step = want - got
            if drawn.expired.count:
                # Where one is too old many are: each time look at twice as many.
                step = max(step, min(drawn.seen, DROPPED_MAX - self._dropped))
            lane.look(drawn.seen + step, self._source, self._end, self._state.unseen)
            found = lane.peek(drawn.seen, step)
            if not found.count:
                break
            expired = self._source.expired(found, self._wall_us)
            if found.count - expired.count > want - got:
                # More than is wanted: the rest stays where it is.
                wanted = (found - expired).head(want - got)
                found &= Offsets.run(found.first, wanted.stop)
                expired &= found
            drawn.seen += found.count
            if expired.count:
                self._dropped += expired.count
                drawn.expired |= expired
                found -= expired
            drawn.new |= found
            got += found.count
        return got

    def _draw_free(self, lane: Lane, want: int, drawn: _Drawn) -> int:
        """Where keys are ordered: only messages whose key is free."""
        locks, got, looked = self._state.keys, 0, 0
        while got < want and self._dropped < DROPPED_MAX:
            gone = drawn.new | drawn.expired
            free = locks.free(lane.priority, want - got, self._keys_seen, gone)
            if not free:
                if (got or self._keys) and looked >= LOOKED_MAX:
                    break
                new = self._look_up_keys(lane, want - got)
                if not new:
                    break
                looked += new
                continue
            alive = self._alive(free, lane.priority, drawn)
            keys = locks.ahead[lane.priority].key_of
            self._keys.update([(offset, keys[offset]) for offset in alive])
            drawn.new |= Offsets.of(alive)
            got += len(alive)
        return got

    def _look_up_keys(self, lane: Lane, want: int) -> int:
        """Look further ahead, at how many messages; 0: there are none, or enough are waiting."""
        ahead = self._state.keys.ahead[lane.priority]
        known = len(ahead)
        if known > WINDOW // 2:
            return 0
        # Most of what is looked at may have to stay: each time look at twice as much.
        step = min(max(want, known, 16), WINDOW - known, LOOKED_MAX)
        lane.look(known + step, self._source, self._end, self._state.unseen)
        found = lane.peek(known, step)
        if found.count:
            ahead.add(found, self._source.keys(found).tolist())
        return found.count

    def _alive(self, free: list[int], priority: int, drawn: _Drawn) -> list[int]:
        """Without those that outlived their TTL: the next of their key comes instead."""
        expired = self._source.expired(Offsets.of(free), self._wall_us)
        if not expired.count:
            return free
        alive: list[int] = []
        dropped = [*expired]
        for offset in free:
            if offset not in expired:
                alive.append(offset)
                continue
            behind = self._state.keys.ahead[priority].behind(offset)
            too_old = self._source.expired(Offsets.of(behind), self._wall_us)
            for later in behind:
                if later not in too_old:
                    alive.append(later)
                    break
                dropped.append(later)
            else:  # another lane may have one
                self._keys_seen.discard(self._state.keys.ahead[priority].key_of[offset])
        self._dropped += len(dropped)
        drawn.expired |= Offsets.of(dropped)
        return alive

    def _passed(self) -> int:
        """Below it no message is ahead of any lane, once this pick is made true."""
        return min(self._position(lane) for lane in self._state.lanes)

    def _position(self, lane: Lane) -> int:
        """Where a lane goes on, once this pick is made true."""
        drawn = self._drawn.get(lane.priority)
        if drawn is None:
            return lane.at(0)
        if not self._ordered:
            return lane.at(drawn.seen)
        index = 0
        while (offset := lane.at(index)) in drawn.new or offset in drawn.expired:
            index += 1
        return offset


class _Drawn:
    """What was taken from one lane."""

    __slots__ = ("again", "due_seen", "expired", "expired_again", "new", "seen")

    def __init__(self) -> None:
        self.again: dict[int, list[int]] = {}  # by delivery count
        self.new = EMPTY
        self.expired = EMPTY
        self.expired_again: list[int] = []
        self.due_seen = 0  # of the retries that are due
        self.seen = 0  # of the messages ahead, where no keys are ordered
