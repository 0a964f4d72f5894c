"""Handlers: the functions of an app, and how a message becomes their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidInput
from penstock.record.schema import Priority
from penstock.worker.bodies import Decode, decoder

if TYPE_CHECKING:
    from penstock.client.received import Held


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a handler sees it. The app settles it when the handler is through."""

    topic: str
    group: str
    partition: int
    offset: int
    id: str
    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes | None]
    priority: Priority
    timestamp_us: int
    expires_at_us: int | None
    delivery_count: int
    """How often the group was given it, this time included."""

    @classmethod
    def of(cls, held: Held) -> Delivery:
        return cls(
            topic=held.topic,
            group=held.group,
            partition=held.partition,
            offset=held.offset,
            id=held.id,
            value=held.value,
            key=held.key,
            headers=held.headers,
            priority=held.priority,
            timestamp_us=held.timestamp_us,
            expires_at_us=held.expires_at_us,
            delivery_count=held.delivery_count,
        )


class Handler:
    """A function that takes a body, a delivery, or both in any order.

    The parameter that is annotated with `Delivery`, or named `delivery`, gets the delivery.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.is_async = inspect.iscoroutinefunction(function)
        self._body_name: str | None = None
        self._delivery_name: str | None = None
        self._decode: Decode = decoder(bytes)
        self._read_signature()

    def arguments(self, held: Held) -> dict[str, Any]:
        """What the function is called with; Undecodable if the body is not of its type."""
        found: dict[str, Any] = {}
        if self._body_name is not None:
            found[self._body_name] = self._decode(held.value)
        if self._delivery_name is not None:
            found[self._delivery_name] = Delivery.of(held)
        return found

    def _read_signature(self) -> None:
        try:
            signature = inspect.signature(self.function, eval_str=True)
        except NameError as exc:
            raise InvalidInput(
                f"{self.name}: {exc}; a type in an annotation has to be known in its module"
            ) from None
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            named = parameter.kind != parameter.POSITIONAL_ONLY
            if named and (parameter.annotation is Delivery or parameter.name == "delivery"):
                self._delivery_name = parameter.name
            elif named and self._body_name is None:
                self._body_name = parameter.name
                kind = parameter.annotation
                self._decode = decoder(bytes if kind is parameter.empty else kind)
            elif parameter.default is parameter.empty:
                raise InvalidInput(
                    f"{self.name} takes {parameter.name!r}, too; a handler takes a body, and a "
                    "penstock.Delivery if it wants to know more"
                )
