"""Making fires: exactly one message each, whatever happens in between.

1. The fires are appended to the journal of schedules, and that is made durable. This is the commit
   point: from now on each has its number, its moment and its partition.
2. Each message is published under a call id that is made of the schedule's own caller and the
   number of the fire. A partition stores such a call once.
3. The journal is told where the messages are and, some time later, that they last.

What a crash leaves between 1 and 3 is published again by the next start (`redo`), before the
schedule fires again: a partition recognises the calls of a caller only in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.schedule_journal import ScheduleJournal
from penstock.delivery.offsets import Offsets
from penstock.errors import BrokerClosed, LogError, OutOfOrderSequence, PenstockError, TopicNotFound
from penstock.model.names import TopicName
from penstock.model.published import CallId
from penstock.model.schedules import SCHEDULE_HEADER, SCHEDULED_FOR_HEADER
from penstock.record.batch import Batch
from penstock.schedule.definition import FireKind
from penstock.schedule.state import (
    Fire,
    FireCommitted,
    FireFailed,
    FirePublished,
    FiresConfirmed,
    FiresDecided,
    ScheduleEvent,
    ScheduleState,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_logger = logging.getLogger("penstock.broker")

UNCONFIRMED_MAX = 100
LATE_US = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FireRequest(NamedTuple):
    """Fires of one schedule that are to be made, and what else is decided with them."""

    state: ScheduleState
    moments_us: Sequence[int]
    kind: FireKind = "scheduled"
    decided: FiresDecided | None = None


class FireMaker:
    """Any thread may call, but only one at a time."""

    def __init__(self, broker: Broker, journal: ScheduleJournal) -> None:
        self._broker = broker
        self._journal = journal
        self.in_doubt = {s.id for s in journal.states.by_id.values() if any(s.unconfirmed())}
        """Schedules whose last fires may not be published: after a crash, or in trouble."""
        self.to_confirm: set[int] = set()
        """Schedules with messages that may not last, and that no crash has put in doubt."""
        self.fired = self.late = self.failed = 0

    def fire(self, wanted: Sequence[FireRequest]) -> None:
        """Commit fires, and publish their messages. No fire of these schedules may be in doubt."""
        events: list[FiresDecided | FireCommitted] = []
        for each in wanted:
            try:
                events += self._committing(each)
            except PenstockError as exc:  # the topic cannot be opened now
                _note_trouble(each.state, exc)
        fires = [event.fire for event in events if isinstance(event, FireCommitted)]
        self._journal.store(events, durable=bool(fires))
        self.fired += len(fires)
        self.failed += sum(bool(fire.error) for fire in fires)
        states = self._journal.states.by_id
        self._publish([states[id_] for id_ in {event.id: None for event in events}])

    def redo(self, state: ScheduleState) -> bool:
        """Publish what is committed and may be missing; whether nothing is in doubt any more."""
        if state.id in self.in_doubt:
            self.in_doubt.discard(state.id)
            self._publish([state], again=True)
        return state.id not in self.in_doubt

    def confirm(self) -> bool:
        """Have the messages of past fires last, and note that, so that no start looks for them;
        False: try again later."""
        events: list[ScheduleEvent] = []
        for id_ in self.to_confirm - self.in_doubt:
            state = self._journal.states.by_id.get(id_)
            if state is not None:
                try:
                    self._sync(state)
                except PenstockError as exc:  # then the next start finds out
                    _logger.warning("fires of %s are not confirmed: %s", state.name.name, exc)
                    continue
                events.append(FiresConfirmed(state.id, state.fired))
        try:
            self._journal.store(events)
        except PenstockError as exc:
            _logger.warning("fires are not confirmed: %s", exc)
            return False
        self.to_confirm.clear()
        return True

    def is_settled(self, state: ScheduleState) -> bool:
        """Whether the group of a schedule is done with the message of its last fire."""
        last = next((fire for fire in reversed(state.fires) if fire.published), None)
        group = state.definition.group
        if last is None or last.offset < 0 or group is None:
            return True
        try:
            partition = self._broker.topic(topic_of(state), create=False).partition(last.partition)
        except TopicNotFound:
            return True
        if last.offset < partition.log.start:
            return True
        if group not in partition.queues:
            return False
        return not partition.not_done(group, Offsets.one(last.offset)).count

    def _committing(self, wanted: FireRequest) -> list[FiresDecided | FireCommitted]:
        state = wanted.state
        made_us = self._broker.clock.wall_ns() // 1000
        events: list[FiresDecided | FireCommitted] = []
        if wanted.decided is not None:
            events.append(wanted.decided)
        for number, moment_us in enumerate(wanted.moments_us, state.fired + 1):
            partition, error = -1, ""
            try:
                topic = self._broker.topic(topic_of(state))
                partition = topic.route(state.definition.key, CallId(state.id, number))
            except TopicNotFound as exc:
                error = str(exc)
            fire = Fire(
                number=number,
                scheduled_us=moment_us,
                made_us=made_us,
                kind=wanted.kind,
                partition=partition,
                error=error,
            )
            events.append(FireCommitted(state.id, fire))
        return events

    def _publish(self, states: Sequence[ScheduleState], *, again: bool = False) -> None:
        """Publish the messages of fires that are committed. `again`: also those that were, since
        they may not have lasted."""
        events: list[ScheduleEvent] = []
        for state in states:
            if any(state.unconfirmed()):
                self.to_confirm.add(state.id)
            for fire in state.unconfirmed():
                if fire.error or (fire.published and not again):
                    continue
                event = self._publish_one(state, fire)
                if event is None:  # the order of calls is what they are recognised by
                    self.in_doubt.add(state.id)
                    break
                events.append(event)
                self.late += not again and self._is_late(state, fire)
            else:
                state.trouble = ""
        self.failed += sum(isinstance(event, FireFailed) for event in events)
        try:
            self._journal.store(events)
        except PenstockError:
            self.in_doubt.update(state.id for state in states)
            raise
        if any(sum(1 for _ in state.unconfirmed()) > UNCONFIRMED_MAX for state in states):
            self.confirm()

    def _publish_one(self, state: ScheduleState, fire: Fire) -> ScheduleEvent | None:
        """Publish the message of a fire unless it is there; None: try again later."""
        name = topic_of(state)
        now_us = self._broker.clock.wall_ns() // 1000
        try:
            if fire.published and self._is_there(name, fire):
                return FirePublished(state.id, fire.number, fire.offset, fire.ulid)
            (placed,) = self._broker.publish(
                name,
                _message(state, fire.scheduled_us, now_us),
                partition=fire.partition,
                call=CallId(state.id, fire.number),
            )
        except OutOfOrderSequence:  # it is there, and so is one of a later fire
            return FirePublished(state.id, fire.number, -1, b"")
        except PenstockError as exc:
            if exc.retriable or isinstance(exc, LogError | BrokerClosed):
                _note_trouble(state, exc)
                return None
            _logger.warning("fire %d of schedule %s: %s", fire.number, state.name.name, exc)
            return FireFailed(state.id, fire.number, str(exc))
        ulid = placed.ulid.to_bytes(16, "big")
        return FirePublished(state.id, fire.number, placed.first_offset, ulid)

    def _is_late(self, state: ScheduleState, fire: Fire) -> bool:
        if fire.kind != "scheduled":
            return False
        due_us = state.calendar.due_us(fire.scheduled_us)
        return self._broker.clock.wall_ns() // 1000 > due_us + LATE_US

    def _is_there(self, name: TopicName, fire: Fire) -> bool:
        """Whether the message of a fire is where it was put, or was and is dropped by now."""
        if fire.offset < 0:
            return False
        try:
            partition = self._broker.topic(name, create=False).partition(fire.partition)
        except TopicNotFound:
            return True  # deleted with the topic
        log = partition.log
        if fire.offset < log.start:
            return True
        found = partition.source.fetch(Offsets.one(fire.offset)) if fire.offset < log.end else []
        return any(batch.ids[0].as_py() == fire.ulid for batch in found)

    def _sync(self, state: ScheduleState) -> None:
        fires = [fire for fire in state.unconfirmed() if fire.published]
        try:
            topic = self._broker.topic(topic_of(state), create=False)
        except TopicNotFound:
            return
        for number in {fire.partition for fire in fires if fire.partition < len(topic.partitions)}:
            log = topic.partitions[number].log
            last = max(fire.offset for fire in fires if fire.partition == number)
            if log.durable_end <= last and log.config.fsync != "never":
                log.ordered()


def topic_of(state: ScheduleState) -> TopicName:
    return TopicName(state.name.namespace, state.definition.topic)


def message_of_fire(state: ScheduleState, moment_us: int) -> Batch:
    """What a fire publishes."""
    return _message(state, moment_us, moment_us)


def _message(state: ScheduleState, moment_us: int, now_us: int) -> Batch:
    definition = state.definition
    moment = (_EPOCH + timedelta(microseconds=moment_us)).isoformat().replace("+00:00", "Z")
    headers = {
        **definition.headers,
        SCHEDULE_HEADER: state.name.name.encode(),
        SCHEDULED_FOR_HEADER: moment.encode(),
    }
    batch = Batch.of_one(
        definition.value, key=definition.key, headers=headers, priority=definition.priority
    )
    return batch if definition.ttl_us is None else batch.expiring(now_us + definition.ttl_us)


def _note_trouble(state: ScheduleState, error: PenstockError) -> None:
    if not state.trouble:
        _logger.warning("schedule %s: %s; it is tried again", state.name.name, error)
    state.trouble = str(error)
