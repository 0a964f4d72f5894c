"""Stream mode: groups whose members share the partitions of their topics.

The coordinators of `penstock.group` decide; here their events are stored before they are believed,
their members are woken, and sessions end in time.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.broker.journal import Journal
from penstock.broker.progress import Progress, ProgressInbox
from penstock.broker.stream_journal import StreamJournal
from penstock.errors import (
    BrokerClosed,
    GroupNotFound,
    InvalidInput,
    PenstockError,
    TopicNotFound,
    TopicRecreated,
)
from penstock.group.assignment import TopicPartition
from penstock.group.coordinator import Coordinator, Effects
from penstock.group.events import (
    Committed,
    Event,
    GenerationsReserved,
    OffsetsCommitted,
)
from penstock.group.offsets import Bounds, lag
from penstock.group.session import SESSION_TIMEOUT_MS, Standing
from penstock.log.base import PartitionLog
from penstock.model.groups import StreamGroup
from penstock.model.names import (
    TopicName,
    parse_stream_group,
    parse_topic,
    stream_group,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.topic import Topic

_logger = logging.getLogger("penstock.broker")

_MEMBER = "member-"  # how a name begins that was made up here
_SECRET_BYTES = 16
_SHOWN_CHARACTERS = 8


class Streams:
    def __init__(self, journal: Journal, broker: Broker, inbox: ProgressInbox) -> None:
        self._journal = StreamJournal(journal)
        self._inbox = inbox
        self._broker = broker
        self._lock = threading.RLock()
        self._taking_in = threading.local()
        self._wake: dict[tuple[str, str], Callable[[], None]] = {}
        states, is_outdated = self._journal.read()
        topics = self._topics()
        self._groups = {name: Coordinator(name, topics, state) for name, state in states.items()}
        for group in self._groups.values():
            for topic in {place.topic for place in group.committed} - topics.keys():
                self._store(group, [group.forget_topic(topic)])  # deleted, and then a crash
        if is_outdated:
            self._checkpoint()
        self._journal.log.sync()  # before there is another topic of that name

    # What members call.

    def join(
        self,
        group: str,
        member_id: str | None,
        topics: Iterable[TopicName],
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        assignor: str = "sticky",
        wake: Callable[[], None] | None = None,
    ) -> Standing:
        """Enter a group; `wake` is called when a heartbeat would bring something new.

        Without a `member_id` it gets one that nobody can guess. It is all that it takes to speak
        for the member, so `describe` does not show it.
        """
        topics = list(topics)
        _check_namespace(group, topics)
        names = [str(self._broker.topic(name).name) for name in topics]
        if member_id is None:
            member_id = f"{_MEMBER}{secrets.token_hex(_SECRET_BYTES)}"
        self.take_in()
        with self._lock:
            for name in topics:
                self._broker.settings(name)  # or it was deleted, and perhaps its namespace with it
            coordinator = self._groups.get(group)
            if coordinator is None:
                coordinator = Coordinator(group, self._topics())
            standing, effects = coordinator.join(
                member_id,
                names,
                self._now(),
                session_timeout_ms=session_timeout_ms,
                assignor=assignor,
            )
            self._groups[group] = coordinator
            former = self._wake.pop((group, standing.member_id), None)
            if former is not None and former != wake:
                former()  # somebody of that name was here, and has to hear that he is not any more
            if wake is not None:
                self._wake[group, standing.member_id] = wake
            self._carry_out(coordinator, effects)
            return standing

    def heartbeat(self, group: str, member_id: str, generation: int) -> Standing:
        with self._lock:
            coordinator = self._group(group)
            standing, effects = coordinator.heartbeat(member_id, generation, self._now())
            self._carry_out(coordinator, effects)
            return standing

    def revoked(
        self, group: str, member_id: str, generation: int, partitions: Iterable[TopicPartition]
    ) -> Standing:
        with self._lock:
            coordinator = self._group(group)
            standing, effects = coordinator.revoked(member_id, generation, partitions, self._now())
            self._carry_out(coordinator, effects)
            return standing

    def leave(self, group: str, member_id: str, generation: int) -> None:
        with self._lock:
            coordinator = self._group(group)
            self._carry_out(coordinator, coordinator.leave(member_id, generation))
            self._wake.pop((group, member_id), None)

    def commit(
        self,
        group: str,
        member_id: str,
        generation: int,
        offsets: Mapping[TopicPartition, int | Committed],
        number: int | None = None,
    ) -> Future[None]:
        with self._lock:
            coordinator = self._group(group)
            event = coordinator.commit(member_id, generation, offsets, number=number)
            stored = self._store(coordinator, [event])
        self._broker.consumed({place.topic for place in offsets})
        return self._as_durable_as(offsets, stored)

    # What a transaction does.

    @contextmanager
    def committing(
        self, wanted: Sequence[tuple[str, str, int, dict[TopicPartition, int], int | None]]
    ) -> Iterator[list[OffsetsCommitted | PenstockError]]:
        """The events of commits by members or, of a group that has none, by nobody; or why they
        are refused. Nothing changes meanwhile."""
        with self._lock:
            found: list[OffsetsCommitted | PenstockError] = []
            for group, member_id, generation, offsets, number in wanted:
                try:
                    if not member_id:  # of a group whose members are none of ours
                        coordinator = self._groups.get(group) or Coordinator(group, self._topics())
                        found.append(coordinator.set_offsets(offsets))
                        continue
                    coordinator = self._group(group)
                    found.append(coordinator.commit(member_id, generation, offsets, number=number))
                except PenstockError as exc:
                    found.append(exc)
            yield found

    def commit_transaction(self, number: int, events: Sequence[OffsetsCommitted]) -> None:
        """Store what a transaction commits as one entry, unless that is here."""
        with self._lock:
            if not events or number <= self.transaction:
                return
            self._journal.append_transaction(number, events)
            for event in events:
                coordinator = self._groups.get(event.group)
                if coordinator is None:
                    coordinator = Coordinator(event.group, self._topics())
                    self._groups[event.group] = coordinator
                coordinator.apply(event)
        self._broker.consumed({place.topic for event in events for place in event.offsets})

    @property
    def transaction(self) -> int:
        """The number of the last transaction that is stored here."""
        return self._journal.transaction

    @property
    def log(self) -> PartitionLog:
        return self._journal.log

    # What operators call.

    def set_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | Committed],
        incarnations: Mapping[str, str] = MappingProxyType({}),
    ) -> Future[None]:
        """Set positions from outside, also of a group that does not exist yet. TopicRecreated if a
        topic is another one than that whose incarnation is given."""
        _check_namespace(group, [parse_topic(place.topic) for place in offsets])
        self.take_in()  # or it would undo this later
        with self._lock:
            for topic, meant in incarnations.items():
                if not self._is_still(topic, meant):
                    raise TopicRecreated(topic)
            coordinator = self._groups.get(group) or Coordinator(group, self._topics())
            event = coordinator.set_offsets(offsets)
            self._groups[group] = coordinator
            stored = self._store(coordinator, [event])
        self._broker.consumed({place.topic for place in offsets})
        return self._as_durable_as(offsets, stored)

    def delete(self, group: str, *, force: bool = False) -> None:
        """GroupNotEmpty while it has members; by force they are told to join again."""
        with self._lock:
            coordinator = self._group(group)
            if force:
                self._carry_out(coordinator, coordinator.disband())
            self._store(coordinator, [coordinator.delete()])
            del self._groups[group]

    def groups(self, namespace: str | None = None) -> list[str]:
        """Those of a namespace, by their own names; or all, as `stream_group` writes them."""
        self.take_in()
        with self._lock:
            names = sorted(self._groups)
        if namespace is None:
            return names
        known = [parse_stream_group(name) for name in names]
        return [group for where, group in known if where == namespace]

    def has_member(self, group: str, member_id: str) -> bool:
        with self._lock:
            coordinator = self._groups.get(group)
            return coordinator is not None and member_id in coordinator.members

    def has_members(self, group: str) -> bool:
        with self._lock:
            coordinator = self._groups.get(group)
            return coordinator is not None and bool(coordinator.members)

    def describe(self, group: str) -> StreamGroup:
        self.take_in()
        with self._lock:
            coordinator = self._group(group)
            topics = {p.topic for p in coordinator.committed}
            topics.update(t for s in coordinator.members.values() for t in s.subscriptions)
        bounds = self._bounds(topics)
        with self._lock:
            coordinator = self._group(group)
            committed = dict(coordinator.committed)
            members: dict[str, list[TopicPartition]] = {
                _shown(member_id): [] for member_id in coordinator.members
            }
            for partition, claim in sorted(coordinator.claims.items()):
                members[_shown(claim.member_id)].append(partition)
            clock = self._broker.clock
            began_us = clock.wall_ns() // 1000 - clock.monotonic_ns() // 1000
            return StreamGroup(
                group=parse_stream_group(group)[1],
                phase=coordinator.phase,
                generation=coordinator.generation,
                members=members,
                committed={p: c.offset for p, c in committed.items()},
                lag=lag(committed, bounds),
                heartbeats={
                    _shown(member_id): began_us + session.heard_ns // 1000
                    for member_id, session in coordinator.members.items()
                },
            )

    def committed(self, group: str, *, must_exist: bool = False) -> dict[TopicPartition, Committed]:
        self.take_in()
        with self._lock:
            coordinator = self._group(group) if must_exist else self._groups.get(group)
            return dict(coordinator.committed) if coordinator else {}

    def floors(self, name: TopicName, partition: int, start: int) -> list[int]:
        """Below which each group of a topic is done with a partition: `start` if it never was."""
        self.take_in()
        return [each.get(partition, start) for each in self.positions(name).values()]

    def positions(self, name: TopicName) -> dict[str, dict[int, int]]:
        """Where each group of a topic goes on, on the partitions where it has committed."""
        topic = str(name)
        found: dict[str, dict[int, int]] = {}
        with self._lock:
            for group in self._groups.values():
                committed = {
                    place.partition: at.offset
                    for place, at in group.committed.items()
                    if place.topic == topic
                }
                if committed or any(topic in m.subscriptions for m in group.members.values()):
                    found[parse_stream_group(group.group)[1]] = committed
        return found

    # What the broker calls.

    def sync(self) -> None:
        self._journal.log.sync()

    def opened(self, topic: Topic) -> None:
        """A topic is opened, and nobody uses it yet. What a power cut took from its end will be
        there again, as other messages: the groups have to read those."""
        ends = {TopicPartition(str(topic.name), p.number): p.log.end for p in topic.partitions}
        with self._lock:
            lost = False
            for group in self._groups.values():
                event = group.truncated(ends)
                if event is not None:
                    self._store(group, [event])
                    lost = True
            if lost:
                self._journal.log.sync()

    def topics_changed(self, deleted: TopicName | None = None) -> None:
        if not self._groups:
            return
        topics = self._topics()
        with self._lock:
            for coordinator in self._groups.values():
                self._carry_out_alone(coordinator, coordinator.topics_changed(topics))
                if deleted and any(p.topic == str(deleted) for p in coordinator.committed):
                    self._store(coordinator, [coordinator.forget_topic(str(deleted))])
            if deleted:
                self._journal.log.sync()  # before there is another topic of that name

    def expire(self, now_ns: int) -> int | None:
        """Let silent members go; when to look again."""
        with self._lock:
            for coordinator in self._groups.values():
                self._carry_out_alone(coordinator, coordinator.expire(now_ns))
            deadlines = [coordinator.next_deadline() for coordinator in self._groups.values()]
            if self._journal.is_long:
                self._checkpoint()
        return min((d for d in deadlines if d is not None), default=None)

    def close(self) -> None:
        with self._lock:
            try:
                self._checkpoint()
            except PenstockError as exc:  # a full disk, say: the next start takes longer
                _logger.warning("no checkpoint of the stream groups: %s", exc)
            for wake in self._wake.values():
                wake()
            self._journal.close()

    def take_in(self) -> None:
        """Believe what others left in the folder about how far they are. The lock is not held,
        because topics may have to be opened for it; those ask again, and get what is known."""
        if getattr(self._taking_in, "here", False):
            return
        self._taking_in.here = True
        try:
            self._take_in()
        finally:
            self._taking_in.here = False

    def _take_in(self) -> None:
        for name, progress in self._inbox.waiting():
            try:
                logs = self._logs(progress.offsets)
                with self._lock:
                    self._set_progress(progress, logs)
                    self._journal.log.sync()  # the file is the only other place where it stands
            except BrokerClosed:
                return  # the next start takes it in
            except PenstockError as exc:
                _logger.warning("progress of group %s is not taken in: %s", progress.group, exc)
                if exc.retriable:
                    continue
            self._inbox.remove(name)

    def _logs(self, topics: Iterable[str]) -> dict[TopicPartition, PartitionLog]:
        """Of the partitions of those topics that there are. The lock is not held."""
        found: dict[TopicPartition, PartitionLog] = {}
        for topic in topics:
            with suppress(TopicNotFound, InvalidInput):
                for partition in self._broker.topic(parse_topic(topic), create=False).partitions:
                    found[TopicPartition(topic, partition.number)] = partition.log
        return found

    def _bounds(self, topics: Iterable[str]) -> dict[TopicPartition, Bounds]:
        """What the partitions of those topics hold, whether or not these are open. The lock is not
        held."""
        found: dict[TopicPartition, Bounds] = {}
        for topic in topics:
            with suppress(TopicNotFound, InvalidInput):
                name = parse_topic(topic)
                if self._broker.is_open(name):
                    for place, log in self._logs([topic]).items():
                        found[place] = Bounds(log.start, log.end)
                else:
                    for each in self._broker.stats(name).partitions:
                        found[TopicPartition(topic, each.partition)] = Bounds(each.start, each.end)
        return found

    # The lock is held.

    def _set_progress(
        self, progress: Progress, logs: Mapping[TopicPartition, PartitionLog]
    ) -> None:
        offsets = {
            place: min(offset, logs[place].end)
            for topic, each in progress.offsets.items()
            if self._is_still(topic, progress.incarnations.get(topic))
            for place, offset in ((TopicPartition(topic, p), o) for p, o in each.items())
            if place in logs
        }
        for namespace in {parse_topic(place.topic).namespace for place in offsets}:
            group = stream_group(progress.group, namespace)
            coordinator = self._groups.get(group) or Coordinator(group, self._topics())
            some = {p: o for p, o in offsets.items() if parse_topic(p.topic).namespace == namespace}
            event = coordinator.set_offsets(some)
            self._groups[group] = coordinator
            self._store(coordinator, [event])

    def _is_still(self, topic: str, incarnation: str | None) -> bool:
        """Whether a topic is the one that is meant. If it is deleted after this, what is stored of
        it meanwhile is forgotten: that takes the lock too."""
        try:
            return incarnation in (None, self._broker.incarnation(parse_topic(topic)))
        except (TopicNotFound, InvalidInput):
            return incarnation is None

    def _group(self, group: str) -> Coordinator:
        try:
            return self._groups[group]
        except KeyError:
            raise GroupNotFound(group) from None

    def _carry_out(self, coordinator: Coordinator, effects: Effects) -> None:
        try:
            if effects.events:
                self._store(coordinator, effects.events)
                # Generations are reserved before they are used: they must not go back.
                self._journal.log.sync()
        finally:
            self._broker.plan(self.expire, coordinator.next_deadline())
            for member_id in effects.wake:
                place = coordinator.group, member_id
                wake = self._wake.get(place)
                if member_id not in coordinator.members:
                    self._wake.pop(place, None)
                if wake is not None:
                    wake()

    def _carry_out_alone(self, coordinator: Coordinator, effects: Effects) -> None:
        """One group's trouble, such as a full disk, must not hold up the others."""
        try:
            self._carry_out(coordinator, effects)
        except PenstockError as exc:
            _logger.error("group %s: %s", coordinator.group, exc)

    def _store(self, coordinator: Coordinator, events: Iterable[Event]) -> Future[None]:
        durable: Future[None] = Future()
        for event in events:
            durable = self._journal.append(event)
            coordinator.apply(event)
            if isinstance(event, GenerationsReserved):
                self._journal.log.sync()  # or they would be handed out again after a power cut
        return durable

    def _as_durable_as(
        self, offsets: Iterable[TopicPartition], stored: Future[None]
    ) -> Future[None]:
        """Positions last as long as the messages of the most careful topic among them."""
        for topic in {place.topic for place in offsets}:
            with suppress(TopicNotFound):
                if self._broker.settings(parse_topic(topic)).fsync == "always":
                    return self._journal.log.sync_soon()
        return stored

    def _checkpoint(self) -> None:
        states = {name: coordinator.state for name, coordinator in self._groups.items()}
        self._journal.checkpoint(states)

    def _topics(self) -> dict[str, int]:
        return self._broker.partition_counts()

    def _now(self) -> int:
        return self._broker.clock.monotonic_ns()


def _check_namespace(group: str, topics: Iterable[TopicName]) -> None:
    """A group reads topics of its own namespace alone."""
    namespace, name = parse_stream_group(group)
    for topic in topics:
        if topic.namespace != namespace:
            raise InvalidInput(
                f"stream group {name} is one of namespace {namespace!r}, and cannot read {topic}"
            )


def _shown(member_id: str) -> str:
    """A member as others see it: a name that it chose itself, or the beginning of its secret."""
    secret = member_id.removeprefix(_MEMBER)
    if secret == member_id or len(secret) != 2 * _SECRET_BYTES:
        return member_id
    return _MEMBER + secret[:_SHOWN_CHARACTERS]
