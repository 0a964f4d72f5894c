"""Values that are JSON: made of Python objects, and read as such again."""

from __future__ import annotations

from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar, overload

import msgspec

from penstock.errors import InvalidInput, InvalidPayload

T = TypeVar("T")

CONTENT_TYPE = "content-type"
JSON_TYPE = b"application/json"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_FIRST = datetime.min.replace(tzinfo=UTC)


def is_json_like(value: object) -> bool:
    """Whether a value is published as JSON: a dict, a list, a struct, a dataclass, a model."""
    return (
        isinstance(value, dict | list | tuple | msgspec.Struct)
        or (is_dataclass(value) and not isinstance(value, type))
        or hasattr(value, "model_dump_json")
    )


def encode_json(value: Any) -> bytes:
    try:
        if hasattr(value, "model_dump_json"):  # a pydantic model
            return str(value.model_dump_json()).encode()
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidInput(f"value: {type(value).__name__} is not JSON: {exc}") from None


def with_content_type(headers: Any) -> Any:
    """Headers that say that the value is JSON, unless they say already what it is.

    What is no dict at all is left to who checks headers."""
    if not headers:
        return {CONTENT_TYPE: JSON_TYPE}
    if not hasattr(headers, "items") or any(
        isinstance(name, str) and name.lower() == CONTENT_TYPE for name in headers
    ):
        return headers
    return {CONTENT_TYPE: JSON_TYPE, **headers}


class ReadablePayload:
    """How the value and the times of a message are read."""

    __slots__ = ()

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, kind: type[T]) -> T: ...
    def json(self, kind: Any = Any) -> Any:
        """The value, which is JSON: as dicts and lists, or as a type that msgspec or pydantic has.

        Raises InvalidPayload if it is none."""
        value: bytes | None = self.value  # type: ignore[attr-defined]
        try:
            if hasattr(kind, "model_validate_json"):
                return kind.model_validate_json(value or b"")
            return _decoder(kind).decode(value or b"")
        except ValueError as exc:  # msgspec's and pydantic's errors are such
            name = "JSON" if kind is Any else getattr(kind, "__name__", str(kind))
            raise InvalidPayload(f"the value is no {name}: {exc!s:.300}") from None

    def text(self) -> str:
        """The value as text; InvalidPayload if it is not UTF-8."""
        value: bytes | None = self.value  # type: ignore[attr-defined]
        try:
            return (value or b"").decode()
        except UnicodeDecodeError as exc:
            raise InvalidPayload(f"the value is no text: {exc}") from None

    @property
    def timestamp(self) -> datetime:
        """When it was published, or fell due."""
        return as_datetime(self.timestamp_us)  # type: ignore[attr-defined]

    @property
    def expires_at(self) -> datetime | None:
        """From when on it is not delivered any more."""
        us: int | None = self.expires_at_us  # type: ignore[attr-defined]
        return None if us is None else as_datetime(us)


def as_datetime(us: int) -> datetime:
    """Microseconds since 1970 as a time in UTC; the last one that there is for what is beyond."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return _LAST if us > 0 else _FIRST


@lru_cache(maxsize=256)
def _known_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return _new_decoder(kind)


def _new_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(kind)
    except TypeError as exc:
        raise InvalidInput(f"{kind!r:.100} is no type for a value: {exc}") from None


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _known_decoder(kind)
    except TypeError:  # not to be remembered, since it has no hash
        return _new_decoder(kind)
