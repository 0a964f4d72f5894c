"""Calls as the HTTP requests that a client makes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from penstock.model.calls import ROUTES, Call
from penstock.model.names import DEFAULT_NAMESPACE, TopicName

CALL_HEADER = "penstock-call"
"""On what is published: the id of the call, so that one that is made again is stored once."""
OWNER_HEADER = "penstock-owner"
"""On answers of a cluster that came from another node: its URL, where the next may go at once."""

_PARAMETER = re.compile(r"\{(\w+)\}")


class HttpCall(NamedTuple):
    """A call as it goes over the wire."""

    method: str
    path: str
    """With its query."""
    body: Any
    """What the JSON body says; None: there is none."""


def base_path(namespace: str | None) -> str:
    if namespace is None or namespace == DEFAULT_NAMESPACE:
        return "/v1"
    return f"/v1/namespaces/{quote(namespace, safe='')}"


def topic_path(name: TopicName) -> str:
    return f"{base_path(name.namespace)}/topics/{name.topic}"


def query(options: Mapping[str, Any]) -> str:
    """What goes behind a path; nothing where there are no options."""
    return "?" + urlencode(options) if options else ""


def http_call(call: Call[Any]) -> HttpCall:
    """The request that asks for a call. What has its default value is left out."""
    route = ROUTES[type(call)]
    shape = shape_of(type(call))
    path = _PARAMETER.sub(lambda m: quote(str(getattr(call, m[1])), safe=""), route.path)
    rest = {
        name: value
        for name, default in shape.others.items()
        if (value := getattr(call, name)) != default
    }
    body = None
    if route.body is not None:
        body = getattr(call, route.body)
    elif route.method not in ("GET", "DELETE"):
        body, rest = rest, {}
    options = {name: _text(value) for name, value in rest.items() if value is not None}
    namespace: str | None = call.namespace
    if route.path.startswith("/namespaces"):
        base = "/v1"
    elif shape.everywhere and namespace == DEFAULT_NAMESPACE:
        base = f"/v1/namespaces/{DEFAULT_NAMESPACE}"  # without it, all of them would be meant
    else:
        base = base_path(namespace)
    return HttpCall(route.method, base + path + query(options), body)


class Shape(NamedTuple):
    """The fields of a call, and where they go."""

    others: dict[str, Any]
    """Fields that are not in the path, with their default values."""
    everywhere: bool
    """Whether it is about all namespaces unless one is named."""


@cache
def shape_of(kind: type[Call[Any]]) -> Shape:
    route = ROUTES[kind]
    in_path = {"namespace", *_PARAMETER.findall(route.path)}
    others = {
        field.name: field.default_factory()
        if field.default_factory is not msgspec.NODEFAULT
        else field.default
        for field in msgspec.structs.fields(kind)
        if field.name not in in_path and field.name != route.body
    }
    (namespace,) = [f for f in msgspec.structs.fields(kind) if f.name == "namespace"]
    return Shape(others, namespace.default is None)


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
