"""A producer for an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from typing import Any, Self

from penstock.client.arguments import Value
from penstock.client.context_managers import AsyncClosing
from penstock.client.producer import (
    Append,
    ProducedTopic,
    Producer,
    ProducerConfig,
    ProducerIdentity,
)
from penstock.client.waiting import run_async
from penstock.config import LogConfig
from penstock.durations import Duration
from penstock.errors import InvalidInput, PenstockError
from penstock.log.appender import Sent
from penstock.log.base import Appendable
from penstock.record.batch import Batch


class AsyncProducer(AsyncClosing):
    """Sends messages to a topic; leaving the `async with` block flushes.

    It looks its topic up at the start of the block, or when it is awaited itself. Then `send`
    gathers and never waits: a task for each partition sends. To wait for it, await `flush`, or
    `result` of what `send` returned.
    """

    def __init__(self, topic: ProducedTopic, config: ProducerConfig) -> None:
        self._topic = topic
        self._config = config
        self._opening = asyncio.Lock()
        self._opened: Producer | None = None
        self._outboxes: list[_Outbox] = []

    def send(
        self,
        value: Value,
        key: bytes | str | None = None,
        *,
        headers: Mapping[str, bytes | str | None] | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        partition: int | None = None,
        delay: Duration | None = None,
        dedup_id: str | bytes | None = None,
        dedup_window: Duration | None = None,
    ) -> Sent:
        """Add a message to the batch of its partition. `result` of what returns is its offset."""
        # When it is open, `send` is that of the producer inside.
        raise InvalidInput(
            "this producer is not open yet: use `async with ps.producer(...) as out`, "
            "or `out = await ps.producer(...)`"
        )

    async def flush(self) -> None:
        """Send everything that is waiting. Raises the first error of a batch that failed."""
        if self._opened is not None:
            self._opened.flush()
        errors = [error for outbox in self._outboxes for error in await outbox.drained()]
        if errors:
            raise errors[0]

    async def result(self, sent: Sent) -> int:
        """The offset of a message, once it is as safe as `acks` says."""
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

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        async with self._opening:
            if self._opened is None:
                await run_async(self._topic.look_up())
                loop = asyncio.get_running_loop()
                self._opened = Producer(
                    self._topic,
                    self._config,
                    lambda number, append: self._outbox(number, append, loop),
                )
                self.send = self._opened.send  # type: ignore[method-assign] # the short way
        return self

    def _outbox(self, number: int, append: Append, loop: asyncio.AbstractEventLoop) -> Appendable:
        outbox = _Outbox(self, number, append, loop)
        self._outboxes.append(outbox)
        return outbox


class _Outbox:
    """The batches of one partition on their way, in order. Any thread may append."""

    def __init__(
        self,
        producer: AsyncProducer,
        number: int,
        append: Append,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.config: LogConfig = producer._topic.settings.log_config()
        self._producer = producer  # the client must find it as long as there is something to send
        self._append = append
        self._number = number
        self._loop = loop
        self._identity = ProducerIdentity()
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
            steps = self._append(batch, self._number, self._identity)
            try:
                appended = await run_async(steps)
                await asyncio.wrap_future(appended.durable)
            except PenstockError as exc:
                self._errors.append(exc)
                promised.durable.set_exception(exc)
            except BaseException as exc:
                self._identity.renew()  # the batch is given up, whatever became of it
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
