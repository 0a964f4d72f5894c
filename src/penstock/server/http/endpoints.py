"""The table of everything that can be asked over HTTP.

A handler is a function of an `HttpRequest`. It returns a struct, which becomes JSON; an `Answer`;
None, which is 204; or something to be awaited for one of these. The table is also what the OpenAPI
description is made from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.errors import InvalidInput
from penstock.model.names import DEFAULT_NAMESPACE, TopicName, group_name, topic_name
from penstock.server.gate import check_right
from penstock.server.http.answers import Request, parse_query
from penstock.server.keys import Key, Right

if TYPE_CHECKING:
    from penstock.broker.api import Api
    from penstock.server.door import Door

T = TypeVar("T")

V1 = "/v1"


class HttpRequest:
    """One request on its way through a handler."""

    __slots__ = ("_topic", "body", "door", "key", "options", "parameters", "request")

    def __init__(
        self, door: Door, request: Request, parameters: dict[str, str], key: Key | None
    ) -> None:
        self.door = door
        self.request = request
        self.parameters = parameters
        self.key = key
        """Whose request it is; None where no key is asked for."""
        self.options: Any = None
        """The query, as the struct that the endpoint names."""
        self.body: Any = None
        """The JSON body, as the struct that the endpoint names."""
        self._topic: TopicName | None = None

    @property
    def api(self) -> Api:
        return self.door.api

    @property
    def namespace(self) -> str:
        return self.parameters.get("namespace", DEFAULT_NAMESPACE)

    def namespace_or(self, default: str | None) -> str | None:
        """The namespace in the path. Where there is none: that which the key is good for, if the
        question is about all."""
        if default is None and self.key is not None:
            default = self.key.namespace
        return self.parameters.get("namespace", default)

    @property
    def topic(self) -> TopicName:
        topic = self._topic
        if topic is None:
            topic = self._topic = topic_name(self.parameters["topic"], self.namespace)
        return topic

    @property
    def group(self) -> str:
        return group_name(self.parameters["group"])

    def check(self, right: Right, namespace: str | None) -> None:
        """Raise Forbidden unless the key is good for this too."""
        check_right(self.key, right, namespace)

    def while_good(self, ready: Callable[[], T | None]) -> Callable[[], T | None]:
        """For a poll: raises Unauthenticated instead, once the key was revoked."""
        return self.door.gate.while_good(self.key, ready)


Outcome = Any
Handler = Callable[[HttpRequest], Outcome | Awaitable[Outcome]]
HandlerType = TypeVar("HandlerType", bound=Handler)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be asked."""

    name: str
    method: str
    path: str
    handler: Handler
    right: Right | None
    """What the key must be good for; None: anybody may ask."""
    tag: str
    summary: str
    options: type | None
    no_options: Any
    """What they are without a query."""
    body: Any
    """How the JSON body is parsed; None: there is none."""
    body_schema: Any
    """How it is described."""
    body_optional: bool
    items_in: int
    """How many objects lie at most around the lists of the body, which `batch_messages_max` bounds;
    0: there are none."""
    other_bodies: tuple[str, ...]
    """Media types that the handler understands beside JSON."""
    result: Any
    result_types: tuple[str, ...]
    """Media types of the answer beside JSON."""
    status: int
    in_namespaces: bool


class Table:
    """Endpoints, gathered by decorators."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self.endpoints: list[Endpoint] = []

    def add(
        self,
        method: str,
        path: str,
        *,
        right: Right | None,
        options: type | None = None,
        body: Any = None,
        body_schema: Any = None,
        body_optional: bool = False,
        items_in: int = 0,
        other_bodies: tuple[str, ...] = (),
        result: Any = None,
        result_types: tuple[str, ...] = (),
        status: int | None = None,
        in_namespaces: bool = True,
    ) -> Callable[[HandlerType], HandlerType]:
        def take(handler: HandlerType) -> HandlerType:
            self.endpoints.append(
                Endpoint(
                    name=handler.__name__,
                    method=method,
                    path=path,
                    handler=handler,
                    right=right,
                    tag=self._tag,
                    summary=" ".join((handler.__doc__ or "").split()),
                    options=options,
                    no_options=None if options is None else options(),
                    body=body,
                    body_schema=body_schema or body,
                    body_optional=body_optional,
                    items_in=items_in,
                    other_bodies=other_bodies,
                    result=result,
                    result_types=result_types,
                    status=status or (200 if result is not None or result_types else 204),
                    in_namespaces=in_namespaces,
                )
            )
            return handler

        return take


def options_of(endpoint: Endpoint, query: str) -> Any:
    """The query, as the struct that the endpoint names."""
    given = parse_query(query)
    if endpoint.options is None:
        unknown = next(iter(given), "")
        raise InvalidInput(f"query: {unknown!r:.100} is no parameter of {endpoint.path}")
    try:
        return msgspec.convert(given, endpoint.options, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"query: {exc}") from None


def paths(endpoint: Endpoint) -> list[str]:
    """Where an endpoint is: in the default namespace, and in each by its name."""
    if not endpoint.in_namespaces:
        return [endpoint.path]
    return [V1 + endpoint.path, V1 + "/namespaces/{namespace}" + endpoint.path]
