"""Stream mode for a consumer: the messages of the partitions that the group gave it, in order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.names import TopicName, stream_group
from penstock.client.abandoned import LEAVER, Abandonable, weakly
from penstock.client.arguments import Position, parse_start
from penstock.client.faces import AsyncIterated, Iterated
from penstock.client.reading import Reading, StreamMessage, places_among
from penstock.client.waiting import Signal, Steps, Wait, awaiting, blocking, threaded
from penstock.errors import (
    BrokerClosed,
    GroupError,
    OffsetOutOfRange,
    StaleGeneration,
)
from penstock.group.assignment import TopicPartition
from penstock.group.member import Change, Member
from penstock.group.offsets import AtOffset, AtTime, Bounds, Start, land, starts

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

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


class StreamReader(Abandonable):
    """A member of a group, and what it reads. One thread or task reads; heartbeats go on aside.

    It joins when it is first asked for something.

    A message counts as done when the next one is asked for. What is done is committed every few
    seconds, when partitions are given back, and at close; or by `commit()` alone.
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
        # They are all of one namespace; that there is one is checked by who joins.
        self._group = stream_group(group, *{name.namespace for name in topics})
        self._start = parse_start(start)
        self._config = config
        self._member = Member(config.member_id)
        self._lock = threading.RLock()
        self._signal = Signal()
        self._woken = False
        self._reading = Reading(group)
        self._committed_ns = self._polled_ns = self._now()
        self._replaced: StaleGeneration | None = None
        # The broker calls these, and must not keep a reader that nobody uses any more.
        self._wake_weakly, self._beat_weakly = weakly(self._wake), weakly(self._beat)
        LEAVER.start()
        self._closed = False

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member reads at present."""
        return sorted(self._member.owned)

    @property
    def position(self) -> dict[TopicPartition, int]:
        """On each partition, the message that is handed out next."""
        with self._lock:
            return self._reading.next_offsets

    @property
    def missed(self) -> int:
        """Messages that retention dropped before this member could read them."""
        return self._reading.missed

    def _join_group(self) -> None:
        """Join, if that has not been done."""
        with self._lock:
            self._keep_up()

    def _next(self, timeout_s: float | None = None) -> Steps[StreamMessage | None]:
        """The next message; None when time is up."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._reading.finish_current()
                self._keep_up()
                if not self._reading.is_ahead:
                    self._fetch()
                if self._reading.is_ahead:
                    return self._reading.hand_out()
                signal = self._signal = Signal()
            stops = [self._broker.on_news(n, signal.fire) for n in self._names.values()]
            try:
                with self._lock:
                    self._fetch()  # what came before we were listening
                    beat_s = (self._member.heartbeat_due_ns - self._now()) / 1e9
                if self._reading.is_ahead or self._woken:
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
            self._reading.finish_current()
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

    def _seek(
        self, to: Position, *, partition: int | None = None, topic: str | None = None
    ) -> None:
        """Read on from elsewhere: on all partitions that are assigned, or on some of them."""
        start = parse_start(to)
        with self._lock:
            if self._member.generation is None:
                self._keep_up()
            places = places_among(self.assignment, partition, topic)
            landings = {place: self._landing(place, start) for place in places}
            self._reading.forget_all_of(places)
            for place, offset in landings.items():
                self._reading.move_to(place, offset)

    def _leave(self, *, failed: bool = False) -> None:
        """Commit, if it does so by itself, and leave the group; others get the partitions at once.

        `failed`: the message that was handed out last is not done, and comes again.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._signal.fire()  # whoever waits for the next message gets an error, not silence
            if failed:
                self._reading.fail_current()
            self._reading.finish_current()
            if self._broker.closed or self._member.generation is None:
                return
            member_id, generation = self._member.member_id or "", self._member.generation
            with suppress(GroupError):  # it may be out already: silent for too long, or replaced
                self._commit_by_itself()
                self._broker.streams.leave(self._group, member_id, generation)
            self._member.dropped()

    def _leave_aside(self) -> None:
        self._leave(failed=True)

    # The lock is held.

    def _join(self) -> None:
        self._reading.forget(self._member.dropped())
        self._reading.rejoined()
        sent_ns = self._now()
        standing = self._broker.streams.join(
            self._group,
            self._member.member_id,
            self._names.values(),
            session_timeout_ms=self._config.session_timeout_ms,
            assignor=self._config.assignor,
            wake=self._wake_weakly,
        )
        self._take_over(self._member.joined(standing, sent_ns))
        self._broker.plan(self._beat_weakly, self._member.heartbeat_due_ns)

    def _wake(self) -> None:
        self._woken = True
        self._signal.fire()

    def _keep_up(self) -> None:
        """Heartbeat if it is time, follow what the group says, and commit now and then."""
        if self._broker.closed or self._closed:
            raise BrokerClosed("the stream, or its broker, was closed")
        self._polled_ns = self._now()
        if self._replaced is not None:
            raise self._replaced
        if self._member.generation is None:
            self._join()
        elif self._woken or self._now() >= self._member.heartbeat_due_ns:
            self._heartbeat()
            if self._replaced is not None:
                raise self._replaced
            self._broker.plan(self._beat_weakly, self._member.heartbeat_due_ns)
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
            self._reading.forget(member.dropped())
        except GroupError:
            self._join()  # silent for too long, or the broker was restarted
        else:
            self._take_over(member.heard(standing, sent_ns))

    def _take_over(self, change: Change) -> None:
        self._reading.forget(change.lost)
        committed = self._broker.streams.committed(self._group)
        for place, start in starts(committed, change.added, self._start).items():
            self._reading.positions[place] = self._landing(place, start)

    def _give_back(self) -> None:
        """Commit and release what moves to another member."""
        member = self._member
        self._commit_by_itself()
        self._reading.forget(member.revoking)
        member.released(member.revoking)
        sent_ns = self._now()
        standing = self._broker.streams.revoked(
            self._group, member.member_id or "", member.generation or 0, member.to_confirm
        )
        self._take_over(member.heard(standing, sent_ns))

    def _fetch(self) -> None:
        """Read on, from one partition after the other."""
        for place in self.assignment:
            offset = self._reading.positions.get(place)
            if offset is None:
                continue
            name = self._names[place.topic]
            try:
                read = self._broker.read(name, place.partition, offset, _FETCH_BYTES)
            except OffsetOutOfRange:  # retention went by
                self._reading.positions[place] = self._landing(place, AtOffset(offset))
                continue
            self._reading.positions[place] = read.next_offset
            now_us = self._broker.clock.wall_ns() // 1000
            self._reading.read_ahead(
                StreamMessage(message, place)
                for message in read.messages()
                if message.expires_at_us is None or message.expires_at_us > now_us
            )

    def _commit_by_itself(self) -> None:
        """Before partitions go, unless commits are made by hand."""
        if self._config.commit_every_ns is not None:
            self._commit_done()

    def _commit_done(self) -> Future[None] | None:
        self._committed_ns = self._now()
        offsets = self._reading.to_commit(self._member.owned | self._member.revoking)
        if not offsets or self._member.generation is None:
            return None
        future = self._broker.streams.commit(
            self._group, self._member.member_id or "", self._member.generation, offsets
        )
        self._reading.committed(offsets)
        return future

    def _landing(self, place: TopicPartition, start: Start) -> int:
        log = self._broker.topic(self._names[place.topic]).partition(place.partition).log
        if isinstance(start, AtTime):
            start = AtOffset(log.find(start.timestamp_us))
        landing = land(start, Bounds(log.start, log.end))
        self._reading.passed_over(place, landing.missed)
        return landing.offset

    def _now(self) -> int:
        return self._broker.clock.monotonic_ns()


class Stream(Iterated, StreamReader):
    """The messages of a group's member, for `for`."""

    def __init__(
        self,
        broker: Broker,
        topics: Sequence[TopicName],
        group: str,
        start: Position,
        config: StreamConfig,
    ) -> None:
        super().__init__(broker, topics, group, start, config)
        self._join_group()

    next = blocking(StreamReader._next)
    commit = blocking(StreamReader._commit)
    seek = StreamReader._seek
    leave = StreamReader._leave


class AsyncStream(AsyncIterated, StreamReader):
    """The same for `async for`."""

    commit = awaiting(StreamReader._commit)
    seek = threaded(StreamReader._seek)
    leave = threaded(StreamReader._leave)
    _read = awaiting(StreamReader._next)
    _join_aside = threaded(StreamReader._join_group)

    async def next(self, timeout_s: float | None = None) -> StreamMessage | None:
        """The next message; None when time is up."""
        if self._member.generation is None:
            await self._enter()  # a join waits for the disk, and is not for the event loop
        return await self._read(timeout_s)

    async def _enter(self) -> None:
        try:
            await self._join_aside()
        except asyncio.CancelledError:
            # The thread goes on. Nobody would read what the group gives to this member.
            await asyncio.shield(self.leave(failed=True))
            raise
