"""Producers of a topic far away: batches are numbered, so that one sent twice is stored once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings
from penstock.client.producer import AsyncProducer, Producer, ProducerConfig, new_producer_id
from penstock.client.remote.asking import Asking, decode
from penstock.client.remote.http import Request
from penstock.client.remote.paths import topic_path
from penstock.client.waiting import Steps, run, run_async
from penstock.config import LogConfig
from penstock.errors import PenstockError, TopicNotFound
from penstock.log.appender import Sent
from penstock.log.base import DONE, Appendable, Appended
from penstock.record.batch import Batch
from penstock.wire.columns import ARROW_TYPE, encode_new
from penstock.model.messages import PublishedRuns
from penstock.model.topics import TopicView


class RemoteTopic:
    """What a producer knows of its topic, and how it sends to it. For threads and event loops."""

    def __init__(self, asking: Asking, name: TopicName, config: ProducerConfig) -> None:
        self._asking = asking
        self._name = name
        self._path = topic_path(name)
        self._retry_for_s = 0.0 if not config.retries else None
        self.settings = TopicSettings()
        """The true ones once they were asked for."""

    @property
    def partitions(self) -> int:
        return max(self.settings.partitions, self._asking.partitions.get(self._name, 0))

    def now_us(self) -> int:
        return self._asking.clock.wall_ns() // 1000

    def ask_settings(self) -> Steps[None]:
        try:
            reply = yield from self._asking.ask(Request("GET", self._path))
        except TopicNotFound:
            # Where topics are made on demand, publishing nothing makes this one.
            nothing = encode_new(Batch.build([]))
            yield from self._asking.ask(
                Request("POST", f"{self._path}/messages", nothing, ARROW_TYPE)
            )
            reply = yield from self._asking.ask(Request("GET", self._path))
        self.settings = decode(reply, TopicView).settings

    def ask_append(self, batch: Batch, number: int, identity: Identity) -> Steps[Appended]:
        """Store a batch in a partition, once."""
        path = (
            f"{self._path}/messages?partition={number}"
            f"&producer_id={identity.producer_id}&sequence={identity.sequence}"
        )
        request = Request("POST", path, encode_new(batch), ARROW_TYPE)
        try:
            reply = yield from self._asking.ask(request, retry_for_s=self._retry_for_s)
        except BaseException:
            identity.renew()
            raise
        identity.sequence += len(batch)
        answer = decode(reply, PublishedRuns)
        self._asking.partitions[self._name] = answer.partitions
        (run_,) = answer.runs
        return Appended(run_.offset, run_.offset + run_.count, 0, 0, DONE)


class Identity:
    """Who sends to a partition, and the number of the next message.

    A batch whose fate is not known ends it: were the next one sent under the same number, it could
    be taken for a copy of the lost one.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.producer_id = new_producer_id()
        self.sequence = 0


class RemoteProducer(Producer):
    """Sends from the thread that fills a batch, or from the one that sees to lingering."""

    def __init__(self, topic: RemoteTopic, config: ProducerConfig) -> None:
        self._remote = topic
        run(topic.ask_settings())
        self._gather(config)

    def _partitions(self) -> int:
        return self._remote.partitions

    def _sink(self, number: int) -> Appendable:
        return _Sink(self, number)

    def _now_us(self) -> int:
        return self._remote.now_us()


class _Sink:
    def __init__(self, producer: RemoteProducer, number: int) -> None:
        self.config: LogConfig = producer._remote.settings.log_config()
        self._producer = producer  # the client must find it as long as there is something to send
        self._topic = producer._remote
        self._number = number
        self._identity = Identity()

    def append(self, batch: Batch) -> Appended:
        return run(self._topic.ask_append(batch, self._number, self._identity))


class AsyncRemoteProducer(AsyncProducer):
    """Gathers on the event loop and sends from a task for each partition: `send` never waits."""

    def __init__(self, topic: RemoteTopic, config: ProducerConfig) -> None:
        super().__init__(self._look_up)
        self._topic = topic
        self._config = config
        self._lanes: list[_Lane] = []

    async def flush(self) -> None:
        """Send everything that is waiting. Raises the first error of a batch that failed."""
        if self._opened is not None:
            self._opened.flush()
        errors = [error for lane in self._lanes for error in await lane.drained()]
        if errors:
            raise errors[0]

    async def result(self, sent: Sent) -> int:
        """The offset of a message, once it is as safe as the topic's fsync policy says."""
        if self._opened is not None and not sent.pending.is_written:
            self._opened.flush()
        if sent.pending.appended is not None:
            # Shielded: the others of its batch wait for the same.
            await asyncio.shield(asyncio.wrap_future(sent.pending.appended.durable))
        return sent.result()

    async def close(self) -> None:
        try:
            await self.flush()
        finally:
            if self._opened is not None:
                self._opened.close()

    async def _look_up(self) -> Producer:
        await run_async(self._topic.ask_settings())
        loop = asyncio.get_running_loop()
        return _GatheringProducer(
            self._topic, self._config, lambda number: self._lane(number, loop)
        )

    def _lane(self, number: int, loop: asyncio.AbstractEventLoop) -> Appendable:
        lane = _Lane(self, number, loop)
        self._lanes.append(lane)
        return lane


class _GatheringProducer(Producer):
    def __init__(
        self,
        topic: RemoteTopic,
        config: ProducerConfig,
        lane: Callable[[int], Appendable],
    ) -> None:
        self._remote = topic
        self._lane = lane
        self._gather(config)

    def _partitions(self) -> int:
        return self._remote.partitions

    def _sink(self, number: int) -> Appendable:
        return self._lane(number)

    def _now_us(self) -> int:
        return self._remote.now_us()


class _Lane:
    """The batches of one partition on their way, in order. Any thread may append."""

    def __init__(
        self, producer: AsyncRemoteProducer, number: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.config: LogConfig = producer._topic.settings.log_config()
        self._producer = producer  # the client must find it as long as there is something to send
        self._topic = producer._topic
        self._number = number
        self._loop = loop
        self._identity = Identity()
        self._queue: deque[tuple[Batch, _Promised]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._errors: list[PenstockError] = []

    def append(self, batch: Batch) -> Any:
        promised = _Promised()
        self._queue.append((batch, promised))
        self._loop.call_soon_threadsafe(self._send_on)
        return promised

    async def drained(self) -> list[PenstockError]:
        """When all is sent: what went wrong since the last time."""
        self._send_on()
        if self._task is not None:
            await asyncio.shield(self._task)
        errors, self._errors = self._errors, []
        return errors

    def _send_on(self) -> None:
        if self._queue and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while self._queue:
            batch, promised = self._queue.popleft()
            steps = self._topic.ask_append(batch, self._number, self._identity)
            try:
                appended = await run_async(steps)
            except PenstockError as exc:
                self._errors.append(exc)
                promised.durable.set_exception(exc)
            except BaseException as exc:
                promised.durable.set_exception(exc)
                raise
            else:
                promised.offset = appended.first_offset
                promised.durable.set_result(None)


class _Promised:
    """An `Appended` whose offset is known when it is durable."""

    def __init__(self) -> None:
        self.durable: Future[None] = Future()
        self.offset = -1

    @property
    def first_offset(self) -> int:
        self.durable.result()
        return self.offset
