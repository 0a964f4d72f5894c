"""How a client of a server asks for things: the paths, the bodies, the answers."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.client.base import BaseClient, P, S
from penstock.client.remote.asking import JSON, Asking, decode, encode
from penstock.client.remote.http import Request
from penstock.client.remote.paths import base_path, topic_path
from penstock.client.waiting import Steps

T = TypeVar("T")


class Calls(BaseClient[S, P]):
    def __init__(self, asking: Asking, namespace: str) -> None:
        super().__init__(namespace)
        self._asking = asking
        self._base = base_path(namespace)

    def _topic(self, topic: str) -> str:
        return topic_path(self._name(topic))

    def _get(self, path: str, kind: type[T]) -> Steps[T]:
        return decode((yield from self._asking.ask(Request("GET", path))), kind)

    def _tell(
        self, method: str, path: str, body: Any, kind: type[T], *, repeat: bool = True
    ) -> Steps[T]:
        request = Request(method, path, encode(body), JSON, repeatable=repeat)
        return decode((yield from self._asking.ask(request)), kind)
