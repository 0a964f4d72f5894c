"""What both clients are built on: a link, a namespace, and what is closed with them."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, Self, TypeVar
from weakref import WeakSet

from penstock.client.lease_keeping import LeaseThread
from penstock.client.link import Link
from penstock.client.waiting import run, run_async
from penstock.model.calls import Call
from penstock.model.names import topic_name

T = TypeVar("T")


class BaseClient:
    def __init__(self, link: Link, namespace: str) -> None:
        topic_name("any", namespace)
        self._link = link
        self._namespace = namespace
        self._name = partial(topic_name, namespace=namespace)
        self._streams: WeakSet[Any] = WeakSet()
        self._listeners: WeakSet[Any] = WeakSet()
        self._producers: WeakSet[Any] = WeakSet()
        """Those that are open. One that holds messages stays alive until it has sent them."""
        self._epochs: dict[str, int] = {}
        """Of the producers of transactions whose names this client holds."""
        self._transaction_leases = LeaseThread()

    @property
    def link(self) -> Link:
        """The way to the broker, for another client that shares it."""
        return self._link

    def in_namespace(self, namespace: str) -> Self:
        """The same broker, with the topics of another namespace. Close one of the two."""
        other = type(self)(self._link, namespace)
        other._streams, other._producers = self._streams, self._producers
        other._listeners = self._listeners
        return other

    def _topic(self, topic: str) -> dict[str, str]:
        """The fields of a call that name a topic."""
        name = self._name(topic)
        return {"namespace": name.namespace, "topic": name.topic}


class SyncCalls(BaseClient):
    """A client whose calls block."""

    _run = staticmethod(run)

    def _ask(self, call: Call[T]) -> T:
        return self._run(self._link.ask(call))


class AsyncCalls(BaseClient):
    """A client whose calls are awaited."""

    _run = staticmethod(run_async)

    def _ask(self, call: Call[T]) -> Coroutine[Any, Any, T]:
        return self._run(self._link.ask(call))
