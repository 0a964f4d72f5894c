"""A call of a handler: decoded, wrapped in the middleware, limited, and with what it publishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from penstock.worker.awaiting import awaited
from penstock.worker.consumers import Consumer
from penstock.worker.handlers import Clients
from penstock.worker.jobs import Job
from penstock.worker.middleware import Middleware, wrapped
from penstock.worker.processes import Processes
from penstock.worker.publishing import OUTBOX, Outbox, Publisher, StagedOutbox
from penstock.worker.spans import spans_of
from penstock.worker.threads import Threads


class Executor(Protocol):
    """Where a function runs. A cancelled call is over for its caller."""

    async def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any: ...

    def close(self) -> None: ...


class OnLoop:
    """On the event loop: functions that are async, or in a test."""

    async def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        return await awaited(function(**arguments))

    def close(self) -> None: ...


class OnThreads:
    """On threads: functions that block. What they return may have to be awaited all the same."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = Threads(count, name)

    async def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        return await awaited(await self._threads.call(partial(function, **arguments)))

    def close(self) -> None:
        self._threads.close()


def executor_of(consumer: Consumer) -> Executor:
    if consumer.processes is not None:
        return Processes(consumer.processes, consumer.handler.name)
    if consumer.handler.is_async:
        return OnLoop()
    return OnThreads(consumer.concurrency, consumer.handler.name)


class Caller:
    """Calls the handler of one consumer."""

    def __init__(
        self,
        consumer: Consumer,
        middleware: Sequence[Middleware],
        clients: Clients,
        publisher: Publisher,
        executor: Executor,
        *,
        cancels: bool = True,
    ) -> None:
        """`cancels`: whether a call ends when its time is up; in a test it is only found late."""
        self.consumer = consumer
        self.publisher = publisher
        self._clients = clients
        self._executor = executor
        self._inline = isinstance(executor, OnLoop)
        self._time_limit = consumer.time_limit if cancels else None
        own = spans_of(consumer)
        self._call_next = wrapped([*own, *middleware], self._call_handler)

    async def call(self, job: Job) -> Any:
        """What the handler returns; raises what it raises, or why it was not called."""
        outbox = Outbox(self.publisher)
        if self.consumer.transactional:
            outbox = job.staged = StagedOutbox(self.publisher)
        token = OUTBOX.set(outbox)
        try:
            work = self._call_next(job)
            if self._time_limit is None:
                result = await work
            else:
                result = await self._time_limit.run(work)
            if self.consumer.results is not None:
                self.consumer.results.publish(outbox, job, result)
            if outbox.pending:
                await outbox.flush()
            return result
        finally:
            OUTBOX.reset(token)

    def close(self) -> None:
        self._executor.close()

    async def _call_handler(self, job: Job) -> Any:
        handler = self.consumer.handler
        arguments = handler.arguments(job, self._clients)
        if len(job.errors) == len(job.messages):
            return None  # a batch of which nothing can be decoded
        if self._inline:  # what `OnLoop` does, without another coroutine
            result = handler.function(**arguments)
            while hasattr(result, "__await__"):
                result = await result
            return result
        return await self._executor.call(handler.function, arguments)
