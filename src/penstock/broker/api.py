"""The only way into a broker: everything that can be asked, in the user's words.

Every door (a client in this process, HTTP, and those to come) translates to these calls and back,
and decides nothing. Calls are synchronous, and any thread may make them. None waits for messages or
for an fsync policy: `receive` and `fetch` give what is there now, `on_news` says when to ask again,
and what has to be durable comes with a future. Those of `ask` may write to the disk, so that an
event loop makes them aside.

Publishing, receiving, settling and fetching carry columns and are methods of their own; every other
question is a `Call` of `penstock.model.calls`, answered by the method of its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from penstock.broker.broker import Broker
from penstock.broker.dead_letters import letter_pages
from penstock.broker.in_flight import in_flight_page
from penstock.broker.latencies import Total
from penstock.broker.members import Members
from penstock.broker.peek import fetch, offsets_at, peek, read_partition, within
from penstock.broker.publishing import due_us, expiring, publish_each
from penstock.broker.settle import settle_parts
from penstock.broker.settlement import Settlement
from penstock.clock import Clock
from penstock.delivery.offsets import Int64s, Offsets
from penstock.durations import Duration, Moment, parse_ms, parse_ns, parse_us
from penstock.errors import GroupError, InvalidInput, NotFound, TopicNotFound
from penstock.group.assignment import TopicPartition
from penstock.group.session import Standing
from penstock.log.base import DONE
from penstock.model import calls
from penstock.model.calls import ROUTES, Call
from penstock.model.dead_letters import Letter, LetterPage
from penstock.model.deliveries import Delivered, Extend, Nack, Rejection, Settle, Settling, Verb
from penstock.model.groups import (
    CommittedOffsets,
    Fetched,
    MemberStanding,
    PartitionOffset,
    StreamGroup,
    StreamGroups,
    offsets_of,
    places,
    positions,
    refs,
)
from penstock.model.messages import DelayedPage, MessagePage, NewMessage, PublishedMessage
from penstock.model.names import (
    DEFAULT_NAMESPACE,
    TopicName,
    group_name,
    parse_topic,
    stream_group,
    topic_name,
)
from penstock.model.published import CallId, DelayedIds, Placed, ProducerSequence
from penstock.model.stats import (
    DelayStats,
    InFlightPage,
    LatencyPage,
    Summary,
    TopicRow,
    TopicStats,
    TopicTable,
)
from penstock.model.topics import (
    Compacted,
    Count,
    Found,
    Groups,
    Namespaces,
    PartitionBounds,
    TopicDescription,
    TopicNames,
)
from penstock.model.values import Time, parse_time
from penstock.record.batch import Batch

T = TypeVar("T")


class Api:
    """One broker, as doors see it."""

    def __init__(self, broker: Broker, *, answer_bytes_max: int | None = None) -> None:
        """`answer_bytes_max`: about as many bytes of messages are in one answer, or one message."""
        self._broker = broker
        self._answer_bytes_max = answer_bytes_max
        self._members = Members(self._is_member)

    def limited(self, answer_bytes_max: int) -> Api:
        """The same broker and members, for a door that has to send what it is given."""
        other = Api(self._broker, answer_bytes_max=answer_bytes_max)
        other._members = self._members
        return other

    @property
    def clock(self) -> Clock:
        return self._broker.clock

    @property
    def closed(self) -> bool:
        return self._broker.closed

    def close(self) -> None:
        """Leave a clean folder: everything synced, state written down, the lock released."""
        self._broker.close()

    def ask(self, call: Call[T]) -> T | Future[None]:
        """The answer to a call or, where it has none, perhaps a future of when it is durable."""
        answer: T | Future[None] = getattr(self, METHODS[type(call)])(call)
        return answer

    # Publishing.

    def publish(
        self,
        name: TopicName,
        batch: Batch,
        *,
        partition: int | None = None,
        ttl: Duration | None = None,
        producer: ProducerSequence | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        call: CallId | None = None,
    ) -> list[Placed]:
        """Store messages. When this returns the operating system has them; see the futures.

        What comes again with the same `call` is not stored again, and its answer is the first."""
        if ttl is not None:
            batch = expiring(batch, ttl, self._broker.clock.wall_ns() // 1000)
        return self._broker.publish(
            name, batch, partition=partition, producer=producer, dedup_ids=dedup_ids, call=call
        )

    def delay(
        self,
        name: TopicName,
        batch: Batch,
        *,
        delay: Duration | None = None,
        deliver_at: Time | Moment | Int64s | None = None,
        partition: int | None = None,
        ttl: Duration | None = None,
        call: CallId | None = None,
    ) -> tuple[DelayedIds, int | Int64s, Future[None]]:
        """Store messages that are delivered later, all at a time or each at its own: the ids to
        cancel them by, when they fall due in microseconds since 1970, and when that is durable."""
        at_us = self._due_us(delay, deliver_at)
        if not isinstance(at_us, int) and len(at_us) != len(batch):
            raise InvalidInput(f"{len(batch)} messages, but {len(at_us)} of deliver_at")
        if not len(batch):
            self._broker.topic(name)
            return DelayedIds([]), at_us, DONE
        batch = expiring(batch, ttl, at_us)
        ids, durable = self._broker.delay(name, batch, at_us, partition=partition, call=call)
        return ids, at_us, durable

    def publish_each(
        self, name: TopicName, messages: Sequence[NewMessage]
    ) -> tuple[list[PublishedMessage], list[Future[None]]]:
        """Store messages that each say when and where they want to go; all of them or none."""
        return publish_each(self._broker, name, messages)

    def partitions(self, name: TopicName) -> int:
        """How many a topic has; it is made if that is allowed."""
        return len(self._broker.topic(name).partitions)

    # Queue mode.

    def receive(
        self,
        name: TopicName,
        group: str,
        max_messages: int = 10,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
    ) -> list[Delivered]:
        """Messages that are ready now, each under a lease; an empty list if there are none."""
        visibility_ns = None if visibility is None else parse_ns(visibility, "visibility")
        return self._broker.receive(
            name, group, max_messages, visibility_ns, consumer, partition, self._answer_bytes_max
        )

    def begin_at_end(self, name: TopicName, group: str) -> None:
        """A group that is not there yet begins after the newest message of each partition."""
        self._broker.begin_at_end(name, group)

    def ack(
        self, name: TopicName, partition: int, group: str, nonce: int, offsets: Offsets | None
    ) -> Settlement:
        """Messages of one lease are done."""
        return self._broker.ack(name, partition, group, nonce, offsets)

    def settle(self, verb: Verb, name: TopicName | None, group: str, named: Settle) -> Settling:
        """Ack, nack, reject or extend messages by their receipts or leases; `named` is a `Nack`,
        `Rejection` or `Extend` where it is one of these. Without a topic, receipts of several."""
        group_name(group)
        settle: Callable[..., Settlement] = getattr(self._broker, verb)
        how = _how(named)
        return settle_parts(
            lambda topic, partition, nonce, offsets: settle(
                topic, partition, group, nonce, offsets, **how
            ),
            name,
            named.receipts,
            named.leases,
        )

    # Stream mode.

    def fetch(
        self,
        wanted: Sequence[PartitionOffset],
        max_bytes: int = 1 << 20,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        group: str | None = None,
        member_id: str | None = None,
        generation: int = 0,
    ) -> Fetched:
        """What there is to read now from some positions on, and whether a member of a group of the
        namespace is to heartbeat."""
        bytes_left = max_bytes
        if self._answer_bytes_max is not None:
            bytes_left = min(bytes_left, self._answer_bytes_max)
        now_us = self.clock.wall_ns() // 1000
        parts = []
        for position in wanted:
            topic = self._broker.topic(parse_topic(position.topic), create=False)
            part = fetch(topic.partition(position.partition), position, bytes_left, now_us)
            bytes_left -= sum(batch.nbytes for batch in part.batches)
            parts.append(part)
        woken = (
            group is not None
            and member_id is not None
            and self._members.is_woken(stream_group(group, namespace), member_id, generation)
        )
        return Fetched(parts=parts, woken=woken)

    # Waiting.

    def on_news(self, name: TopicName, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when there may be something to receive or fetch; returns how to stop that."""
        return self._broker.on_news(name, callback)

    def on_wake(
        self, namespace: str, group: str, member_id: str, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Call back when a member of a stream group should heartbeat; returns how to stop that."""
        return self._members.on_wake(stream_group(group, namespace), member_id, callback)

    def plan(self, chore: Callable[[int], int | None], deadline_ns: int) -> None:
        """Have a short chore called when the clock reaches a time; it says when to call again."""
        self._broker.plan(chore, deadline_ns)

    # Topics.

    def list_namespaces(self, call: calls.ListNamespaces) -> Namespaces:
        return Namespaces(namespaces=self._broker.namespaces())

    def list_topics(self, call: calls.ListTopics) -> TopicNames:
        topic_name("any", call.namespace)
        return TopicNames(topics=[name.topic for name in self._broker.topics(call.namespace)])

    def create_topic(self, call: calls.CreateTopic) -> TopicDescription:
        settings = self._broker.create_topic(_name(call), call.settings, call.exist_ok)
        return TopicDescription(topic=call.topic, settings=settings)

    def describe_topic(self, call: calls.DescribeTopic) -> TopicDescription:
        return TopicDescription(topic=call.topic, settings=self._broker.settings(_name(call)))

    def alter_topic(self, call: calls.AlterTopic) -> TopicDescription:
        settings = self._broker.alter_topic(_name(call), call.settings)
        return TopicDescription(topic=call.topic, settings=settings)

    def delete_topic(self, call: calls.DeleteTopic) -> None:
        self._broker.delete_topic(_name(call))

    def describe_partition(self, call: calls.DescribePartition) -> PartitionBounds:
        topic = self._broker.topic(_name(call), create=False)
        log = topic.partition(call.partition).log
        at = None
        if call.at is not None:
            at = offsets_at(topic, call.at, call.partition)[call.partition]
        return PartitionBounds(
            partition=call.partition,
            start=log.start,
            end=log.end,
            durable_end=log.durable_end,
            at=at,
        )

    def sync(self, call: calls.Sync) -> None:
        topic_name("any", call.namespace)
        self._broker.sync(call.namespace)

    # Messages.

    def peek(self, call: calls.Peek) -> MessagePage:
        _whole("limit", call.limit)
        topic = self._broker.topic(_name(call), create=False)
        return peek(topic, call.at, call.partition, call.limit, self._answer_bytes_max)

    def read(self, call: calls.Read) -> MessagePage:
        topic = self._broker.topic(_name(call), create=False)
        offset = offsets_at(topic, call.at, call.partition)[call.partition]
        max_bytes = call.max_bytes
        if self._answer_bytes_max is not None:
            max_bytes = min(max_bytes, self._answer_bytes_max)
        return read_partition(topic.partition(call.partition), offset, max_bytes)

    def purge(self, call: calls.Purge) -> Count:
        return Count(count=self._broker.purge(_name(call), call.group))

    def compact(self, call: calls.Compact) -> Compacted:
        return self._broker.compact(_name(call))

    # Queue groups.

    def list_groups(self, call: calls.ListGroups) -> Groups:
        return Groups(groups=self._broker.groups(_name(call)))

    def delete_group(self, call: calls.DeleteGroup) -> Found:
        return Found(found=self._broker.delete_group(_name(call), call.group))

    def seek(self, call: calls.Seek) -> None:
        name = _name(call)
        topic = self._broker.topic(name, create=False)
        self._broker.seek(name, call.group, offsets_at(topic, call.to, call.partition))

    def in_flight(self, call: calls.InFlight) -> InFlightPage:
        topic = self._broker.topic(_name(call), create=False)
        return in_flight_page(topic, group_name(call.group), call.after, call.limit, self.clock)

    # Delays.

    def list_delayed(self, call: calls.ListDelayed) -> DelayedPage:
        bytes_max = self._answer_bytes_max
        found = self._broker.delayed(_name(call), call.after, call.limit, bytes_max)
        is_full = len(found) == call.limit or (
            bytes_max is not None and sum(each.message.nbytes for _, each in found) >= bytes_max
        )
        return DelayedPage(
            delayed=[each for _, each in found],
            next=found[-1][0] + 1 if is_full and found else None,
        )

    def describe_delays(self, call: calls.DescribeDelays) -> DelayStats:
        return self._broker.delay_stats(_name(call))

    def cancel_delayed(self, call: calls.CancelDelayed) -> Found:
        return Found(found=self._broker.cancel(_name(call), call.id))

    # Dead letters.

    def list_dead_letters(self, call: calls.ListDeadLetters) -> LetterPage:
        letters = self._broker.dead_letters(_name(call))
        after = None if call.after is None else _letter_place(call.after)
        every = letters.list(limit=call.limit + 1, after=after)
        found = letter_pages(every, call.limit, self._answer_bytes_max)
        page = next(found, [])
        more = f"{page[-1].partition}-{page[-1].message.offset}" if next(found, None) else None
        return LetterPage(letters=page, count=letters.count(), next=more)

    def inspect_dead_letter(self, call: calls.InspectDeadLetter) -> Letter:
        name = _name(call)
        partition, offset = _letter_place(call.place)
        for letter in self._broker.dead_letters(name).list(limit=1, after=(partition, offset - 1)):
            if (letter.partition, letter.message.offset) == (partition, offset):
                return letter
        raise NotFound(f"topic {name} has no dead letter at {call.place}")

    def redrive_dead_letters(self, call: calls.RedriveDeadLetters) -> Count:
        letters = self._broker.dead_letters(_name(call))
        return Count(count=letters.redrive(call.letters, call.fits, call.to))

    def purge_dead_letters(self, call: calls.PurgeDeadLetters) -> Count:
        letters = self._broker.dead_letters(_name(call))
        return Count(count=letters.purge(call.letters, call.fits))

    # Stream groups, from outside.

    def list_stream_groups(self, call: calls.ListStreamGroups) -> StreamGroups:
        return StreamGroups(groups=self._broker.streams.groups(call.namespace))

    def describe_stream_group(self, call: calls.DescribeStreamGroup) -> StreamGroup:
        return self._broker.streams.describe(_group(call))

    def delete_stream_group(self, call: calls.DeleteStreamGroup) -> None:
        self._broker.streams.delete(_group(call))

    def list_committed_offsets(self, call: calls.ListCommittedOffsets) -> CommittedOffsets:
        committed = self._broker.streams.describe(_group(call)).committed
        return CommittedOffsets(offsets=positions(committed))

    def reset_stream_group(self, call: calls.ResetStreamGroup) -> Future[None]:
        name = topic_name(call.topic, call.namespace)
        topic = self._broker.topic(name, create=False)
        offsets = {
            TopicPartition(str(name), number): within(topic.partition(number), offset)
            for number, offset in offsets_at(topic, call.to, call.partition).items()
        }
        return self._broker.streams.set_offsets(_group(call), offsets)

    # Stream groups, for members.

    def join_group(self, call: calls.JoinGroup) -> MemberStanding:
        group = _group(call)
        waker = self._members.waker(group)
        standing = self._broker.streams.join(
            group,
            call.member_id,
            [topic_name(topic, call.namespace) for topic in call.topics],
            session_timeout_ms=parse_ms(call.session_timeout, "session_timeout"),
            assignor=call.assignor,
            wake=waker,
        )
        waker.joined(standing.member_id, standing.generation)
        return self._standing(_group(call), standing)

    def heartbeat(self, call: calls.Heartbeat) -> MemberStanding:
        self._members.heard(_group(call), call.member_id)
        standing = self._broker.streams.heartbeat(_group(call), call.member_id, call.generation)
        return self._standing(_group(call), standing)

    def sync_group(self, call: calls.SyncGroup) -> MemberStanding:
        self._members.heard(_group(call), call.member_id)
        standing = self._broker.streams.revoked(
            _group(call), call.member_id, call.generation, places(call.revoked)
        )
        return self._standing(_group(call), standing)

    def leave_group(self, call: calls.LeaveGroup) -> None:
        self._broker.streams.leave(_group(call), call.member_id, call.generation)
        self._members.gone(_group(call), call.member_id)

    def commit_offsets(self, call: calls.CommitOffsets) -> Future[None]:
        offsets = offsets_of(call.offsets)
        return self._broker.streams.commit(
            _group(call), call.member_id, call.generation, offsets, call.number
        )

    # How things stand.

    def describe_stats(self, call: calls.DescribeStats) -> TopicStats:
        return self._broker.stats(_name(call))

    def list_latencies(self, call: calls.ListLatencies) -> LatencyPage:
        rows, next_us = self._broker.latency_page(
            _name(call),
            _moment_us("since", call.since),
            _moment_us("until", call.until),
            call.limit,
        )
        return LatencyPage(rows=rows, next=None if next_us is None else next_us // 1_000_000)

    def summarize(self, call: calls.Summarize) -> Summary:
        rows = [_row(name, stats) for name, stats in self._stats(self._names(call.namespace))]
        groups = self._broker.streams.groups(call.namespace)
        return Summary(
            topics=len(rows),
            partitions=sum(row.partitions for row in rows),
            groups=sum(row.groups for row in rows),
            stream_groups=len(groups),
            messages=sum(row.messages for row in rows),
            size_bytes=sum(row.size_bytes for row in rows),
            depth=sum(row.depth for row in rows),
            in_flight=sum(row.in_flight for row in rows),
            delayed=sum(row.delayed for row in rows),
            dead=sum(row.dead for row in rows),
            publish_rate=sum(row.publish_rate for row in rows),
            deliver_rate=sum(row.deliver_rate for row in rows),
            ack_rate=sum(row.ack_rate for row in rows),
        )

    def tabulate_topics(self, call: calls.TabulateTopics) -> TopicTable:
        page = slice(call.offset, call.offset + call.limit)
        names = [name for name in self._names(call.namespace) if call.search in str(name)]
        if call.sort == "topic":
            # Only the rows of the page are computed.
            names.sort(key=str, reverse=call.descending)
            shown = list(self._stats(names[page]))
        else:
            found = list(self._stats(names))
            found.sort(key=lambda each: (getattr(each[1], call.sort), each[0].topic))
            if call.descending:
                found.reverse()
            shown = found[page]
        return TopicTable(
            topics=[_row(*each) for each in shown],
            total=len(names),
            details=[stats for _, stats in shown] if call.details else [],
        )

    # For who keeps a watch on all of it.

    def each_topic(self) -> Iterator[TopicStats]:
        """How each topic stands, in one pass."""
        return (stats for _, stats in self._stats(self._names(None)))

    def latency_totals(self) -> Iterator[Total]:
        """How long messages took since the broker was opened, by topic, group and priority."""
        return self._broker.latencies.totals()

    def each_stream_group(self) -> Iterator[StreamGroup]:
        for group in self._broker.streams.groups():
            with suppress(GroupError):  # deleted just now
                yield self._broker.streams.describe(group)

    def failed_logs(self) -> list[str]:
        """Logs that take no writes any more, after a failed write or fsync."""
        return self._broker.failed_logs()

    def has_room(self) -> bool:
        """Whether the disk has room for what is published."""
        return self._broker.has_room()

    # Inside.

    def _due_us(
        self, delay: Duration | None, deliver_at: Time | Moment | Int64s | None
    ) -> int | Int64s:
        if isinstance(deliver_at, np.ndarray):
            if delay is not None:
                raise InvalidInput("give delay or deliver_at, not both")
            return deliver_at
        at_us = due_us(delay, deliver_at, self.clock.wall_ns())
        if at_us is None:
            raise InvalidInput("say when: give delay or deliver_at")
        return at_us

    def _standing(self, group: str, standing: Standing) -> MemberStanding:
        committed = self._broker.streams.committed(group)
        return MemberStanding(
            member_id=standing.member_id,
            generation=standing.generation,
            assigned=refs(standing.assigned),
            revoke=refs(standing.revoke),
            rebalancing=standing.rebalancing,
            session_timeout_ms=standing.session_timeout_ms,
            heartbeat_interval_ms=standing.heartbeat_interval_ms,
            committed=positions(
                {at: committed[at].offset for at in standing.assigned if at in committed}
            ),
        )

    def _is_member(self, group: str, member_id: str) -> bool:
        return self._broker.streams.has_member(group, member_id)

    def _names(self, namespace: str | None) -> list[TopicName]:
        return self._broker.topics(namespace)

    def _stats(self, names: Sequence[TopicName]) -> Iterator[tuple[TopicName, TopicStats]]:
        for name in names:
            with suppress(TopicNotFound):  # deleted just now
                yield name, self._broker.stats(name)


METHODS = {
    call: re.sub(r"(?<!^)(?=[A-Z])", "_", call.__name__).lower()  # CreateTopic: create_topic
    for call in ROUTES
}
"""The method of `Api` that answers each call."""


def _name(call: calls.TopicCall[Any]) -> TopicName:
    return topic_name(call.topic, call.namespace)


def _group(call: calls.StreamGroupCall[Any]) -> str:
    return stream_group(call.group, call.namespace)


def _how(named: Settle) -> dict[str, Any]:
    match named:
        case Nack(delay=delay, error=error, retries=retries):
            delay_ns = None if delay is None else parse_ns(delay, "delay")
            return {"delay_ns": delay_ns, "error": error, "retries": retries}
        case Rejection(reason=reason):
            return {"error": reason}
        case Extend(visibility=visibility):
            return {"visibility_ns": parse_ns(visibility, "visibility")}
        case _:
            return {}


def _letter_place(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition("-")
    for part in (partition, offset):
        if not part.isascii() or not part.isdigit() or len(part) > 18:
            raise InvalidInput(f"{text!r:.100} is not the place of a letter: partition-offset")
    return int(partition), int(offset)


def _moment_us(name: str, value: Time | None) -> int | None:
    return None if value is None else parse_us(parse_time(value, name), name)


def _whole(name: str, value: int) -> None:
    if type(value) is not int or value < 0:
        raise InvalidInput(f"{name} is {value!r}; it must be a whole number from 0 up")


def _row(name: TopicName, stats: TopicStats) -> TopicRow:
    return TopicRow(
        topic=name.topic,
        namespace=name.namespace,
        partitions=len(stats.partitions),
        groups=len(stats.groups),
        messages=stats.messages,
        size_bytes=stats.size_bytes,
        depth=stats.depth,
        in_flight=stats.in_flight,
        delayed=stats.delayed,
        dead=stats.dead,
        publish_rate=stats.publish_rate,
        deliver_rate=stats.deliver_rate,
        ack_rate=stats.ack_rate,
    )
