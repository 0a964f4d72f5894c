"""An app at work: connects, makes its topics, runs its hooks, and feeds its handlers."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.clock import SystemClock
from penstock.errors import InvalidInput
from penstock.worker.calls import Caller, executor_of
from penstock.worker.connection import AppConnection
from penstock.worker.feeder import Feeder
from penstock.worker.hooks import run_hooks
from penstock.worker.signals import listening
from penstock.worker.streams import StreamFeeder

if TYPE_CHECKING:
    from penstock.worker.app import App
    from penstock.worker.consumers import Consumer

_logger = logging.getLogger("penstock.worker")


class Runner:
    def __init__(self, app: App, grace_ns: int) -> None:
        self._app = app
        self._grace_s = grace_ns / 1e9
        self._exit: BaseException | None = None
        self._stopping = asyncio.Event()

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Raises what a handler raised to end the worker, when all the rest is done."""
        app = self._app
        self._stopping, hurrying = stop or asyncio.Event(), asyncio.Event()
        with listening(self._stopping, hurrying):
            connection = await AppConnection.open(app)
            app.publisher = connection.publisher
            try:
                await self._make_topics(connection)
                for schedule in app.schedules:
                    await connection.ps.schedule(**schedule.arguments())
                checked = [await self._checked(connection, each) for each in app.subscriptions()]
                await run_hooks(app.startup_hooks, connection.clients, connection.publisher)
                try:
                    await self._work(connection, checked, hurrying)
                finally:
                    hooks = app.shutdown_hooks[::-1]
                    await run_hooks(hooks, connection.clients, connection.publisher)
            finally:
                app.publisher = None
                await connection.close()
        _logger.info("stopped")
        if self._exit is not None:
            raise self._exit

    async def _make_topics(self, connection: AppConnection) -> None:
        for topic, settings in self._app.topics.items():
            await connection.ps.create_topic(topic, exist_ok=True, **settings)
        if self._app.auto_create:
            for consumer in self._app.consumers:
                await connection.ps.create_topic(consumer.topic, exist_ok=True)

    async def _checked(self, connection: AppConnection, consumers: Sequence[Consumer]) -> _Checked:
        """Look at the topic first, so that what cannot work says so before it begins."""
        settings = await connection.ps.describe_topic(consumers[0].topic)
        allowed = settings.max_retries
        for consumer in consumers:
            retries = consumer.policy.retries
            if consumer.stream is None and allowed is not None and (retries or 0) > allowed:
                raise InvalidInput(
                    f"{consumer.name} wants {retries} retries, but topic {consumer.topic} gives "
                    f"up after {allowed}; alter its max_retries, or ask for fewer"
                )
            if consumer.results is not None:
                await connection.ps.describe_topic(consumer.results.topic)
            _check_processes(consumer)
        own = [c.visibility_ns for c in consumers if c.visibility_ns is not None]
        return consumers, own[0] if own else settings.visibility_ms * 1_000_000, allowed

    async def _work(
        self, connection: AppConnection, checked: Sequence[_Checked], hurrying: asyncio.Event
    ) -> None:
        feeders = [feeder for each in checked for feeder in self._feeders(connection, *each)]
        names = dict.fromkeys(feeder.name for feeder in feeders)
        _logger.info("at work on %s: %s", self._app.target, ", ".join(names))
        try:
            await _until_any_ends([f.feed() for f in feeders], self._stopping)
        finally:
            _logger.info("stopping: %d messages in hand", sum(map(len, feeders)))
            await asyncio.gather(*(f.finish(self._grace_s, hurrying) for f in feeders))

    def _feeders(
        self,
        connection: AppConnection,
        consumers: Sequence[Consumer],
        visibility_ns: int,
        retries_max: int | None,
    ) -> list[Feeder | StreamFeeder]:
        def caller(consumer: Consumer) -> Caller:
            return Caller(
                consumer,
                self._app.middlewares,
                connection.clients,
                connection.publisher,
                executor_of(consumer),
            )

        ps, clock = connection.ps, SystemClock()
        if consumers[0].stream is not None:
            return [
                StreamFeeder(ps, caller(consumers[0]), clock, self._end_with)
                for _ in range(consumers[0].concurrency)
            ]
        callers = [caller(consumer) for consumer in consumers]
        name = self._app.name
        return [Feeder(ps, callers, visibility_ns, retries_max, name, clock, self._end_with)]

    def _end_with(self, error: BaseException) -> None:
        self._exit = self._exit or error
        self._stopping.set()


_Checked = tuple[Sequence["Consumer"], int, int | None]
"""Consumers of one topic and group, their visibility, and the retries that the topic allows."""


def _check_processes(consumer: Consumer) -> None:
    if consumer.processes is not None:
        try:
            pickle.dumps(consumer.handler.function)
        except (pickle.PicklingError, AttributeError, TypeError):
            raise InvalidInput(
                f"{consumer.handler.name} works in processes of its own, which import it by its "
                "name: define it at the top of a module"
            ) from None


async def _until_any_ends(work: Sequence[Any], stopping: asyncio.Event) -> None:
    """Run all until the event is set, or one fails, which is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    stop = asyncio.create_task(stopping.wait())
    try:
        done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (*tasks, stop):
            task.cancel()
        await asyncio.gather(*tasks, stop, return_exceptions=True)
