"""Recurring schedules: what can be asked of them, and the chore that fires them when they are due.

One chore looks after all of them: their next fires lie in a heap, by the wall clock, and the
housekeeper calls when the first is due, or after a second, since the clock can be set. How a fire
becomes exactly one message is in `schedule_fires.py`.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.broker.delays import RECHECK_NS
from penstock.broker.journal import Journal
from penstock.broker.schedule_fires import FireMaker, FireRequest, message_of_fire, topic_of
from penstock.broker.schedule_journal import ScheduleJournal
from penstock.errors import InvalidInput, PenstockError, ScheduleNotFound, Unavailable
from penstock.model.schedules import (
    BACKFILL_MAX,
    SCHEDULES_BYTES_MAX,
    SCHEDULES_MAX,
    ScheduleTotals,
)
from penstock.randomness import own_random
from penstock.schedule.catch_up import admit, due
from penstock.schedule.definition import ScheduleDefinition
from penstock.schedule.state import (
    Fire,
    FiresDecided,
    ScheduleDeleted,
    ScheduleName,
    SchedulePut,
    ScheduleState,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_logger = logging.getLogger("penstock.broker")

CONFIRM_AFTER_NS = 1_000_000_000
FIRED_AT_ONCE_MAX = 500
"""Schedules, with one fsync; then other chores have their turn."""
_CALLER_MIN = 3 << 60
"""Above those of clients: `penstock.client.call_ids`."""


class Schedules:
    """All schedules of a broker. Any thread may call anything."""

    def __init__(self, broker: Broker, open_journal: Callable[[bool], Journal | None]) -> None:
        self._broker = broker
        self._lock = threading.RLock()
        self._journal = ScheduleJournal(open_journal)
        self._maker = FireMaker(broker, self._journal)
        self._heap: list[tuple[int, int]] = []
        self._due: dict[int, int] = {}
        """When each is looked at next, by the wall clock; entries of the heap that say otherwise
        are stale."""
        self._looked_us = now_us = self._now_us()
        """The wall clock at the last look."""
        self._buffering: dict[int, Callable[[], None]] = {}
        """Schedules with a fire that waits, and how to stop watching their topics."""
        self._skipped_before = sum(s.skipped for s in self._journal.states.by_id.values())
        for state in self._journal.states.by_id.values():
            self._set_due(
                state.id, now_us if state.buffered_us is not None else self._due_us(state)
            )
        self._plan_look()

    # What can be asked.

    def put(
        self, name: ScheduleName, definition: ScheduleDefinition, paused: bool | None
    ) -> ScheduleState:
        with self._lock:
            now_us = self._now_us()
            known = self._journal.states.by_name.get(name)
            if known is None:
                state = self._new(name, definition, now_us)
            else:
                self._maker.redo(known)
                state = replace(known, definition=definition)
                if definition.timing != known.definition.timing:
                    state.anchor_us = now_us
                    state.cursor_us = max(known.cursor_us, now_us)
                    state.buffered_us = None
            if paused is not None:
                state = _paused(state, paused, now_us)
            if known == state:
                return known
            self._check(state, is_new=known is None or definition.timing != known.definition.timing)
            self._journal.store([SchedulePut(state)], durable=True)
            self._plan(state)
            return state

    def find(self, name: ScheduleName) -> ScheduleState:
        """Raises ScheduleNotFound."""
        state = self._journal.states.by_name.get(name)
        if state is None:
            raise ScheduleNotFound(name.name)
        return state

    def page(self, namespace: str, after: str | None, limit: int) -> list[ScheduleState]:
        with self._lock:
            names = sorted(
                name
                for name in self._journal.states.by_name
                if name.namespace == namespace and (after is None or name.name > after)
            )
            return [self._journal.states.by_name[name] for name in names[:limit]]

    def pause(self, name: ScheduleName, paused: bool) -> ScheduleState:
        with self._lock:
            known = self.find(name)
            state = _paused(known, paused, self._now_us())
            if state.paused != known.paused:
                self._journal.store([SchedulePut(state)], durable=True)
                self._plan(state)
            return state

    def delete(self, name: ScheduleName) -> bool:
        with self._lock:
            state = self._journal.states.by_name.get(name)
            if state is None:
                return False
            self._maker.redo(state)
            self._journal.store([ScheduleDeleted(state.id)], durable=True)
            self._forget(state.id)
            return True

    def trigger(self, name: ScheduleName) -> Fire:
        """Fire now."""
        with self._lock:
            state = self.find(name)
            self._make(FireRequest(state, [self._now_us()], "triggered"))
            return state.fires[-1]

    def backfill(self, name: ScheduleName, since_us: int, until_us: int) -> int:
        """Make the fires of a time that is over; how many there were."""
        with self._lock:
            state = self.find(name)
            if until_us > self._now_us():
                raise InvalidInput("until is in the future: those fires will be made by themselves")
            moments = []
            for moment_us in islice(state.calendar.after(since_us - 1), BACKFILL_MAX + 1):
                if moment_us > until_us:
                    break
                moments.append(moment_us)
            if len(moments) > BACKFILL_MAX:
                raise InvalidInput(
                    f"there are more than {BACKFILL_MAX:,} fires from since to until; "
                    "backfill a shorter time"
                )
            if moments:
                self._make(FireRequest(state, moments, "backfilled"))
            return len(moments)

    def totals(self) -> ScheduleTotals:
        with self._lock:
            states = list(self._journal.states.by_id.values())
            return ScheduleTotals(
                schedules=len(states),
                paused=sum(state.paused for state in states),
                fired=self._maker.fired,
                late=self._maker.late,
                failed=self._maker.failed,
                skipped=max(sum(state.skipped for state in states) - self._skipped_before, 0),
            )

    def close(self) -> None:
        """The topics are still open: what was fired is made to last, so that the next start need
        not look for it."""
        with self._lock:
            try:
                self._maker.confirm()
            finally:
                self._journal.close()

    # The chores.

    def _look(self, now_ns: int) -> int | None:
        with self._lock:
            states = self._journal.states.by_id
            ready = self._pop_due()
            for id_ in self._buffering.keys() - set(ready):
                if self._maker.is_settled(states[id_]):
                    ready.append(id_)
            try:
                self._fire([states[id_] for id_ in ready])
            finally:
                for id_ in ready:
                    self._plan(states[id_])
            if self._maker.to_confirm:
                self._broker.plan(self._confirm, now_ns + CONFIRM_AFTER_NS)
            return self._next_look(now_ns)

    def _confirm(self, now_ns: int) -> int | None:
        with self._lock:
            return None if self._maker.confirm() else now_ns + RECHECK_NS

    # The lock is held.

    def _fire(self, states: Sequence[ScheduleState]) -> None:
        """Make the fires that are due. What fails is tried again, a second later."""
        wanted = []
        try:
            for state in states:
                if self._maker.redo(state) and (found := self._wanted(state)) is not None:
                    wanted.append(found)
            self._maker.fire(wanted)
        except PenstockError as exc:  # of the journal: nothing is fired, or it is redone
            _logger.warning("schedules do not fire: %s; they are tried again", exc)
            for state in states:
                state.trouble = str(exc)

    def _now_us(self) -> int:
        return self._broker.clock.wall_ns() // 1000

    def _new(
        self, name: ScheduleName, definition: ScheduleDefinition, now_us: int
    ) -> ScheduleState:
        if len(self._journal.states.by_id) >= SCHEDULES_MAX:
            raise InvalidInput(f"there are {SCHEDULES_MAX:,} schedules, which is the limit")
        return ScheduleState(
            id=_CALLER_MIN + own_random.getrandbits(60),
            name=name,
            definition=definition,
            created_us=now_us,
            anchor_us=now_us,
            cursor_us=now_us,
        )

    def _check(self, state: ScheduleState, *, is_new: bool) -> None:
        """Raise for what would never fire, or would be refused when it does."""
        if is_new and state.calendar.next_after(state.cursor_us) is None:
            raise InvalidInput(f"schedule {state.name.name!r} would never fire: all of it is over")
        states = self._journal.states
        known = states.by_id.get(state.id)
        payload_bytes = states.payload_bytes + state.definition.payload_bytes
        if known is not None:
            payload_bytes -= known.definition.payload_bytes
        if payload_bytes > SCHEDULES_BYTES_MAX:
            raise InvalidInput(
                f"all schedules together hold at most {SCHEDULES_BYTES_MAX >> 20} MiB of messages"
            )
        self._broker.check(topic_of(state), message_of_fire(state, state.cursor_us))

    def _make(self, wanted: FireRequest) -> None:
        """Fire what somebody asked for, at once."""
        state = wanted.state
        self._broker.check(topic_of(state), message_of_fire(state, wanted.moments_us[0]))
        fired = state.fired
        if self._maker.redo(state):
            self._maker.fire([wanted])
        if state.fired == fired:
            raise Unavailable(f"schedule {state.name.name!r} cannot fire now: {state.trouble}")
        self._maker.confirm()
        self._plan(state)

    def _wanted(self, state: ScheduleState) -> FireRequest | None:
        """What a schedule has to fire now, and what it passes over."""
        definition, buffered_us = state.definition, state.buffered_us
        moments: list[int] = []
        cursor_us = state.cursor_us
        if not state.paused:
            moments, cursor_us = due(state.calendar, definition, cursor_us, self._now_us())
        if not moments and buffered_us is None and cursor_us == state.cursor_us:
            return None
        is_settled = definition.overlap == "allow" or self._maker.is_settled(state)
        if not moments and not is_settled:
            return None
        admitted = admit(definition.overlap, moments, buffered_us, is_settled)
        decided = FiresDecided(state.id, cursor_us, admitted.skipped, admitted.buffered_us)
        return FireRequest(state, admitted.fires, decided=decided)

    def _plan(self, state: ScheduleState) -> None:
        """Find out when a schedule is to be looked at, and have that happen."""
        self._watch(state)
        self._set_due(state.id, self._due_us(state))
        self._plan_look()

    def _due_us(self, state: ScheduleState) -> int | None:
        """When there is something to do; after a failure not at once."""
        now_us = self._now_us()
        due_us: int | None = now_us
        if state.id not in self._maker.in_doubt:
            try:
                next_us = state.next_us
                due_us = None if next_us is None else state.calendar.due_us(next_us)
            except InvalidInput as exc:  # its time zone is not in the database any more
                state.trouble, due_us = str(exc), None
        if due_us is not None and state.trouble:
            return max(due_us, now_us + RECHECK_NS // 1000)
        return due_us

    def _set_due(self, id_: int, due_us: int | None) -> None:
        if due_us is None:
            self._due.pop(id_, None)
        elif self._due.get(id_) != due_us:
            self._due[id_] = due_us
            heapq.heappush(self._heap, (due_us, id_))

    def _plan_look(self) -> None:
        self._broker.plan(self._look, self._next_look(self._broker.clock.monotonic_ns()))

    def _watch(self, state: ScheduleState) -> None:
        """Look at a schedule with a buffered fire when something is settled in its topic."""
        if state.buffered_us is None:
            if (stop := self._buffering.pop(state.id, None)) is not None:
                stop()
        elif state.id not in self._buffering:
            clock = self._broker.clock
            try:
                topic = self._broker.topic(topic_of(state), create=False)
            except PenstockError:  # it is looked at every second
                self._buffering[state.id] = lambda: None
            else:
                self._buffering[state.id] = topic.on_settled(
                    lambda: self._broker.plan(self._look, clock.monotonic_ns())
                )

    def _pop_due(self) -> list[int]:
        """Those that are due, the first ones first."""
        now_us = self._now_us()
        if now_us < self._looked_us:  # set back: nobody waits for that long before another try
            for id_, state in self._journal.states.by_id.items():
                if state.trouble:
                    self._set_due(id_, self._due_us(state))
        self._looked_us = now_us
        ready: list[int] = []
        while self._heap and self._heap[0][0] <= now_us and len(ready) < FIRED_AT_ONCE_MAX:
            due_us, id_ = heapq.heappop(self._heap)
            if self._due.get(id_) == due_us:
                del self._due[id_]
                ready.append(id_)
        return ready

    def _next_look(self, now_ns: int) -> int | None:
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if not self._heap:
            return now_ns + RECHECK_NS if self._buffering else None
        wait_ns = self._heap[0][0] * 1000 - self._broker.clock.wall_ns()
        return now_ns + min(max(wait_ns, 0), RECHECK_NS)

    def _forget(self, id_: int) -> None:
        self._due.pop(id_, None)
        self._maker.in_doubt.discard(id_)
        if (stop := self._buffering.pop(id_, None)) is not None:
            stop()


def _paused(state: ScheduleState, paused: bool, now_us: int) -> ScheduleState:
    """Fires of a time in which it was paused are not made up for."""
    if paused == state.paused:
        return state
    cursor_us = state.cursor_us if paused else max(state.cursor_us, now_us)
    return replace(state, paused=paused, cursor_us=cursor_us, buffered_us=None)
