"""Every call of the API that is one question and one answer: an endpoint each, made from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.broker.api import METHODS
from penstock.errors import InvalidInput
from penstock.model.calls import (
    ROUTES,
    Call,
    DeleteGroup,
    Purge,
    Route,
    Seek,
    StreamGroupCall,
    Summarize,
)
from penstock.model.messages import MessagePage
from penstock.model.settings import SETTINGS_SCHEMA
from penstock.model.stats import Summary
from penstock.server.durable import durable
from penstock.server.http.answers import Answer
from penstock.server.http.endpoints import Endpoint, HttpRequest
from penstock.wire.columns import ARROW_TYPE, encode_read
from penstock.wire.json_forms import form_of, page_view

if TYPE_CHECKING:
    from penstock.broker.api import Api
    from penstock.model.names import TopicName
    from penstock.server.door import Door

_PARAMETER = re.compile(r"\{(\w+)\}")
_HOLD_GROUPS_UP = (DeleteGroup, Purge, Seek)


def endpoint_of(kind: type[Call[Any]]) -> Endpoint:
    route = ROUTES[kind]
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    of_all = route.path.startswith("/namespaces")  # no key of a namespace is good for it
    in_path = {"namespace", *_PARAMETER.findall(route.path)}
    others = {name: field for name, field in fields.items() if name not in in_path}
    options, body, body_schema = _shapes(kind, route, others)
    parameters = {name: field.type for name, field in fields.items() if name in in_path}
    return Endpoint(
        name=METHODS[kind],
        method=route.method,
        path=f"/v1{route.path}" if of_all else route.path,
        handler=_handler(kind, route, parameters),
        right=route.right,
        tag=route.tag,
        summary=" ".join((kind.__doc__ or "").split()),
        options=options,
        no_options=None if options is None else options(),
        body=body,
        body_schema=body_schema,
        body_optional=body is not None and not any(f.required for f in others.values()),
        items_in=0,
        other_bodies=(),
        result=None if route.answer is None else form_of(route.answer).kind,
        result_types=(ARROW_TYPE,) if route.answer is MessagePage else (),
        status=route.status,
        in_namespaces=not of_all,
    )


def _shapes(
    kind: type[Call[Any]], route: Route, others: dict[str, Any]
) -> tuple[type | None, Any, Any]:
    """How the query is parsed, and how the body is parsed and described."""
    if route.body is not None:
        rest = {name: field for name, field in others.items() if name != route.body}
        return _struct(kind, "Options", rest) if rest else None, dict[str, Any], SETTINGS_SCHEMA
    if route.method in ("GET", "DELETE"):
        return _struct(kind, "Options", others) if others else None, None, None
    # Also where it is empty: every POST has to say what it brings, which a web page cannot.
    body = _struct(kind, "", others)
    return None, body, body


def _struct(kind: type[Call[Any]], suffix: str, fields: dict[str, Any]) -> type:
    """Some fields of a call as a struct of their own."""
    described: list[Any] = []
    for name, field in fields.items():
        if field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
            described.append((name, field.type, default))
        elif field.default is not msgspec.NODEFAULT:
            described.append((name, field.type, field.default))
        else:
            described.append((name, field.type))
    return msgspec.defstruct(
        kind.__name__ + suffix,
        described,
        namespace={"described_by": kind, "__doc__": kind.__doc__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


def answer_form(kind: type[Call[Any]], answer: Any, door: Door) -> Any:
    """An answer as JSON has it."""
    if kind is Summarize:
        assert isinstance(answer, Summary)
        return msgspec.structs.replace(answer, polls=len(door.polls))
    return form_of(ROUTES[kind].answer).to(answer)


def _handler(
    kind: type[Call[Any]], route: Route, parameters: dict[str, Any]
) -> Callable[[HttpRequest], Awaitable[Any]]:
    run = runner(kind, route)

    async def handle(request: HttpRequest) -> Any:
        fields = {name: _parameter(request, name, type_) for name, type_ in parameters.items()}
        if request.options is not None:
            fields |= msgspec.structs.asdict(request.options)
        if route.body is not None:
            fields[route.body] = with_tuples(request.body)
        elif request.body is not None:
            fields |= msgspec.structs.asdict(request.body)
        answer = await run(request, kind(**fields))
        if isinstance(answer, Future):
            await durable(answer)
            return None
        if isinstance(answer, MessagePage) and request.request.accepts(ARROW_TYPE):
            return await request.door.read_aside(_as_arrow, answer)
        return answer_form(kind, answer, request.door)

    return handle


class Asking(Protocol):
    """Who asks, by whatever door."""

    @property
    def door(self) -> Door: ...
    @property
    def api(self) -> Api: ...
    @property
    def topic(self) -> TopicName: ...


def runner(kind: type[Call[Any]], route: Route) -> Callable[[Asking, Call[Any]], Awaitable[Any]]:
    """Beside the event loop, by the threads that are for such calls."""
    if issubclass(kind, StreamGroupCall):
        return lambda request, call: request.door.member_aside(request.api.ask, call)
    if issubclass(kind, _HOLD_GROUPS_UP):
        return lambda request, call: request.door.long_calls.run(
            request.topic, request.api.ask, call
        )
    if route.right == "look":
        return lambda request, call: request.door.read_aside(request.api.ask, call)
    return lambda request, call: request.door.aside(request.api.ask, call)


def _parameter(request: HttpRequest, name: str, type_: Any) -> Any:
    if name == "namespace":
        return request.namespace_or(None if type_ == (str | None) else "default")
    text = request.parameters[name]
    if type_ is str:
        return text
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidInput(f"{name} {text!r:.100} is not a whole number from 0 up")
    return int(text)


def with_tuples(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in (settings or {}).items()
    }


def _as_arrow(page: MessagePage) -> Answer:
    about = msgspec.json.encode(page_view(page, with_messages=False))
    return Answer(200, ARROW_TYPE, encode_read(page.batches, about))


ENDPOINTS = [endpoint_of(kind) for kind in ROUTES]
