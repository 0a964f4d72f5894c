"""The app: which function is called with the messages of which topic."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from penstock.delivery.backoff import Backoff
from penstock.durations import Duration, parse_ms, parse_ns
from penstock.errors import InvalidInput
from penstock.model.names import group_name, topic_name
from penstock.worker.handlers import Handler
from penstock.worker.outcomes import Policy
from penstock.worker.runner import Runner
from penstock.worker.testing import TestBench

F = TypeVar("F", bound=Callable[..., Any])

CONCURRENCY_MAX = 10_000


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A handler, and how it is to be fed."""

    topic: str
    group: str
    handler: Handler
    concurrency: int = 1
    visibility_ns: int | None = None
    policy: Policy = Policy()

    @property
    def name(self) -> str:
        return f"{self.handler.name} ({self.topic}, {self.group})"


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

        `auto_create` makes topics that are not there, with default settings. `name` is what dead
        letters say about who had them last.
        """
        topic_name("any", namespace)
        self.target = target
        self.namespace = namespace
        self.api_key = api_key
        self.tls_ca = tls_ca
        self.auto_create = auto_create
        self.name = name
        self.consumers: list[Consumer] = []

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        concurrency: int = 1,
        retries: int | None = None,
        backoff: tuple[Duration, float, Duration] | None = None,
        visibility: Duration | None = None,
    ) -> Callable[[F], F]:
        """Call the function below with each message of a topic, as a member of a queue group.

        `concurrency`: how many at the same time; each synchronous call has a thread. `retries`
        and `backoff`: before a message that fails is given up; by default as the topic says.
        `visibility`: how long a message is ours if the worker dies; while a handler runs its
        message is held for longer by itself.
        """
        topic_name(topic, self.namespace)
        if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidInput(f"concurrency is {concurrency!r}; from 1 to {CONCURRENCY_MAX}")
        if retries is not None and (type(retries) is not int or retries < 0):
            raise InvalidInput(f"retries is {retries!r}; it must be a whole number from 0 up")
        policy = Policy(retries=retries, backoff=None if backoff is None else _backoff(backoff))

        def register(function: F) -> F:
            self.consumers.append(
                Consumer(
                    topic=topic,
                    group=group_name(group),
                    handler=Handler(function),
                    concurrency=concurrency,
                    visibility_ns=None
                    if visibility is None
                    else parse_ns(visibility, "visibility"),
                    policy=policy,
                )
            )
            return function

        return register

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

    def test(self, topics: Mapping[str, Mapping[str, Any]] | None = None) -> TestBench:
        """A broker in memory, with a clock that you move, to try the handlers on.

        `topics`: settings of topics, by name; the others have the defaults.
        """
        return TestBench(self, topics or {})


def _backoff(value: tuple[Duration, float, Duration]) -> Backoff:
    try:
        first, factor, longest = value
    except (TypeError, ValueError):
        raise InvalidInput(
            f"backoff is {value!r}; give the first delay, a factor and the longest delay, "
            'such as ("1s", 2.0, "60s")'
        ) from None
    return Backoff(
        first_ms=parse_ms(first, "backoff"),
        factor=float(factor),
        max_ms=parse_ms(longest, "backoff"),
    )
