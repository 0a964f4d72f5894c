"""Questions that are asked again and again for who watches: their answers, as they change.

Whatever the API answers to a GET can be watched: a client names the path, and is sent the answer
at first and later the fields that changed. Many who watch the same cost as much as one.
"""

from __future__ import annotations

import asyncio
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.durations import parse_ms
from penstock.errors import InvalidInput, NotFound
from penstock.model.calls import ROUTES
from penstock.server.http.answers import Request, decode
from penstock.server.http.endpoints import Endpoint, HttpRequest, options_of, paths
from penstock.server.http.routes.calls import ENDPOINTS
from penstock.server.keys import Key
from penstock.server.push.subscriptions import PushSubscription
from penstock.wire import push

if TYPE_CHECKING:
    from penstock.server.door import Door
    from penstock.server.push.socket import PushSocket

_EVERY_MS_MIN, _EVERY_MS_MAX = 1000, 60_000
_FRESH_S = 0.9
_REST = 4
"""A question that takes long is asked so many times more seldom than it takes."""


class WatchedPath(NamedTuple):
    """A path, as the endpoint that answers it."""

    endpoint: Endpoint
    parameters: dict[str, str]
    options: Any
    path: str


class AnswerSubscription(PushSubscription):
    """The answer to a GET: all of it at first, then the fields that have changed."""

    def __init__(self, socket: PushSocket, asked: push.Subscribe) -> None:
        super().__init__(socket, asked)
        assert asked.path is not None
        self._watched = find(asked.path)
        every_ms = parse_ms(asked.every, "every")
        if not _EVERY_MS_MIN <= every_ms <= _EVERY_MS_MAX:
            raise InvalidInput("every: from 1s to 60s")
        self._every_s = every_ms / 1000
        self._allow()

    async def push(self) -> None:
        known: dict[str, msgspec.Raw] = {}
        while True:
            if not self.socket.door.gate.may_go_on(self.socket.key):
                await asyncio.sleep(self._every_s)
                continue
            self._allow()
            answer = await self.socket.door.answers.ask(self._watched, self.socket.key)
            changed = {
                name: value for name, value in answer.fields.items() if _new(name, value, known)
            }
            gone = [name for name in known if name not in answer.fields]
            if changed or gone:
                await self.socket.say(push.Changed(id=self.id, fields=changed, gone=gone))
                known = answer.fields
            await asyncio.sleep(max(self._every_s, _REST * answer.took_s))

    def _allow(self) -> None:
        namespace = self._watched.parameters.get("namespace", "default")
        endpoint = self._watched.endpoint
        assert endpoint.right is not None
        self.socket.allow(endpoint.right, namespace if endpoint.in_namespaces else None)


class Answered(NamedTuple):
    fields: dict[str, msgspec.Raw]
    took_s: float
    at_s: float


class SharedAnswers:
    """Answers that are a moment old serve whoever asks the same. On the event loop."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._answers: dict[tuple[str, str | None], asyncio.Task[Answered]] = {}

    async def ask(self, watched: WatchedPath, key: Key | None) -> Answered:
        """The key may ask this; of two keys of one namespace, the answer is the same."""
        loop = asyncio.get_running_loop()
        about = watched.path, None if key is None else key.namespace
        task = self._answers.get(about)
        if task is None or (task.done() and _is_old(task, loop.time())):
            self._forget(loop.time())
            task = self._answers[about] = loop.create_task(self._answer(watched, key))
        return await asyncio.shield(task)

    async def _answer(self, watched: WatchedPath, key: Key | None) -> Answered:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        request = Request("GET", watched.path, "", {}, b"", "")
        call = HttpRequest(self._door, request, watched.parameters, key)
        call.options = watched.options
        answer = await watched.endpoint.handler(call)
        encoded = await self._door.aside(msgspec.json.encode, answer)
        fields = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
        return Answered(fields, loop.time() - began_s, loop.time())

    def _forget(self, now_s: float) -> None:
        old = [each for each, task in self._answers.items() if task.done() and _is_old(task, now_s)]
        for each in old:
            del self._answers[each]


def find(path: str) -> WatchedPath:
    """Raises NotFound for what cannot be watched, InvalidInput for a wrong query."""
    bare, _, query = path.partition("?")
    for pattern, endpoint in _watchable():
        found = pattern.fullmatch(bare)
        if found:
            parameters = {name: decode(value) for name, value in found.groupdict().items()}
            options = options_of(endpoint, query) if query else endpoint.no_options
            return WatchedPath(endpoint, parameters, options, path)
    raise NotFound(f"there is nothing to watch at {bare:.200}: give the path of a GET of the API")


@cache
def _watchable() -> list[tuple[re.Pattern[str], Endpoint]]:
    """Every call that is a GET; those without a parameter in a place before those with one."""
    assert len(ENDPOINTS) == len(ROUTES)
    found = [(path, each) for each in ENDPOINTS if each.method == "GET" for path in paths(each)]
    found.sort(key=lambda each: [part.startswith("{") for part in each[0].split("/")])
    return [
        (re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)), each) for path, each in found
    ]


def _new(name: str, value: msgspec.Raw, known: dict[str, msgspec.Raw]) -> bool:
    before = known.get(name)
    return before is None or bytes(before) != bytes(value)


def _is_old(task: asyncio.Task[Answered], now_s: float) -> bool:
    if task.cancelled() or task.exception() is not None:
        return True
    return task.result().at_s + _FRESH_S < now_s
