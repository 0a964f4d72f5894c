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
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from penstock.broker.broker import Broker, BrokerConfig
from penstock.broker.structs import Letter
from penstock.client.client import Client
from penstock.client.messages import ReceivedMessage
from penstock.client.results import Delayed, Published
from penstock.client.waiting import Steps
from penstock.client.waiting import run as drive
from penstock.client.waiting import run_async as drive_async
from penstock.clock import ManualClock
from penstock.durations import Duration, parse_ns
from penstock.errors import InvalidInput, TopicNotFound
from penstock.log.memory_engine import MemoryEngine
from penstock.worker.bodies import encode
from penstock.worker.handlers import Delivery
from penstock.worker.outcomes import Verdict, outcome_of

if TYPE_CHECKING:
    from penstock.worker.app import App, Consumer


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a handler was called with, and what became of it."""

    handler: str
    delivery: Delivery
    verdict: Verdict
    error: BaseException | None = None
    """What the handler raised, or why its body could not be made."""
    result: Any = None
    """What the handler returned."""


class _Call(NamedTuple):
    """A step: an async handler, on the loop of a runner or on the one that runs."""

    coroutine: Coroutine[Any, Any, Any]
    runner: asyncio.Runner | None

    def block(self) -> Any:
        assert self.runner is not None
        return self.runner.run(self.coroutine)

    def wait(self) -> Coroutine[Any, Any, Any]:
        return self.coroutine


class TestBench:
    """An app on a broker of its own. `ps` is a client of it, `clock` its clock."""

    __test__ = False  # for pytest: not a class of tests

    def __init__(self, app: App, topics: Mapping[str, Mapping[str, Any]]) -> None:
        self._app = app
        self.clock = ManualClock()
        self._broker = Broker(
            MemoryEngine(clock=self.clock),
            BrokerConfig(auto_create=True, free_bytes_min=0),
            housekeeping=False,
        )
        self.ps = Client(self._broker, app.namespace)
        for topic, settings in topics.items():
            self.ps.create_topic(topic, **settings)
        for consumer in app.consumers:
            self.ps.create_topic(consumer.topic, exist_ok=True)

    def send(self, topic: str, body: object, **options: Any) -> Published | Delayed:
        """Publish a body as a handler of its type reads it. Options as for `publish`."""
        return self.ps.publish(topic, encode(body), **options)

    def run(self, *, within: Duration = 0) -> list[Handled]:
        """Call handlers until nothing is left to do.

        `within`: let so much time pass, from one moment to the next at which something falls due
        (a retry, a delay), and do that, too.
        """
        if _is_on_a_loop():  # where a second one cannot run
            if any(each.handler.is_async for each in self._app.consumers):
                raise InvalidInput(
                    "run() cannot call async handlers where an event loop runs already, as in an "
                    "async test; use `await bench.run_async()`"
                )
            return drive(self._run(within, None))
        with asyncio.Runner() as runner:
            return drive(self._run(within, runner))

    async def run_async(self, *, within: Duration = 0) -> list[Handled]:
        """The same on an event loop that is there already, as in an async test."""
        return await drive_async(self._run(within, None))

    def pass_time(self, duration: Duration) -> None:
        """Move the clock on. What falls due meanwhile is ready for the next `run`."""
        self._move_to(self.clock.monotonic_ns() + parse_ns(duration, "duration"))

    def dead_letters(self, topic: str) -> list[Letter]:
        """What was given up, oldest first."""
        return list(self.ps.dead_letters(topic))

    def close(self) -> None:
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

    def _run(self, within: Duration, runner: asyncio.Runner | None) -> Steps[list[Handled]]:
        handled: list[Handled] = []
        end_ns = self.clock.monotonic_ns() + parse_ns(within, "within")
        while True:
            while found := (yield from self._run_ready(runner)):
                handled += found
            due_ns = self._broker.next_deadline()
            if due_ns is None or due_ns > end_ns or not self._move_to(due_ns):
                break
        self._move_to(end_ns)
        return handled

    def _run_ready(self, runner: asyncio.Runner | None) -> Steps[list[Handled]]:
        handled = []
        for consumer in self._app.consumers:
            try:
                retries_max = self.ps.describe_topic(consumer.topic).max_retries
                messages = self.ps.receive(
                    consumer.topic, consumer.group, 1000, consumer=self._app.name
                )
            except TopicNotFound:  # a handler has deleted it
                continue
            for message in messages:
                done = yield from self._handle(runner, consumer, message, retries_max)
                handled.append(done)
        return handled

    def _handle(
        self,
        runner: asyncio.Runner | None,
        consumer: Consumer,
        message: ReceivedMessage,
        retries_max: int | None,
    ) -> Steps[Handled]:
        handler = consumer.handler
        result, error = None, None
        try:
            result = handler.function(**handler.arguments(message))
            if handler.is_async:
                result = yield _Call(result, runner)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it decides what happens next
            error = exc
        outcome = outcome_of(error, message.delivery_count, consumer.policy, retries_max)
        match outcome.verdict:
            case "acked":
                message.ack()
            case "rejected":
                message.reject(outcome.error)
            case "retried":
                message.nack(delay=outcome.delay_s, error=outcome.error)
            case "given_up":
                message.nack(
                    delay=outcome.delay_s, error=outcome.error, retries=consumer.policy.retries
                )
        return Handled(
            handler=handler.name,
            delivery=Delivery.of(message),
            verdict=outcome.verdict,
            error=error,
            result=result,
        )

    def _move_to(self, moment_ns: int) -> int:
        """Let the clock come to a moment, and do what falls due then; how much that was."""
        while self.clock.monotonic_ns() < moment_ns:  # more than once where a float is not exact
            self.clock.advance(max(1, moment_ns - self.clock.monotonic_ns()) / 1e9)
        return self._broker.housekeep()


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
