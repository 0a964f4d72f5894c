"""Which messages somebody looks for: by key, value, header, priority, and what is in their JSON.

Columns are compared as a whole; headers and JSON only of the rows that are left by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.record import compute as pc
from penstock.record.batch import Batch

_MISSING = object()


class MessageFilter(NamedTuple):
    """All that is given has to fit."""

    key: str | None = None
    """Is in the key."""
    value: str | None = None
    """Is in the value."""
    header: str | None = None
    """`name`, or `name=text`, where the text is in the value of the header."""
    pointer: str | None = None
    """A JSON pointer, to something that is in the value, or in what it says by its schema."""
    equals: str | None = None
    """What is there: as JSON or, if it is text, as it is."""
    priority: int | None = None
    json_of: Callable[[Sequence[bytes | None]], Sequence[bytes | None]] = list
    """Values as JSON, where they are not JSON already."""

    def check(self) -> None:
        if self.pointer and not self.pointer.startswith("/"):
            raise InvalidInput(f"pointer is {self.pointer!r:.100}; a JSON pointer begins with '/'")
        if self.equals is not None and self.pointer is None:
            raise InvalidInput("equals says what is at a JSON pointer: give pointer, too")

    def of(self, batch: Batch) -> Batch:
        """The rows that fit."""
        if self.priority is not None:
            batch = _kept(batch, batch.priority_numbers() == self.priority)
        if self.key:
            batch = _kept(batch, _holds(batch.keys, self.key))
        if self.value:
            batch = _kept(batch, _holds(batch.values, self.value))
        if self.header:
            name, given, text = self.header.partition("=")
            pattern = text.encode() if given else None
            has = [_has_header(each, name, pattern) for each in batch.headers.to_pylist()]
            batch = _kept(batch, np.array(has, bool))
        if self.pointer is not None:
            fits = self._at_pointer(self.pointer)
            values = self.json_of(batch.values.to_pylist())
            batch = _kept(batch, np.array([fits(value) for value in values], bool))
        return batch

    def _at_pointer(self, pointer: str) -> Callable[[bytes | None], bool]:
        path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        equals = self.equals
        wanted = _MISSING if equals is None else _as_json(equals)

        def fits(value: bytes | None) -> bool:
            there = _follow(value, path)
            if there is _MISSING:
                return False
            if equals is None:
                return True
            return there == equals or (type(there) is type(wanted) and there == wanted)

        return fits


def _kept(batch: Batch, mask: np.ndarray[Any, Any]) -> Batch:
    return batch if mask.all() else batch.filter(mask)


def _holds(column: pa.BinaryArray, text: str) -> np.ndarray[Any, Any]:
    found = pc.match_substring(column, text.encode()).fill_null(False)
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def _has_header(headers: list[dict[str, Any]] | None, name: str, text: bytes | None) -> bool:
    return any(
        each["key"] == name and (text is None or text in (each["value"] or b""))
        for each in headers or ()
    )


def _follow(value: bytes | None, path: list[str]) -> Any:
    """What a value has at the end of a path of names and numbers."""
    try:
        there = msgspec.json.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _MISSING
    for part in path:
        if isinstance(there, dict) and part in there:
            there = there[part]
        elif isinstance(there, list) and part.isdecimal() and int(part[:9]) < len(there):
            there = there[int(part[:9])]
        else:
            return _MISSING
    return there


def _as_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _MISSING
