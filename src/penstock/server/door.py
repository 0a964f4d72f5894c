"""What every request passes on its way in and out: the key, the limits, the handler, the log."""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import Future
from collections.abc import Callable
from types import CoroutineType
from typing import Any, TypeVar

import msgspec

from penstock.broker.broker import Broker
from penstock.config import ServerConfig
from penstock.errors import (
    BrokerClosed,
    Forbidden,
    InvalidInput,
    PenstockError,
    RequestTooLarge,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
)
from penstock.server.access_log import AccessLog
from penstock.server.http.answers import (
    JSON_TYPE,
    NOTHING,
    Answer,
    Request,
    json_answer,
    parse_query,
    problem_answer,
)
from penstock.server.http.counting import has_more_items, too_many
from penstock.server.http.endpoints import Call, Endpoint, Router
from penstock.server.http.openapi import describe
from penstock.server.http.routes import ENDPOINTS
from penstock.server.keys import Key, KeyStore
from penstock.server.limits import Limiter
from penstock.server.members import Members
from penstock.server.metrics import MeteredFiles, Requests
from penstock.server.polls import Polls

_logger = logging.getLogger("penstock.server")

T = TypeVar("T")

_UNKNOWN = "unknown"
_COUNTED_BYTES = 1 << 20  # what a shorter body holds takes little memory, whatever it is
_LATER = (Future, CoroutineType)
_OUR_PATHS = {each.path.encode() for each in ENDPOINTS if not each.in_namespaces}


class Door:
    """Answers requests. All of it runs on the event loop; what takes long goes to a thread."""

    def __init__(
        self,
        broker: Broker,
        config: ServerConfig,
        keys: KeyStore,
        *,
        log: AccessLog | None = None,
        files: MeteredFiles | None = None,
    ) -> None:
        """`files`: the disk of the broker, if it keeps a watch on itself."""
        self.broker = broker
        self.config = config
        self.keys = keys
        self.files = files
        self.polls = Polls(broker, config.polls_max)
        self.members = Members(broker)
        self.requests = Requests()
        self.stopping = False
        self._description: bytes | None = None
        self._log = log or AccessLog(None)
        self._router = Router(ENDPOINTS)
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {}
        self._per_key = _limiter(config.rate_per_key, config.burst_per_key)
        self._per_address = _limiter(config.rate_per_address, config.burst_per_address)

    def handle(self, request: Request, send: Callable[[Answer], None]) -> Future[Any] | None:
        """Give `send` the answer: at once where that is possible.

        Otherwise, what it waits for is returned; who cancels that does not want it any more.
        """
        began = time.perf_counter()
        endpoint: Endpoint | None = None
        key: Key | None = None
        try:
            if self._per_address is not None:
                _take(self._per_address, request.client)
            endpoint, parameters = self._router.find(request.method, request.path)
            if endpoint.right is not None:
                key = self._authenticate(request)
                if key is not None:  # who is not let in is known from here on, and in the log
                    self._admit(key, endpoint, parameters)
            call = Call(self, request, parameters, key)
            self._parse(call, endpoint)
            outcome = endpoint.handler(call)
            if isinstance(outcome, _LATER):
                return self._later(outcome, request, endpoint, key, began, send)
            answer = _answer(outcome, endpoint)
        except Exception as exc:  # noqa: BLE001 - it becomes the answer
            answer = self._failed(exc, request)
        self._finish(request, endpoint, key, began, answer, send)
        return None

    def knows(self, url: bytes) -> bool:
        """Whether an address is one of ours, be there something or not."""
        return url.startswith(b"/v1/") or url.partition(b"?")[0] in _OUR_PATHS

    def refused(self, error: PenstockError, method: str, path: str, client: str) -> Answer:
        """The answer to a request that did not get as far as to be one."""
        request = Request(method, path, "", {}, b"", client)
        answer = problem_answer(error, path)
        self._finish(request, None, None, time.perf_counter(), answer)
        return answer

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        """Do something that takes long, or waits for the disk, beside the event loop."""
        return await asyncio.to_thread(work, *args)

    def description(self) -> bytes:
        """The OpenAPI description of all that can be asked."""
        if self._description is None:
            self._description = describe(ENDPOINTS)
        return self._description

    def stop(self) -> None:
        """Answer every poll, and take no new ones."""
        self.stopping = True
        self.polls.stop()

    def close(self) -> None:
        self._log.close()

    def _later(
        self,
        outcome: Future[Any] | CoroutineType[Any, Any, Any],
        request: Request,
        endpoint: Endpoint,
        key: Key | None,
        began: float,
        send: Callable[[Answer], None],
    ) -> Future[Any]:
        # A poll is a future, so that nothing but a callback waits for it: many can be open.
        if not isinstance(outcome, Future):
            outcome = asyncio.get_running_loop().create_task(outcome)

        def done(outcome: Future[Any]) -> None:
            if outcome.cancelled():
                return
            try:
                answer = _answer(outcome.result(), endpoint)
            except Exception as exc:  # noqa: BLE001 - it becomes the answer
                answer = self._failed(exc, request)
            self._finish(request, endpoint, key, began, answer, send)

        outcome.add_done_callback(done)
        return outcome

    def _authenticate(self, request: Request) -> Key | None:
        token = request.headers.get(b"authorization")
        if token is None and self.keys.empty:
            return None
        scheme, _, secret = (token or b"").decode("latin-1").partition(" ")
        key = self.keys.authenticate(secret.strip()) if scheme.lower() == "bearer" else None
        if key is None:
            if self.keys.empty:
                return None  # a key where none is asked for does no harm
            raise Unauthenticated(
                "this API key is not known, or was revoked"
                if token
                else "an API key is needed: send it as 'Authorization: Bearer <key>'"
            )
        return key

    def _admit(self, key: Key, endpoint: Endpoint, parameters: dict[str, str]) -> None:
        """Unless it asks too often, or for what it is not good for."""
        if self._per_key is not None:
            _take(self._per_key, key.id)
        namespace = parameters.get("namespace", "default") if endpoint.in_namespaces else None
        if endpoint.right is not None and not key.may(endpoint.right, namespace):
            where = f" in namespace {namespace!r}" if namespace is not None else ""
            raise Forbidden(
                f"key {key.name!r} ({key.role}) does not allow to {endpoint.right}{where}"
            )

    def _parse(self, call: Call, endpoint: Endpoint) -> None:
        request = call.request
        if request.query:
            call.options = _options(endpoint, parse_query(request.query))
        else:
            call.options = endpoint.no_options
        if endpoint.body is None:
            return
        kind = request.content_type()
        if kind in endpoint.other_bodies:
            return
        if kind != JSON_TYPE and not (endpoint.body_optional and not request.body):
            # Also without any: no web page of a stranger may send what its browser lets through.
            allowed = ", ".join((JSON_TYPE, *endpoint.other_bodies))
            what = f"is {kind:.100}" if kind else "has no Content-Type"
            raise UnsupportedMediaType(f"the body {what}; understood: {allowed}")
        body = request.body
        if not body and endpoint.body_optional:
            body = b"{}"
        if len(body) > _COUNTED_BYTES and endpoint.items_in:
            limit = self.config.batch_messages_max
            if has_more_items(body, limit, endpoint.items_in):
                raise too_many(limit)
        decoder = self._decoders.get(endpoint.name)
        if decoder is None:
            decoder = self._decoders[endpoint.name] = msgspec.json.Decoder(endpoint.body)
        try:
            call.body = decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise InvalidInput(f"body: {exc}") from None

    def _failed(self, exc: Exception, request: Request) -> Answer:
        if isinstance(exc, BrokerClosed):
            exc = Unavailable("the server is stopping")
        if isinstance(exc, PenstockError):
            return problem_answer(exc, request.path)
        if isinstance(exc, MemoryError):
            return problem_answer(RequestTooLarge("there is no memory for this"), request.path)
        _logger.error("%s %s failed", request.method, request.path, exc_info=exc)
        return problem_answer(
            PenstockError("something went wrong inside the server; its log says what"),
            request.path,
        )

    def _finish(
        self,
        request: Request,
        endpoint: Endpoint | None,
        key: Key | None,
        began: float,
        answer: Answer,
        send: Callable[[Answer], None] | None = None,
    ) -> None:
        took_s = time.perf_counter() - began
        if send is not None:
            send(answer)  # the rest while it is on its way
        name = endpoint.name if endpoint is not None else _UNKNOWN
        self.requests.count(name, answer.status, took_s, len(request.body), len(answer.body))
        self._log.write(request, answer, took_s, key)


def _answer(outcome: Any, endpoint: Endpoint) -> Answer:
    if type(outcome) is Answer:
        return outcome
    return NOTHING if outcome is None else json_answer(outcome, endpoint.status)


def _options(endpoint: Endpoint, given: dict[str, str]) -> Any:
    if endpoint.options is None:
        unknown = next(iter(given), "")
        raise InvalidInput(f"query: {unknown!r:.100} is no parameter of {endpoint.path}")
    try:
        return msgspec.convert(given, endpoint.options, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"query: {exc}") from None


def _limiter(per_second: float | None, burst: int) -> Limiter | None:
    return None if per_second is None else Limiter(per_second, burst)


def _take(limiter: Limiter, who: str) -> None:
    wait_s = limiter.take(who)
    if wait_s is not None:
        raise TooManyRequests(wait_s)
