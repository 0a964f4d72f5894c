"""The app: which function is called with the messages of which topic."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, get_args

from penstock.durations import Duration, Moment, parse_ns
from penstock.errors import InvalidInput
from penstock.model.names import group_name, topic_name
from penstock.schedule.definition import CatchUpPolicy, Overlap
from penstock.worker import middleware
from penstock.worker.bodies import MessageOptions
from penstock.worker.consumers import (
    BATCH_MAX,
    CONCURRENCY_MAX,
    Consumer,
    ConsumerOptions,
    StreamOptions,
    TraceMode,
    check_together,
    failure_policy,
    optional_ns,
    whole_number,
)
from penstock.worker.handlers import Delivery, Handler
from penstock.worker.hooks import Hook
from penstock.worker.middleware import Middleware
from penstock.worker.publishing import OUTBOX, Publication, Publisher
from penstock.worker.rate_limit import parse_limits
from penstock.worker.results import (
    STORE_SETTINGS,
    ResultTopic,
    find_result,
    find_result_async,
)
from penstock.worker.runner import Runner
from penstock.worker.schedules import AppSchedule, topic_of_schedule
from penstock.worker.testing import TestBench
from penstock.worker.time_limit import TimeLimit

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient, Client
    from penstock.model.positions import Position
    from penstock.model.topic_options import TopicOptions

F = TypeVar("F", bound=Callable[..., Any])


class App:
    """Functions that work on messages. `run` runs them; `test` tries them without a server."""

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        namespace: str = "default",
        api_key: str | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        auto_create: bool = False,
        name: str = "worker",
    ) -> None:
        """`target`: a data folder or the URL of a server, which `penstock worker` may also give.
        `api_key` and `tls_ca` are for a server, as in `penstock.connect`.

        `auto_create` makes topics that are not there, with default settings; `topic` makes them
        with others. `name` is what dead letters say about who had them last.
        """
        topic_name("any", namespace)
        self.target = target
        self.namespace = namespace
        self.api_key = api_key
        self.tls_ca = tls_ca
        self.auto_create = auto_create
        self.name = name
        self.topics: dict[str, TopicOptions] = {}
        self.consumers: list[Consumer] = []
        self.schedules: list[AppSchedule] = []
        self.middlewares: list[Middleware] = []
        self.startup_hooks: list[Hook] = []
        self.shutdown_hooks: list[Hook] = []
        self.publisher: Publisher | None = None
        """While it runs."""

    # What belongs to it.

    def topic(self, name: str, **settings: Unpack[TopicOptions]) -> str:
        """Have a topic made with these settings, as of `create_topic`, when the app starts.

        Returns its name, so that it can stand where a topic is named.
        """
        topic_name(name, self.namespace)
        self.topics[name] = self.topics.get(name, {}) | settings
        return name

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        concurrency: int = 1,
        retries: int | None = None,
        backoff: tuple[Duration, float, Duration] | None = None,
        visibility: Duration | None = None,
        time_limit: Duration | None = None,
        rate_limit: str | Sequence[str] | None = None,
        filter: Callable[[Delivery], bool] | None = None,
        batch: int | None = None,
        processes: int | None = None,
        results: str | bool = False,
        transactional: bool = False,
        trace: TraceMode = "parent",
    ) -> Callable[[F], F]:
        """Call the function below with each message of a topic, as a member of a queue group.

        `concurrency`: how many at the same time; each synchronous call has a thread, or with
        `processes` so many processes are what they run in. `retries` and `backoff`: before a
        message that fails is given up; by default as the topic says. `visibility`: how long a
        message is ours if the worker dies; while a handler runs its message is held for longer by
        itself, until `time_limit`.

        `rate_limit`: "100/s", "10/m", "5/s per key", or several. `filter`: which messages, where
        several handlers share a topic and group. `batch`: lists of so many at most. `results`:
        the topic for what is returned, or True for the store that `result` reads.
        `transactional`: what the handler publishes and returns is stored together with the ack of
        its message, or not at all. `trace`: where OpenTelemetry is installed, the span of a handler
        of one message is below that of its publish; with "link" it is a trace of its own.
        """
        if trace not in get_args(TraceMode):
            raise InvalidInput(
                f"trace is {trace!r:.100}; allowed: {', '.join(get_args(TraceMode))}"
            )
        whole_number(concurrency, "concurrency", 1, CONCURRENCY_MAX)
        if batch is not None:
            whole_number(batch, "batch", 1, BATCH_MAX)
        if processes is not None:
            whole_number(processes, "processes", 1, CONCURRENCY_MAX)
            if concurrency not in (1, processes):
                raise InvalidInput("each process works on one message: give only processes")

        def register(function: F) -> F:
            self._add(
                Consumer(
                    topic=topic,
                    group=group_name(group),
                    handler=Handler(function, batch=batch is not None),
                    concurrency=processes or concurrency,
                    visibility_ns=optional_ns(visibility, "visibility"),
                    policy=failure_policy(retries, backoff),
                    time_limit=TimeLimit.parse(time_limit),
                    rate_limits=parse_limits(rate_limit),
                    filter=filter,
                    batch=batch,
                    processes=processes,
                    results=self._result_topic(results),
                    transactional=transactional,
                    trace=trace,
                )
            )
            return function

        return register

    def stream(
        self,
        topic: str,
        *,
        group: str,
        start: Position = "earliest",
        commit_every: Duration = "5s",
        concurrency: int = 1,
        retries: int | None = None,
        backoff: tuple[Duration, float, Duration] | None = None,
        time_limit: Duration | None = None,
        rate_limit: str | Sequence[str] | None = None,
    ) -> Callable[[F], F]:
        """Call the function below with the messages of a topic in order, as a stream group.

        `start` is for partitions on which the group has committed nothing. `concurrency`: how many
        members, which share the partitions. A message that fails is tried again before the next;
        when `retries` are used up, the worker ends. A Reject passes it over.
        """
        whole_number(concurrency, "concurrency", 1, CONCURRENCY_MAX)

        def register(function: F) -> F:
            self._add(
                Consumer(
                    topic=topic,
                    group=group_name(group),
                    handler=Handler(function),
                    concurrency=concurrency,
                    policy=failure_policy(retries, backoff),
                    time_limit=TimeLimit.parse(time_limit),
                    rate_limits=parse_limits(rate_limit),
                    stream=StreamOptions(start=start, commit_every=commit_every),
                )
            )
            return function

        return register

    def schedule(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        at: Moment | None = None,
        timezone: str = "UTC",
        start: Moment | None = None,
        end: Moment | None = None,
        jitter: Duration | None = None,
        overlap: Overlap = "allow",
        catch_up: Duration = "1d",
        catch_up_policy: CatchUpPolicy = "last",
        topic: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[F], F]:
        """Call the function below at each fire of a schedule: on one worker, however many run.

        The app makes or changes the schedule when it starts, as `Client.schedule` does. Its
        messages have no value and go to the topic `schedules.<name>`, which is made, too, unless
        `topic` names another; the function reads them as the group `name`. It takes nothing, or a
        `Delivery`. `options` are those of `consumer`: retries, backoff, time_limit and so on.
        """
        chosen = topic_of_schedule(name, topic, self.namespace)
        if any(schedule.name == name for schedule in self.schedules):
            raise InvalidInput(f"this app has a schedule {name!r} already")

        def register(function: F) -> F:
            self.consumer(chosen, group=name, **options)(function)
            self.topics.setdefault(chosen, {})
            self.schedules.append(
                AppSchedule(
                    name=name,
                    topic=chosen,
                    cron=cron,
                    every=every,
                    at=at,
                    timezone=timezone,
                    start=start,
                    end=end,
                    jitter=jitter,
                    overlap=overlap,
                    catch_up=catch_up,
                    catch_up_policy=catch_up_policy,
                )
            )
            return function

        return register

    def middleware(self, function: F) -> F:
        """Wrap every call of a handler in `async def function(job, call_next)`; the first one that
        is added is the outermost."""
        middleware.check(function)
        self.middlewares.append(function)
        return function

    def on_startup(self, function: F) -> F:
        """Call it when the topics are there, before the first message."""
        self.startup_hooks.append(Hook(function))
        return function

    def on_shutdown(self, function: F) -> F:
        """Call it after the last message; those that were added last come first."""
        self.shutdown_hooks.append(Hook(function))
        return function

    # What it does.

    def publish(self, topic: str, body: object, **options: Unpack[MessageOptions]) -> Publication:
        """Publish from a handler or a hook: `await` it where that is async.

        The body is encoded as handlers of its type read it; options are those of
        `Client.publish`. A message is acked only when what its handler published is stored.
        """
        outbox = OUTBOX.get()
        if outbox is not None and outbox.owner is self:
            return outbox.publish(topic, body, options)
        if self.publisher is None:
            raise InvalidInput(
                "app.publish is for handlers and hooks while the app runs; elsewhere use "
                "penstock.connect(...)"
            )
        return self.publisher.publish(topic, body, options)

    def result(self, ps: Client, message_id: str, kind: Any = bytes, *, wait: Duration = 0) -> Any:
        """What the handler of a message returned, as a `kind`, if it has `results=True`.

        Raises TimeoutError if there is none in time, and HandlerFailed if it was given up.
        """
        return find_result(ps, self._store, message_id, kind, wait=wait)

    async def result_async(
        self, ps: AsyncClient, message_id: str, kind: Any = bytes, *, wait: Duration = 0
    ) -> Any:
        """The same on an event loop."""
        return await find_result_async(ps, self._store, message_id, kind, wait=wait)

    def run(self, *, grace: Duration = "30s") -> None:
        """Work until SIGTERM or SIGINT; then finish what is under way, for `grace` at most.

        What is not finished by then is given back, and comes again at once.
        """
        asyncio.run(self.run_async(grace=grace))

    async def run_async(
        self, *, stop: asyncio.Event | None = None, grace: Duration = "30s"
    ) -> None:
        """The same on an event loop that is there already, until `stop` is set or a signal."""
        if self.target is None:
            raise InvalidInput(
                "this app does not say where it works: App(target), or `penstock worker` with "
                "--data or --url"
            )
        if not self.consumers:
            raise InvalidInput("this app has no consumers; add one with @app.consumer(...)")
        await Runner(self, parse_ns(grace, "grace")).run(stop)

    def test(self, topics: Mapping[str, TopicOptions] | None = None) -> TestBench:
        """A broker in memory, with a clock that you move, to try the handlers on.

        `topics`: settings of topics, by name, beside those of the app; the others have the
        defaults.
        """
        return TestBench(self, topics or {})

    def subscriptions(self) -> list[list[Consumer]]:
        """The consumers, those of one topic and group together."""
        together: dict[tuple[str, str], list[Consumer]] = {}
        for consumer in self.consumers:
            together.setdefault((consumer.topic, consumer.group), []).append(consumer)
        return list(together.values())

    @property
    def _store(self) -> str:
        return f"{self.name}.results"

    def _result_topic(self, results: str | bool) -> ResultTopic | None:
        if results is False:
            return None
        if results is True:
            self.topics.setdefault(self._store, STORE_SETTINGS)
            return ResultTopic(self._store, is_store=True)
        topic_name(results, self.namespace)
        return ResultTopic(results, is_store=False)

    def _add(self, consumer: Consumer) -> None:
        topic_name(consumer.topic, self.namespace)
        consumer.check()
        check_together([*self.consumers, consumer])
        self.consumers.append(consumer)
