"""Values as people type them: settings, positions, moments, headers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.durations import parse_ns
from penstock.errors import InvalidInput
from penstock.model.positions import Position


def settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    """`partitions=4 backoff=1s,2,60s ttl=null` as keyword arguments."""
    found: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(
                f"{pair!r:.100} is no setting; give NAME=VALUE, such as retention=7d"
            )
        if name in found:
            raise InvalidInput(f"{name} is given twice")
        listed = "," in text and not text.startswith("[")
        found[name] = tuple(map(_value, text.split(","))) if listed else _value(text)
    return found


def headers(pairs: Sequence[str] | None) -> dict[str, str] | None:
    """`NAME=VALUE`, any number of times."""
    found = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f"header {pair!r:.100} is not NAME=VALUE")
        found[name] = text
    return found or None


def moment(text: str, name: str) -> datetime:
    """A time as ISO 8601; without a zone it is the machine's own time."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{name} is {text!r:.100}; give a time such as 2030-01-31T12:00:00Z"
        ) from None


def position(text: str, name: str = "position") -> Position:
    """`earliest`, `latest`, an offset, a time, or how long ago (`-2h`)."""
    if text == "earliest" or text == "latest":
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdigit():
        return int(text)
    if text.startswith("-"):
        ago_ns = parse_ns(text[1:], name)
        return datetime.fromtimestamp(datetime.now(UTC).timestamp() - ago_ns / 1e9, UTC)
    try:
        return moment(text, name)
    except InvalidInput:
        raise InvalidInput(
            f"{name} is {text!r:.100}; give earliest, latest, an offset, a time such as "
            "2030-01-31T12:00:00Z, or how long ago, such as -2h"
        ) from None


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode({"yes": "true", "no": "false"}.get(text, text))
    except msgspec.DecodeError:
        return text
