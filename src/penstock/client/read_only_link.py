"""A link that looks and changes nothing: what would write is refused before it is asked."""

from __future__ import annotations

from typing import Any, Never, TypeVar

from penstock.client.link import Link
from penstock.client.waiting import Steps
from penstock.errors import ReadOnly
from penstock.model.calls import ROUTES, Call
from penstock.model.groups import Fetch, Fetched
from penstock.model.names import TopicName

T = TypeVar("T")


class ReadOnlyLink(Link):
    def __init__(self, link: Link) -> None:
        self._link = link
        self.clock = link.clock
        self.retries = link.retries

    @property
    def closed(self) -> bool:
        return self._link.closed

    def close(self) -> None:
        self._link.close()

    def ask(self, call: Call[T], *, retry_for_s: float | None = None) -> Steps[T]:
        if ROUTES[type(call)].method != "GET":
            raise ReadOnly
        return self._link.ask(call, retry_for_s=retry_for_s)

    def fetch(self, namespace: str, wanted: Fetch) -> Steps[Fetched]:
        if wanted.group is not None:
            raise ReadOnly
        return self._link.fetch(namespace, wanted)

    def partitions(self, name: TopicName) -> int:
        return self._link.partitions(name)

    def _refuse(self, *args: Any, **kwargs: Any) -> Never:
        raise ReadOnly

    publish = delay = transact = receive = listen = ack = settle = _refuse
