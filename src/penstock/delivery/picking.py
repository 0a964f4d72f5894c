"""What one receive takes, gathered lane by lane: retries that are due, then new messages."""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.delivery.fairness import DUE_LOOKED_MAX, TENANTS, Turns, Waiting
from penstock.delivery.keys import NO_KEY, KeyRun
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
        self, state: GroupState, source: Source, end: int, wall_us: int, *, key_run_max: int
    ) -> None:
        """`key_run_max`: messages of one key that it may take; 0: keys are not ordered."""
        self._state = state
        self._source = source
        self._end = end
        self._wall_us = wall_us
        self._ordered = key_run_max > 0
        self._run_max = key_run_max
        self._drawn: dict[int, _Drawn] = {}  # by priority, in the order of their turns
        self._keys: dict[int, int] = {}
        self._keys_seen: dict[int, KeyRun] = {}
        self._dropped = 0
        self._fair = state.fair
        if self._fair is not None:
            self._fair.picked = {}

    def draw(self, priority: int, want: int) -> int:
        """Take up to `want` messages of a priority; how many it got."""
        drawn = self._drawn.get(priority)
        if drawn is None:
            drawn = self._drawn[priority] = _Drawn()
        if self._fair is not None:
            return self._draw_fair(self._state.lanes[priority], want, drawn)
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
        if self._fair is not None:
            return self._draw_oldest(self._state.lanes[priority], drawn)
        return self._draw_new(self._state.lanes[priority], 1, drawn)

    def events(
        self, at_ns: int, nonce: int, visibility_ns: int, consumer: str, until_us: int
    ) -> tuple[Event, ...]:
        parts: list[Part] = []
        dropped: list[Part] = []
        keys: list[int] = []
        for priority, drawn in self._drawn.items():
            skips = self._ordered or self._fair is not None
            cursor = self._position(self._state.lanes[priority]) if skips else -1
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
            if self._run_max > 1:
                due = self._in_turn(due, want - got)
            got += self._take_due(due, drawn)
        return got

    def _take_due(self, due: list[int], drawn: _Drawn) -> int:
        histories, got = self._state.retries.histories, 0
        expired = self._source.expired(Offsets.of(due), self._wall_us)
        for offset in due:
            if offset in expired:
                drawn.expired_again.append(offset)
                self._dropped += 1
            else:
                count = histories[offset].deliveries + 1
                drawn.again.setdefault(count, []).append(offset)
                got += 1
        return got

    def _in_turn(self, due: list[int], want: int) -> list[int]:
        """Where a key may have several messages outstanding: those that are due and may go now.

        None of its key is in flight, and all that come before it go with it, or are done. Those of
        a key that go together have been delivered as often: what is handed out is in that order.
        """
        locks, retries = self._state.keys, self._state.retries
        histories = retries.histories
        found: list[int] = []
        for offset in due:
            key = locks.key_of.get(offset, NO_KEY)
            run = locks.run(key) if key != NO_KEY else [offset]
            if len(run) == 1:
                found.append(offset)
            elif key not in self._keys_seen and all(each in retries.waiting for each in run):
                self._keys_seen[key] = KeyRun(-1, len(run))
                count = histories[run[0]].deliveries
                for each in run:
                    is_alike = histories[each].deliveries == count
                    if not is_alike or not retries.is_due(each) or len(found) >= want:
                        break
                    found.append(each)
        return found[:want]

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
            free = locks.free(lane.priority, want - got, self._keys_seen, gone, self._run_max)
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
        if self._run_max > 1:
            return self._alive_in_runs(free, expired, priority, drawn)
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
                self._keys_seen.pop(self._state.keys.ahead[priority].key_of[offset], None)
        self._dropped += len(dropped)
        drawn.expired |= Offsets.of(dropped)
        return alive

    def _alive_in_runs(
        self, free: list[int], expired: Offsets, priority: int, drawn: _Drawn
    ) -> list[int]:
        """The next of their keys come when it is looked again."""
        keys = self._state.keys.ahead[priority].key_of
        for offset in expired:
            run = self._keys_seen.get(keys[offset])
            if run is not None:
                run.count -= 1
                if not run.count:  # another lane may have one
                    del self._keys_seen[keys[offset]]
        self._dropped += expired.count
        drawn.expired |= expired
        return [offset for offset in free if offset not in expired]

    def _draw_fair(self, lane: Lane, want: int, drawn: _Drawn) -> int:
        """Where tenants take turns: retries and new messages of one after the other."""
        fair, state, got = self._fair, self._state, 0
        assert fair is not None
        if drawn.turns is None:
            fair.look(self._source, state.passed, self._end)
            drawn.turns = Turns(fair, lane.priority)
        turns = drawn.turns
        while True:
            due = state.retries.due(lane.priority, drawn.due_seen, DUE_LOOKED_MAX)
            drawn.due_seen += len(due)
            turns.add_due(due)
            for noisy in (False, True):
                got += self._draw_rounds(lane, want - got, drawn, turns, noisy=noisy)
            if got == want or self._dropped >= DROPPED_MAX:
                return got
            if not due and not fair.look(self._source, state.passed, self._end):
                return got

    def _draw_rounds(
        self, lane: Lane, want: int, drawn: _Drawn, turns: Turns, *, noisy: bool
    ) -> int:
        got = 0
        while got < want and self._dropped < DROPPED_MAX:
            before, most = got + self._dropped, max((want - got) // (2 * len(turns) or 1), 1)
            for tenant, waiting in turns.round(noisy=noisy):
                some = min(most, want - got)
                took = self._draw_of_tenant(lane, tenant, waiting, some, drawn, turns)
                got += took
                if took < some and not waiting.found and not turns.due.get(tenant):
                    turns.drop(tenant)
                if got == want:
                    return got
            if got + self._dropped == before:
                break
        return got

    def _draw_of_tenant(
        self, lane: Lane, tenant: int, waiting: Waiting, want: int, drawn: _Drawn, turns: Turns
    ) -> int:
        got, due = 0, turns.due.get(tenant)
        while due and got < want:
            got += self._take_due([due.popleft()], drawn)
        fair = self._fair
        assert fair is not None
        while got < want and self._dropped < DROPPED_MAX:
            some = self._ahead_of(lane, tenant, waiting, want - got, drawn, turns)
            if not some:
                break
            offsets = Offsets.of(some)
            expired = self._source.expired(offsets, self._wall_us)
            if expired.count:
                self._dropped += expired.count
                drawn.expired |= expired
                offsets -= expired
            drawn.new |= offsets
            fair.picked |= dict.fromkeys(offsets, tenant)
            got += offsets.count
        return got

    def _ahead_of(
        self, lane: Lane, tenant: int, waiting: Waiting, want: int, drawn: _Drawn, turns: Turns
    ) -> list[int]:
        """The next messages of a tenant that nobody has seen."""
        state, found, place = self._state, waiting.found, turns.places.get(tenant)
        assert self._fair is not None
        if place is None:
            place, gone = 0, 0
            while gone < len(found) and self._is_seen(found[gone]):
                gone += 1
            del found[:gone]
        some: list[int] = []
        while len(some) < want:
            if place == len(found):
                more = self._fair.find(self._source, lane.priority, tenant, waiting)
                if not more.count:
                    break
                found += state.unseen(more)
                continue
            offset = found[place]
            place += 1
            if offset not in drawn.new and not self._is_seen(offset):
                some.append(offset)
        turns.places[tenant] = place
        return some

    def _is_seen(self, offset: int) -> bool:
        return offset in self._state.outstanding or offset in self._state.acked

    def _draw_oldest(self, lane: Lane, drawn: _Drawn) -> int:
        """The message that waits longest, whoever's turn it is."""
        lane.look(1, self._source, self._end, self._state.unseen)
        oldest = lane.peek(0, 1)
        if not oldest.count or oldest.first in drawn.new:
            return 0
        if self._source.expired(oldest, self._wall_us).count:
            drawn.expired |= oldest
            self._dropped += 1
            return 0
        drawn.new |= oldest
        assert self._fair is not None
        mark = int(self._source.marks(oldest.first, oldest.stop)[0])
        self._fair.picked[oldest.first] = mark & TENANTS - 1
        return 1

    def _passed(self) -> int:
        """Below it no message is ahead of any lane, once this pick is made true."""
        return min(self._position(lane) for lane in self._state.lanes)

    def _position(self, lane: Lane) -> int:
        """Where a lane goes on, once this pick is made true."""
        drawn = self._drawn.get(lane.priority)
        if drawn is None:
            return lane.at(0)
        if not self._ordered and self._fair is None:
            return lane.at(drawn.seen)
        index, ahead = 0, len(lane)
        while (offset := lane.at(index)) in drawn.new or offset in drawn.expired:
            index += 1
            if index > ahead:  # what was drawn lies further ahead than the lane has looked
                break
        return offset


class _Drawn:
    """What was taken from one lane."""

    __slots__ = ("again", "due_seen", "expired", "expired_again", "new", "seen", "turns")

    def __init__(self) -> None:
        self.again: dict[int, list[int]] = {}  # by delivery count
        self.new = EMPTY
        self.expired = EMPTY
        self.expired_again: list[int] = []
        self.due_seen = 0  # of the retries that are due
        self.seen = 0  # of the messages ahead, where no keys are ordered
        self.turns: Turns | None = None  # where tenants take turns
