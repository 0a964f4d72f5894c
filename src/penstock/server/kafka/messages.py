"""Requests and answers as bytes: kio knows the fields of every message in every version.

A request begins with the key of its API, its version, a correlation id and the client's name; an
answer with the correlation id. `kio` is imported when the port is opened, and the modules of a
message when it is first seen.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

from penstock.server.kafka.codes import Code, Refused

PRODUCE = 0
API_VERSIONS = 18

Answer: TypeAlias = SimpleNamespace
"""The fields of an answer by their names, of all versions at once: those that a version does not
have are left out."""

_HEAD = struct.Struct(">hhi")
_LENGTH = struct.Struct(">h")
_SIZE = struct.Struct(">i")
_ENTRIES_MAX = 20_000
"""Topics, partitions, groups: what one request may name. Each is looked up, and answered."""
_FEW_BYTES = 16 << 10  # there is no room for too many entries

_ANSWER_HEAD = bytes(8)  # its length and the correlation id

NOW = timedelta(0)
"""How long a client is to wait: not at all. Who asks too much is answered late."""


class Head(NamedTuple):
    key: int
    version: int
    correlation_id: int


def parse_head(frame: bytes | memoryview) -> Head:
    try:
        return Head(*_HEAD.unpack_from(frame))
    except struct.error:
        raise Refused(Code.INVALID_REQUEST, "a request is shorter than its head") from None


def parse(frame: bytes, head: Head) -> tuple[str, Any]:
    """The client's name, and the request. Raises Refused."""
    try:
        at = _HEAD.size
        (length,) = _LENGTH.unpack_from(frame, at)
        at += _LENGTH.size
        client_id = frame[at : at + max(length, 0)].decode()
        at += max(length, 0)
        if head.key == PRODUCE:
            _check_partitions(frame, at, head.version)
        is_flexible, read = _reader(head.key, head.version)
        if is_flexible:
            at = _after_tags(frame, at)
        body, size = read(frame, at)
        if len(frame) > _FEW_BYTES and head.key != PRODUCE:
            _check_entries(_entries(body))
    except Refused:
        raise
    except Exception as exc:  # noqa: BLE001 - kio has no root for what is wrong with bytes
        raise Refused(Code.INVALID_REQUEST, f"a request cannot be read: {exc!r:.200}") from None
    if at + size > len(frame):
        raise Refused(Code.INVALID_REQUEST, "a request goes on past its end")
    return client_id, body


def encode(head: Head, answer: Answer) -> memoryview:
    is_flexible, write = _writer(head.key, head.version)
    out = io.BytesIO()
    out.write(_ANSWER_HEAD)
    if is_flexible and head.key != API_VERSIONS:  # its answer is read before versions are known
        out.write(b"\x00")
    write(out, answer)
    view = out.getbuffer()
    _SIZE.pack_into(view, 0, len(view) - _SIZE.size)
    _SIZE.pack_into(view, 4, head.correlation_id)
    return view


def _check_partitions(frame: bytes, at: int, version: int) -> None:
    """Of a request that publishes, before its partitions become objects: it may be long."""
    found = 0
    try:
        if version >= 3:  # a transactional id
            at += _LENGTH.size + max(_LENGTH.unpack_from(frame, at)[0], 0)
        (topics,), at = _SIZE.unpack_from(frame, at + 6), at + 10
        for _ in range(topics):
            at += _LENGTH.size + _LENGTH.unpack_from(frame, at)[0]
            (partitions,), at = _SIZE.unpack_from(frame, at), at + 4
            found += 1 + max(partitions, 0)
            _check_entries(found)
            for _ in range(partitions):
                at += 8 + max(_SIZE.unpack_from(frame, at + 4)[0], 0)
    except struct.error:
        return  # it goes on past its end, as who reads it will find


def _check_entries(count: int) -> None:
    if count > _ENTRIES_MAX:
        raise Refused(Code.INVALID_REQUEST, f"a request names more than {_ENTRIES_MAX} things")


def _entries(read: Any) -> int:
    """In all arrays of a request."""
    if isinstance(read, tuple):
        return len(read) + sum(_entries(each) for each in read if is_dataclass(each))
    return sum(
        _entries(value)
        for field in fields(read)
        if isinstance(value := getattr(read, field.name), tuple) or is_dataclass(value)
    )


def load() -> None:
    """Import what every connection needs, which takes long: beside the event loop."""
    _reader(API_VERSIONS, 0)
    _writer(API_VERSIONS, 0)


def _after_tags(frame: bytes, at: int) -> int:
    """Behind the tagged fields of the head, of which none means anything here."""
    count, at = _unsigned(frame, at)
    for _ in range(count):
        _, at = _unsigned(frame, at)
        size, at = _unsigned(frame, at)
        at += size
    return at


def _unsigned(frame: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while shift < 35:
        byte = frame[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return found, at


@cache
def _reader(key: int, version: int) -> tuple[bool, Callable[[bytes, int], tuple[Any, int]]]:
    from kio.index import load_request_schema  # noqa: PLC0415 - takes long, see above
    from kio.serial import entity_reader  # noqa: PLC0415

    schema: Any = load_request_schema(key, version)
    return schema.__flexible__, entity_reader(schema)


@cache
def _writer(key: int, version: int) -> tuple[bool, Callable[[Any, Any], None]]:
    from kio.index import load_response_schema  # noqa: PLC0415 - takes long, see above
    from kio.serial import entity_writer  # noqa: PLC0415

    schema: Any = load_response_schema(key, version)
    write: Any = entity_writer(schema)
    return schema.__flexible__, write
