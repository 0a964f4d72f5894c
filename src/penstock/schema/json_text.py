"""The JSON of schemas: bounded in size and depth, and the same text for the same content."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidSchema
from penstock.schema.definition import DEPTH_MAX, SCHEMA_BYTES_MAX

_encoder = msgspec.json.Encoder(order="deterministic")


def decode_schema(text: str) -> Any:
    """Raises InvalidSchema for what is no JSON, too long or nested too deep."""
    check_length(text)
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as exc:
        raise InvalidSchema(f"the schema is no JSON: {exc}") from None
    if depth_of(found) > DEPTH_MAX:
        raise InvalidSchema(f"the schema is nested deeper than {DEPTH_MAX} levels")
    return found


def check_length(text: str) -> None:
    if len(text) > SCHEMA_BYTES_MAX or len(text.encode("utf-8", "replace")) > SCHEMA_BYTES_MAX:
        raise InvalidSchema(f"the schema is longer than {SCHEMA_BYTES_MAX >> 10:,} KiB")


def canonical_json(value: Any) -> str:
    """With sorted names and no space."""
    return _encoder.encode(value).decode()


def depth_of(value: Any) -> int:
    """How deep lists and objects lie in each other; without recursion."""
    depth = 0
    level = [value]
    while level:
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                inner += each.values()
            elif type(each) is list:
                inner += each
        level = inner
        depth += 1
    return depth - 1
