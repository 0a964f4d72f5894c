"""Handlers: the functions of an app, and how messages become their arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, get_args, get_origin

import msgspec

from penstock.client.client import AsyncClient, Client
from penstock.errors import InvalidInput
from penstock.record.schema import Priority
from penstock.worker.bodies import Decode, Undecodable, decoder

if TYPE_CHECKING:
    from penstock.worker.jobs import Job


class Readable(Protocol):
    """What a handler may see of a message, of a queue or of a stream."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def id(self) -> str: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> dict[str, bytes | None]: ...
    @property
    def priority(self) -> Priority: ...
    @property
    def timestamp_us(self) -> int: ...
    @property
    def expires_at_us(self) -> int | None: ...


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
    """How often the group was given it, this time included; in a stream, the attempts."""

    @classmethod
    def of(cls, message: Readable, topic: str, group: str, delivery_count: int) -> Delivery:
        return cls(
            topic=topic,
            group=group,
            partition=message.partition,
            offset=message.offset,
            id=message.id,
            value=message.value,
            key=message.key,
            headers=message.headers,
            priority=message.priority,
            timestamp_us=message.timestamp_us,
            expires_at_us=message.expires_at_us,
            delivery_count=delivery_count,
        )


class Clients(NamedTuple):
    """What handlers and hooks get that ask for a client."""

    on_loop: AsyncClient | None
    blocking: Client | None
    """None where no handler asks for one."""


class Handler:
    """A function, and which of its parameters gets what.

    | parameter | gets |
    |---|---|
    | annotated with `Delivery`, or named `delivery` | the delivery |
    | annotated with `Client` or `AsyncClient`, or named `ps` | the app's client |
    | the first of the others | the body |

    With `batch`, body and delivery are lists, and so are their annotations.
    """

    def __init__(self, function: Callable[..., Any], *, batch: bool = False) -> None:
        self.function = function
        self.name = _name(function)
        self.is_async = is_async(function)
        self.batch = batch
        self.body_type: Any = bytes
        self._body_name: str | None = None
        self._delivery_name: str | None = None
        self._client_name: str | None = None
        self._decode: Decode = decoder(bytes)
        if _is_generator(function):
            raise InvalidInput(f"{self.name} yields; a handler returns, or raises")
        self._read_signature()

    @property
    def wants_client(self) -> bool:
        return self._client_name is not None

    def arguments(self, job: Job, clients: Clients) -> dict[str, Any]:
        """What the function is called with; Undecodable if the body is not of its type.

        In a batch, messages that cannot be decoded are left out, and noted in `job.errors`.
        """
        found: dict[str, Any] = {}
        if self.batch:
            bodies = self._bodies(job)
            if self._body_name is not None:
                found[self._body_name] = bodies
            if self._delivery_name is not None:
                found[self._delivery_name] = job.deliveries
        else:
            if self._body_name is not None:
                found[self._body_name] = self._decode(job.messages[0].value)
            if self._delivery_name is not None:
                found[self._delivery_name] = job.deliveries[0]
        if self._client_name is not None:
            found[self._client_name] = clients.on_loop if self.is_async else clients.blocking
        return found

    def _bodies(self, job: Job) -> list[Any]:
        bodies = []
        if self._body_name is not None:
            for message in job.messages:
                try:
                    bodies.append(self._decode(message.value))
                except Undecodable as exc:
                    job.fail(message, exc)
        return bodies

    def _read_signature(self) -> None:
        for parameter in signature_of(self.function, self.name):
            kind = parameter.annotation
            named = parameter.kind != parameter.POSITIONAL_ONLY
            if named and (_is_delivery(kind) or parameter.name in ("delivery", "deliveries")):
                self._delivery_name = parameter.name
            elif named and (kind in (Client, AsyncClient) or parameter.name == "ps"):
                check_client(kind, self.is_async, self.name)
                self._client_name = parameter.name
            elif named and self._body_name is None:
                self._body_name = parameter.name
                self.body_type = self._type_of_body(kind if kind is not parameter.empty else None)
                self._decode = decoder(self.body_type)
            elif parameter.default is parameter.empty:
                raise InvalidInput(
                    f"{self.name} takes {parameter.name!r}, too; a handler takes a body, and a "
                    "penstock.Delivery if it wants to know more"
                )

    def _type_of_body(self, kind: Any) -> Any:
        if not self.batch:
            return bytes if kind is None else kind
        if kind is None or kind is list:
            return bytes
        if get_origin(kind) not in (list, Sequence):
            raise InvalidInput(
                f"{self.name} takes batches, so its body is a list, such as list[Order]"
            )
        (member,) = get_args(kind)
        return member


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call gives something to await, as far as one can see, behind decorators too.

    What a call returns is awaited if it is awaitable, whatever this says.
    """
    return any(inspect.iscoroutinefunction(each) for each in _layers(function))


def signature_of(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """The parameters, with their annotations, without *args and **kwargs."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as exc:
        raise InvalidInput(
            f"{name}: {exc}; a type in an annotation has to be known in its module"
        ) from None
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in signature.parameters.values() if each.kind not in several]


def check_client(kind: Any, is_async: bool, name: str) -> None:
    """A function that blocks gets a client that blocks, one that does not gets one to await."""
    if kind is (Client if is_async else AsyncClient):
        wanted = "AsyncClient, as it is async" if is_async else "Client, as it is not async"
        raise InvalidInput(f"{name} takes a {kind.__name__}, but it gets a {wanted}")


def _layers(function: Callable[..., Any]) -> list[Any]:
    """A callable, what it wraps, and what its calls end in."""
    layers: list[Any] = []
    each: Any = function
    while each is not None and len(layers) < 100:
        layers.append(each)
        inner = each.func if isinstance(each, functools.partial) else None
        each = inner or getattr(each, "__wrapped__", None)
    if not inspect.isroutine(layers[-1]):
        layers.append(type(layers[-1]).__call__)
    return layers


def _is_generator(function: Callable[..., Any]) -> bool:
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in _layers(function)
    )


def _is_delivery(kind: Any) -> bool:
    return kind is Delivery or get_args(kind) == (Delivery,)


def _name(function: Callable[..., Any]) -> str:
    for layer in _layers(function):
        if name := getattr(layer, "__qualname__", None):
            return str(name).removesuffix(".__call__")
    return repr(function)
