"""What a handler is called with, made from the bytes of a message, and the other way round.

By the annotation of the parameter: `bytes` (also without any) as it is, `str` as UTF-8, a pydantic
model by pydantic, and everything else that msgspec knows (structs, dataclasses, TypedDicts, dicts,
lists, numbers) from JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, TypeAlias, TypedDict, Union, get_args, get_origin

import msgspec

from penstock.durations import Duration, Moment
from penstock.errors import InvalidInput
from penstock.record.batch import HeaderMap, Payload
from penstock.record.json_values import encode_json, with_content_type

Decode: TypeAlias = Callable[[bytes | None], Any]


class Undecodable(Exception):
    """The bytes of a message are not what the handler takes. No retry would help."""


def decoder(kind: Any) -> Decode:
    """How to make a body of this type."""
    optional, kind = _without_none(kind)
    decode = _decoder(kind)

    def body(value: bytes | None) -> Any:
        if value is None:
            if optional:
                return None
            value = b""
        return decode(value)

    return body


class MessageOptions(TypedDict, total=False):
    """What `Client.publish` takes beside topic and value."""

    key: Payload
    headers: HeaderMap | None
    priority: int | str
    ttl: Duration | None
    delay: Duration | None
    deliver_at: Moment | None
    partition: int | None
    dedup_id: str | bytes | None
    dedup_window: Duration | None


def to_publish(body: object, options: MessageOptions) -> dict[str, Any]:
    """The arguments of a publish whose value is a body, as a handler of its type reads it."""
    if body is None or isinstance(body, bytes | str):
        return {**options, "value": body}
    # Now: the handler may change it before it is published.
    headers = with_content_type(options.get("headers"))
    return {**options, "value": encode_json(body), "headers": headers}


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    if kind is bytes or kind is Any:
        return bytes
    if kind is str:
        return _text
    if hasattr(kind, "model_validate_json"):
        return _guarded(kind.model_validate_json, kind)
    try:
        return _guarded(msgspec.json.Decoder(kind).decode, kind)
    except TypeError as exc:
        raise InvalidInput(
            f"{_name(kind)} is no type of a body: {exc}. Use bytes, str, dict, a dataclass, a "
            "msgspec struct or a pydantic model"
        ) from None


def _guarded(decode: Callable[[bytes], Any], kind: Any) -> Callable[[bytes], Any]:
    def body(value: bytes) -> Any:
        try:
            return decode(value)
        except ValueError as exc:  # msgspec's and pydantic's errors are such
            raise Undecodable(f"the body is no {_name(kind)}: {exc}") from None

    return body


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as exc:
        raise Undecodable(f"the body is no text: {exc}") from None


def _without_none(kind: Any) -> tuple[bool, Any]:
    """Whether a type takes None, and what else it takes."""
    if get_origin(kind) in (UnionType, Union):
        members = [member for member in get_args(kind) if member is not NoneType]
        if len(members) < len(get_args(kind)):
            return True, members[0] if len(members) == 1 else Union[tuple(members)]  # noqa: UP007
    return kind is Any, kind


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
