"""What a call is, and the route by which it travels over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from penstock.model.names import DEFAULT_NAMESPACE

T_co = TypeVar("T_co", covariant=True)
CallType = TypeVar("CallType", bound="type[Call[Any]]")

Right: TypeAlias = Literal["publish", "consume", "look", "describe", "manage"]
Method: TypeAlias = Literal["GET", "PUT", "POST", "PATCH", "DELETE"]


class Route(NamedTuple):
    """How a call travels over HTTP, and which right a key needs for it.

    Fields in braces go into the path; of a GET or a DELETE all others go into the query, of the
    other methods into the JSON body.
    """

    method: Method
    path: str
    """Below `/v1`, or below `/v1/namespaces/{namespace}`."""
    right: Right
    tag: str
    answer: Any
    """The type of the answer; None: there is none."""
    status: int
    body: str | None
    """The field that is the body by itself; the others then go into the query."""
    repeatable: bool
    """Whether it does no harm, and gives the same answer, if it is carried out twice."""


class Call(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to a broker whose answer is a `T_co`."""

    namespace: str = DEFAULT_NAMESPACE


ROUTES: dict[type[Call[Any]], Route] = {}
"""Every call, in the order of the reference."""


def route(
    method: Method,
    path: str,
    right: Right,
    answer: Any = None,
    *,
    tag: str,
    status: int | None = None,
    body: str | None = None,
    repeatable: bool | None = None,
) -> Callable[[CallType], CallType]:
    """Decorates a call with its route. By default only a GET is repeatable."""

    def note(call: CallType) -> CallType:
        ROUTES[call] = Route(
            method,
            path,
            right,
            tag,
            answer,
            status or (204 if answer is None else 200),
            body,
            method == "GET" if repeatable is None else repeatable,
        )
        return call

    return note


class EverywhereCall(Call[T_co], Generic[T_co], frozen=True, kw_only=True):
    """A question about a namespace or, with None, about all."""

    namespace: str | None = None  # type: ignore[assignment]


class TopicCall(Call[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question about one topic."""

    topic: str
