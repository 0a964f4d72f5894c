"""Positions in a partition: where to begin to read, as people and JSON say it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from penstock.durations import parse_us
from penstock.errors import InvalidInput
from penstock.group.offsets import AtOffset, AtTime, Earliest, Latest, Start
from penstock.model.values import StreamPosition

Position: TypeAlias = Literal["earliest", "latest"] | int | datetime

_OFFSET_MAX = (1 << 63) - 1
_ALLOWED = 'a position is "earliest", "latest", an offset or a datetime; not {!r:.100}'


def parse_position(given: StreamPosition | datetime, name: str = "position") -> Start:
    """What is meant by a position, or InvalidInput. An offset may be text: in a query all is."""
    value: object = given
    if isinstance(value, str):
        if value == "earliest":
            return Earliest()
        if value == "latest":
            return Latest()
        value = _from_text(value)
    if isinstance(value, datetime):
        return AtTime(parse_us(value, name))
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _OFFSET_MAX:
        return AtOffset(value)
    raise InvalidInput(_ALLOWED.format(given))


def place_of(position: Position) -> StreamPosition:
    """A position as a call carries it, or InvalidInput."""
    if isinstance(position, str) and position not in ("earliest", "latest"):
        raise InvalidInput(_ALLOWED.format(position))
    parse_position(position)
    return position.isoformat() if isinstance(position, datetime) else position


def _from_text(text: str) -> int | datetime | None:
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
