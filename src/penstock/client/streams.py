"""Stream mode for a consumer: the messages of the partitions that the group gave it, in order."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from penstock.broker.names import TopicName, topic_name
from penstock.client.waiting import Signal, Steps, Wait, awaiting, blocking
from penstock.durations import Duration, parse_ms, parse_ns, parse_us
from penstock.errors import (
    BrokerClosed,
    GroupError,
    InvalidInput,
    OffsetOutOfRange,
    StaleGeneration,
)
from penstock.group.assignment import TopicPartition
from penstock.group.member import Change, Member
from penstock.group.offsets import AtOffset, AtTime, Bounds, Earliest, Latest, Start, land, starts
from penstock.record.batch import Message
from penstock.record.schema import Priority

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.client.operations import Position

_logger = logging.getLogger("penstock.client")

_FETCH_BYTES = 1 << 20
_POLL_EVERY_NS_MAX = (
    300 * 1_000_000_000
)  # a consumer that is stuck for longer lets others have its partitions


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    commit_every_ns: int | None = 5_000_000_000
    """None: only `commit()` commits."""
    session_timeout_ms: int = 30_000
    assignor: str = "sticky"
    member_id: str | None = None


class StreamMessage:
    """A message of a stream. It needs no ack: reading on is what counts."""

    __slots__ = ("_message", "partition", "topic")

    def __init__(self, message: Message, place: TopicPartition) -> None:
        self._message = message
        self.topic = place.topic
        self.partition = place.partition

    @property
    def value(self) -> bytes | None:
        return self._message.value

    @property
    def key(self) -> bytes | None:
        return self._message.key

    @property
    def headers(self) -> dict[str, bytes | None]:
        return self._message.headers

    @property
    def priority(self) -> Priority:
        return Priority(self._message.priority)

    @property
    def timestamp_us(self) -> int:
        return self._message.timestamp_us

    @property
    def offset(self) -> int:
        return self._message.offset

    @property
    def id(self) -> str:
        return self._message.id

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition}@{self.offset}>"


class StreamReader:
    """A member of a group, and what it reads. One thread or task reads; heartbeats go on aside.

    A message counts as done when the next one is asked for. What is done is committed every few
    seconds, when partitions are given back, and at close.
    """

    def __init__(
        self,
        broker: Broker,
        topics: Sequence[TopicName],
        group: str,
        start: Position,
        config: StreamConfig,
    ) -> None:
        self._broker = broker
        self._names = {str(name): name for name in topics}
        self._group = group
        self._start = parse_start(start)
        self._config = config
        self._member = Member(config.member_id)
        self._lock = threading.RLock()
        self._signal = Signal()
        self._woken = False
        self._buffer: deque[StreamMessage] = deque()
        self._current: StreamMessage | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._done: dict[TopicPartition, int] = {}
        self._sent: dict[TopicPartition, int] = {}
        self._committed_ns = self._polled_ns = self._now()
        self._closed = False
        self._replaced: StaleGeneration | None = None
        self.missed = 0
        """Messages that retention dropped before this member could read them."""
        self._join()

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member reads at present."""
        return sorted(self._member.owned)

    @property
    def position(self) -> dict[TopicPartition, int]:
        """On each partition, the message that is handed out next."""
        with self._lock:
            ahead = {_place(m): m.offset for m in reversed(self._buffer)}
            return self._positions | ahead

    def _next(self, timeout_s: float | None = None) -> Steps[StreamMessage | None]:
        """The next message; None when time is up."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._finish_current()
                self._keep_up()
                if not self._buffer:
                    self._fetch()
                if self._buffer:
                    self._current = self._buffer.popleft()
                    return self._current
                signal = self._signal = Signal()
            stops = [self._broker.on_news(n, signal.fire) for n in self._names.values()]
            try:
                with self._lock:
                    self._fetch()  # what came before we were listening
                    beat_s = (self._member.heartbeat_due_ns - self._now()) / 1e9
                if self._buffer or self._woken:
                    continue
                left_s = beat_s if deadline is None else min(beat_s, deadline - time.monotonic())
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                yield Wait(signal.future, max(left_s, 0.001))
            finally:
                for stop in stops:
                    stop()

    def _commit(self) -> Steps[None]:
        """Commit what is done, and wait until it is stored.

        Raises a GroupError if the group has given the partitions to others meanwhile.
        """
        with self._lock:
            self._finish_current()
            if self._replaced is not None:
                raise self._replaced
            try:
                future = self._commit_done()
            except GroupError:
                self._woken = True  # the next heartbeat tells where it stands
                raise
        if future is not None:
            if not future.done():
                yield Wait(future)
            future.result()

    def seek(self, to: Position, *, partition: int | None = None, topic: str | None = None) -> None:
        """Read on from elsewhere: on all partitions that are assigned, or on some of them."""
        start = parse_start(to)
        with self._lock:
            places = [
                place
                for place in self.assignment
                if partition in (None, place.partition) and topic in (None, place.topic)
            ]
            if not places and (partition is not None or topic is not None):
                raise InvalidInput(
                    f"{topic or 'a topic'}/{partition} is not assigned to this member, which has "
                    f"{', '.join(map(str, self.assignment)) or 'nothing'} at present"
                )
            if self._current is not None and _place(self._current) in places:
                self._current = None
            self._drop(places)
            for place in places:
                self._positions[place] = self._done[place] = self._landing(place, start)

    def leave(self, *, failed: bool = False) -> None:
        """Commit and leave the group; others get the partitions at once.

        `failed`: the message that was handed out last is not done, and comes again.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._signal.fire()  # whoever waits for the next message gets an error, not silence
            if failed:
                self._current = None
            self._finish_current()
            if self._broker.closed or self._member.generation is None:
                return
            member_id, generation = self._member.member_id or "", self._member.generation
            with suppress(GroupError):  # it may be out already: silent for too long, or replaced
                self._commit_done()
                self._broker.streams.leave(self._group, member_id, generation)
            self._member.dropped()

    # The lock is held.

    def _join(self) -> None:
        self._forget(self._member.dropped())
        self._sent = {}
        sent_ns = self._now()
        standing = self._broker.streams.join(
            self._group,
            self._member.member_id,
            self._names.values(),
            session_timeout_ms=self._config.session_timeout_ms,
            assignor=self._config.assignor,
            wake=self._wake,
        )
        self._take_over(self._member.joined(standing, sent_ns))
        self._broker.plan(self._beat, self._member.heartbeat_due_ns)

    def _wake(self) -> None:
        self._woken = True
        self._signal.fire()

    def _keep_up(self) -> None:
        """Heartbeat if it is time, follow what the group says, and commit now and then."""
        if self._broker.closed or self._closed:
            raise BrokerClosed("the stream, or its broker, was closed")
        self._polled_ns = self._now()
        if self._woken or self._now() >= self._member.heartbeat_due_ns:
            self._heartbeat()
            self._broker.plan(self._beat, self._member.heartbeat_due_ns)
        if self._replaced is not None:
            raise self._replaced
        try:
            if self._member.revoking or self._member.to_confirm:
                self._give_back()
            every_ns = self._config.commit_every_ns
            if every_ns is not None and self._now() - self._committed_ns >= every_ns:
                self._commit_done()
        except GroupError:
            self._join()

    def _beat(self, now_ns: int) -> int | None:
        """A heartbeat beside the reader, who may be busy with a message."""
        with self._lock:
            stuck = now_ns - self._polled_ns > _POLL_EVERY_NS_MAX
            if self._closed or stuck or self._member.generation is None:
                return None
            if now_ns >= self._member.heartbeat_due_ns:
                self._heartbeat()
            return self._member.heartbeat_due_ns

    def _heartbeat(self) -> None:
        member = self._member
        sent_ns = self._now()
        self._woken = False  # before the call: what is new after it wakes us again
        try:
            standing = self._broker.streams.heartbeat(
                self._group, member.member_id or "", member.generation or 0
            )
        except StaleGeneration as exc:
            # Somebody else joined under this name. To take it back would go on for ever.
            self._replaced = exc
            self._forget(member.dropped())
        except GroupError:
            self._join()  # silent for too long, or the broker was restarted
        else:
            self._take_over(member.heard(standing, sent_ns))

    def _take_over(self, change: Change) -> None:
        self._forget(change.lost)
        committed = self._broker.streams.committed(self._group)
        for place, start in starts(committed, change.added, self._start).items():
            self._positions[place] = self._landing(place, start)

    def _give_back(self) -> None:
        """Commit and release what moves to another member."""
        member = self._member
        self._commit_done()
        self._forget(member.revoking)
        member.released(member.revoking)
        sent_ns = self._now()
        standing = self._broker.streams.revoked(
            self._group, member.member_id or "", member.generation or 0, member.to_confirm
        )
        self._take_over(member.heard(standing, sent_ns))

    def _forget(self, places: frozenset[TopicPartition]) -> None:
        for place in places:
            self._positions.pop(place, None)
            self._done.pop(place, None)
        self._drop(places)

    def _drop(self, places: Collection[TopicPartition]) -> None:
        """What was read ahead of these partitions."""
        if places:
            self._buffer = deque(m for m in self._buffer if _place(m) not in places)

    def _fetch(self) -> None:
        """Read on, from one partition after the other."""
        for place in self.assignment:
            offset = self._positions.get(place)
            if offset is None:
                continue
            name = self._names[place.topic]
            try:
                read = self._broker.read(name, place.partition, offset, _FETCH_BYTES)
            except OffsetOutOfRange:  # retention went by
                self._positions[place] = self._landing(place, AtOffset(offset))
                continue
            self._positions[place] = read.next_offset
            now_us = self._broker.clock.wall_ns() // 1000
            self._buffer.extend(
                StreamMessage(message, place)
                for message in read.messages()
                if message.expires_at_us is None or message.expires_at_us > now_us
            )

    def _finish_current(self) -> None:
        message, self._current = self._current, None
        if message is not None:
            place = _place(message)
            if place in self._positions:
                self._done[place] = message.offset + 1

    def _commit_done(self) -> Future[None] | None:
        self._committed_ns = self._now()
        held = self._member.owned | self._member.revoking
        offsets = {place: offset for place, offset in self._done.items() if place in held}
        if not offsets or offsets == self._sent or self._member.generation is None:
            return None
        future = self._broker.streams.commit(
            self._group, self._member.member_id or "", self._member.generation, offsets
        )
        self._sent = offsets
        return future

    def _landing(self, place: TopicPartition, start: Start) -> int:
        log = self._broker.topic(self._names[place.topic]).partition(place.partition).log
        if isinstance(start, AtTime):
            start = AtOffset(log.find(start.timestamp_us))
        landing = land(start, Bounds(log.start, log.end))
        if landing.missed:
            self.missed += landing.missed
            _logger.warning(
                "group %s: %d messages of %s were dropped by retention before they were read",
                self._group,
                landing.missed,
                place,
            )
        return landing.offset

    def _now(self) -> int:
        return self._broker.clock.monotonic_ns()


class Stream(StreamReader):
    """The messages of a group's member, for `for`."""

    next = blocking(StreamReader._next)
    commit = blocking(StreamReader._commit)

    def __iter__(self) -> Iterator[StreamMessage]:
        while True:
            message = self.next()
            if message is not None:
                yield message

    def close(self) -> None:
        self.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave(failed=exc is not None)


class AsyncStream(StreamReader):
    """The same for `async for`."""

    next = awaiting(StreamReader._next)
    commit = awaiting(StreamReader._commit)

    async def __aiter__(self) -> AsyncIterator[StreamMessage]:
        while True:
            message = await self.next()
            if message is not None:
                yield message

    async def close(self) -> None:
        self.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave(failed=exc is not None)


def _place(message: StreamMessage) -> TopicPartition:
    return TopicPartition(message.topic, message.partition)


def parse_start(position: Position) -> Start:
    if position == "earliest":
        return Earliest()
    if position == "latest":
        return Latest()
    if isinstance(position, datetime):
        return AtTime(parse_us(position))
    if isinstance(position, int) and not isinstance(position, bool) and position >= 0:
        return AtOffset(position)
    raise InvalidInput(
        f'a position is "earliest", "latest", an offset or a datetime; not {position!r}'
    )


def stream_topics(topics: str | Sequence[str], namespace: str) -> list[TopicName]:
    several = [topics] if isinstance(topics, str) else topics
    return [topic_name(topic, namespace) for topic in several]


def stream_config(
    commit_every: Duration | None,
    session_timeout: Duration,
    assignor: str,
    member_id: str | None,
) -> StreamConfig:
    return StreamConfig(
        commit_every_ns=None if commit_every is None else parse_ns(commit_every, "commit_every"),
        session_timeout_ms=parse_ms(session_timeout, "session_timeout"),
        assignor=assignor,
        member_id=member_id,
    )
