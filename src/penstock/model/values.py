"""Bytes, times and positions as JSON has them.

A value that is UTF-8 goes as text, any other as base64 under a name of its own. Times are
RFC 3339 or seconds since 1970; durations are strings such as "30s", or seconds.
"""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, TypeAlias

import msgspec

from penstock.durations import Moment, parse_us
from penstock.errors import InvalidInput

Short: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]
"""Names and times: nobody needs long ones, and everything that is kept has to be bounded."""
Seconds: TypeAlias = Annotated[
    Short | int | float,
    msgspec.Meta(description='A duration: "250ms", "30s", "1h30m", or seconds.'),
]
Time: TypeAlias = Annotated[
    Short | int | float,
    msgspec.Meta(description="RFC 3339 with a time zone, or seconds since 1970."),
]
StreamPosition: TypeAlias = Annotated[
    Short | int,
    msgspec.Meta(description='"earliest", "latest", an offset, or a time as RFC 3339.'),
]


# Whole numbers that the broker can store; what is larger is refused at the door.
Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Small = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]

_DATE = re.compile(r"(19|2[0-9])[0-9]{2}([01][0-9][0-3][0-9])?")
"""A year, or a date without its hyphens: as seconds it would be a moment of 1970."""
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are not UTF-8."""

    base64: str


HeaderValue: TypeAlias = str | Base64 | None


def to_text(data: bytes | None) -> tuple[str | None, str | None]:
    """Bytes as text or, where they are no UTF-8, as base64."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


def to_bytes(name: str, text: str | None, encoded: str | None) -> bytes | None:
    """What `to_text` made of bytes, as bytes again."""
    if encoded is None:
        return None if text is None else utf8(name, text)
    if text is not None:
        raise InvalidInput(f"give {name} or {name}_base64, not both")
    return from_base64(f"{name}_base64", encoded)


def utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"{name}: {exc}") from None


def from_base64(name: str, encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidInput(f"{name} is not base64: {exc}") from None


def headers_to_text(headers: dict[str, bytes | None]) -> dict[str, HeaderValue] | None:
    shown: dict[str, HeaderValue] = {}
    for name, data in headers.items():
        text, encoded = to_text(data)
        shown[name] = Base64(encoded) if encoded is not None else text
    return shown or None


def headers_to_bytes(headers: dict[str, HeaderValue] | None) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for name, value in (headers or {}).items():
        utf8("the name of a header", name)
        if isinstance(value, Base64):
            found[name] = from_base64(f"header {name!r}", value.base64)
        else:
            found[name] = None if value is None else utf8(f"header {name!r}", value)
    return found


def parse_time(value: str | int | float, name: str) -> datetime | int | float:
    """A moment as `penstock.durations.parse_us` takes it."""
    if not isinstance(value, str):
        return value
    if not _DATE.fullmatch(value):
        if _NUMBER.fullmatch(value):
            return float(value)  # from a query, where all is text
        with suppress(ValueError):
            return datetime.fromisoformat(value)
    raise InvalidInput(
        f"{name} is {value!r:.100}; give RFC 3339, such as 2030-01-31T12:00:00Z, or seconds"
    )


def parse_moment_us(value: Time | Moment, name: str) -> int:
    """A moment in microseconds since 1970."""
    return parse_us(parse_time(value, name) if isinstance(value, str) else value, name)


def as_duration(value: str | int | float | timedelta) -> str | int | float | timedelta:
    """A duration as `penstock.durations` takes it; a number in a query is text as well."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    return value
