"""Trying the handlers of an app, without a server, without a disk, and without waiting.

    with app.test() as bench:
        bench.send("orders", Order(...))
        (done,) = bench.run()
        assert done.verdict == "acked"

The broker is the real one, in memory; its clock stands still unless the test moves it. Handlers
are called one after the other, in the order of delivery, so that every run is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from penstock.broker.api import Api
from penstock.broker.broker import Broker, BrokerConfig
from penstock.client.client import AsyncClient, Client
from penstock.client.connect import traced
from penstock.client.local_link import LocalLink
from penstock.clock import ManualClock
from penstock.durations import Duration, parse_ns
from penstock.errors import InvalidInput
from penstock.log.memory_engine import MemoryEngine
from penstock.model.dead_letters import Letter
from penstock.model.published import Delayed, Published
from penstock.model.topic_options import TopicOptions
from penstock.worker.bench_feeders import BenchFeeder, BenchStream, Handled
from penstock.worker.bodies import MessageOptions, to_publish
from penstock.worker.calls import Caller, OnLoop
from penstock.worker.handlers import Clients, Handler
from penstock.worker.hooks import Hook, run_hooks
from penstock.worker.publishing import BlockingPublisher

if TYPE_CHECKING:
    from penstock.worker.app import App
    from penstock.worker.consumers import Consumer

T = TypeVar("T")


class TestBench:
    """An app on a broker of its own. `ps` is a client of it, `clock` its clock."""

    __test__ = False  # for pytest: not a class of tests

    def __init__(self, app: App, topics: Mapping[str, TopicOptions]) -> None:
        self._app = app
        self.clock = ManualClock()
        self._broker = Broker(
            MemoryEngine(clock=self.clock),
            BrokerConfig(auto_create=True, free_bytes_min=0),
            housekeeping=False,
        )
        link = traced(LocalLink(Api(self._broker)))
        self.ps = Client(link, app.namespace)
        self._clients = Clients(AsyncClient(link, app.namespace), self.ps)
        self._publisher = BlockingPublisher(app, self.ps)
        self._runner: asyncio.Runner | None = None
        self._started = False
        for topic in dict.fromkeys([*topics, *app.topics]):
            self.ps.create_topic(topic, **(app.topics.get(topic, {}) | topics.get(topic, {})))
        for consumer in app.consumers:
            self.ps.create_topic(consumer.topic, exist_ok=True)
        for schedule in app.schedules:
            self.ps.schedule(**schedule.arguments())
        self._feeders = [self._feeder(consumers) for consumers in app.subscriptions()]

    def send(
        self, topic: str, body: object, **options: Unpack[MessageOptions]
    ) -> Published | Delayed:
        """Publish a body as a handler of its type reads it. Options as for `publish`."""
        sent: Published | Delayed = self.ps.publish(topic, **to_publish(body, options))
        return sent

    def run(self, *, within: Duration = 0) -> list[Handled]:
        """Call handlers until nothing is left to do.

        `within`: also move the clock by up to this time, from one thing that falls due (a retry, a
        delay, a rate limit) to the next, and do these, too.

        Raises what a handler raises to end the worker.
        """
        return self._drive(self._run(within))

    async def run_async(self, *, within: Duration = 0) -> list[Handled]:
        """The same on an event loop that is there already, as in an async test."""
        return await self._run(within)

    def pass_time(self, duration: Duration) -> None:
        """Move the clock on. What falls due meanwhile is ready for the next `run`."""
        self._move_to(self.clock.monotonic_ns() + parse_ns(duration, "duration"))

    def dead_letters(self, topic: str) -> list[Letter]:
        """What was given up, oldest first."""
        return list(self.ps.dead_letters(topic))

    def close(self) -> None:
        """Call the shutdown hooks, if those of the startup were called."""
        try:
            if self._started and self._app.shutdown_hooks:
                self._drive(self._stop())
        finally:
            if self._runner is not None:
                self._runner.close()
            self.ps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._stop()
        finally:
            self.ps.close()

    def _feeder(self, consumers: Sequence[Consumer]) -> BenchFeeder | BenchStream:
        callers = [
            Caller(
                consumer,
                self._app.middlewares,
                self._clients,
                self._publisher,
                OnLoop(),
                cancels=consumer.handler.is_async,
            )
            for consumer in consumers
        ]
        if consumers[0].stream is not None:
            return BenchStream(self.ps, self.clock, callers[0])
        return BenchFeeder(self.ps, self.clock, callers, self._app.name)

    async def _run(self, within: Duration) -> list[Handled]:
        await self._start()
        handled: list[Handled] = []
        end_ns = self.clock.monotonic_ns() + parse_ns(within, "within")
        while True:
            while found := [each for f in self._feeders for each in await f.run_ready()]:
                handled += found
            if not self._move_on(end_ns):
                break
        self._move_to(end_ns)
        return handled

    def _move_on(self, end_ns: int) -> bool:
        """To the next moment at which there is something to do, if it comes before the end."""
        own = [f.next_ns for f in self._feeders if f.next_ns is not None]
        due_ns = self._broker.next_deadline()
        if own and min(own) <= end_ns and (due_ns is None or min(own) <= due_ns):
            self._move_to(min(own))
            return True
        return due_ns is not None and due_ns <= end_ns and self._move_to(due_ns) > 0

    def _move_to(self, moment_ns: int) -> int:
        """Let the clock come to a moment, and do what falls due then; how much that was."""
        for feeder in self._feeders:
            feeder.hold(max(0, moment_ns - self.clock.monotonic_ns()))
        while self.clock.monotonic_ns() < moment_ns:  # more than once where a float is not exact
            self.clock.advance(max(1, moment_ns - self.clock.monotonic_ns()) / 1e9)
        return self._broker.housekeep()

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            hooks = self._app.startup_hooks
            await run_hooks(hooks, self._clients, self._publisher, threads=False)

    async def _stop(self) -> None:
        if self._started:
            self._started = False
            hooks = self._app.shutdown_hooks[::-1]
            await run_hooks(hooks, self._clients, self._publisher, threads=False)

    def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        """On an event loop of the bench; or where one runs already, step by step."""
        if not _is_on_a_loop():
            self._runner = self._runner or asyncio.Runner()
            return self._runner.run(work)
        users: list[Handler | Hook] = [
            *(c.handler for c in self._app.consumers),
            *self._app.startup_hooks,
        ]
        if any(user.is_async for user in [*users, *self._app.shutdown_hooks]):
            work.close()
            raise InvalidInput(_ON_A_LOOP)
        try:
            work.send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        work.close()  # it waits for something, although no handler is async
        raise InvalidInput(_ON_A_LOOP)


_ON_A_LOOP = (
    "run() cannot call async handlers where an event loop runs already, as in an async test; use "
    "`await bench.run_async()`, in `async with app.test() as bench` where hooks are async"
)


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
