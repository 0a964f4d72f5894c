"""What both clients are built on: a link, a namespace, and what is closed with them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Self, TypeVar
from weakref import WeakSet

from penstock.client.link import Link
from penstock.client.waiting import Steps, run, run_async
from penstock.model.calls import Call
from penstock.model.names import TopicName, topic_name

T = TypeVar("T")


class BaseClient:
    def __init__(self, link: Link, namespace: str) -> None:
        topic_name("any", namespace)
        self._link = link
        self._namespace = namespace
        self._streams: WeakSet[Any] = WeakSet()
        self._producers: WeakSet[Any] = WeakSet()
        """Those that are open. One that holds messages stays alive until it has sent them."""

    @property
    def link(self) -> Link:
        """The way to the broker, for another client that shares it."""
        return self._link

    def in_namespace(self, namespace: str) -> Self:
        """The same broker, with the topics of another namespace. Close one of the two."""
        other = type(self)(self._link, namespace)
        other._streams, other._producers = self._streams, self._producers
        return other

    def _name(self, topic: str) -> TopicName:
        return topic_name(topic, self._namespace)

    def _topic(self, topic: str) -> dict[str, str]:
        """The fields of a call that name a topic."""
        name = topic_name(topic, self._namespace)
        return {"namespace": name.namespace, "topic": name.topic}


class SyncCalls(BaseClient):
    """A client whose calls block."""

    def _run(self, steps: Steps[T]) -> T:
        return run(steps)

    def _ask(self, call: Call[T]) -> T:
        return run(self._link.ask(call))


class AsyncCalls(BaseClient):
    """A client whose calls are awaited."""

    def _run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        return run_async(steps)

    def _ask(self, call: Call[T]) -> Coroutine[Any, Any, T]:
        return run_async(self._link.ask(call))
