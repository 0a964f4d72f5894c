"""What a handler is called with, made from the bytes of a message, and the other way round.

By the annotation of the parameter: `bytes` (also without any) as it is, `str` as UTF-8, a pydantic
model by pydantic, and everything else that msgspec knows (structs, dataclasses, TypedDicts, dicts,
lists, numbers) from JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin

import msgspec

from penstock.errors import InvalidInput

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


def encode(body: object) -> bytes | None:
    """A body as the bytes of a message, as a handler of its type reads them."""
    match body:
        case None | bytes():
            return body
        case str():
            return body.encode()
        case _ if hasattr(body, "model_dump_json"):
            return str(body.model_dump_json()).encode()
        case _:
            try:
                return msgspec.json.encode(body)
            except TypeError as exc:
                raise InvalidInput(
                    f"{type(body).__name__} is no body of a message: {exc}"
                ) from None


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
