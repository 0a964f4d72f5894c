"""Requests as they come, decoded: a long one beside the event loop, and none into more objects than
it may have.

An item of a list can be as short as two bytes and takes more than a hundred as an object, so that
a request within its limit could still fill the memory of the machine. So the fields of a long one
are counted before anything is made of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from penstock.errors import InvalidInput, RequestTooLarge
from penstock.schema.protobuf_compat import is_repeated
from penstock.server.grpc.calls import LOOP_BYTES, GrpcCall

_COUNTED_BYTES = 1 << 20  # what a shorter one holds takes little memory, whatever it is
_FIELDS_OF_MESSAGE = 16
"""So many for each of the messages that may be in one request."""
_BYTES = 2
"""The wire type of text, bytes, messages, and lists of numbers."""
_FIXED_BYTES = {1: 8, 5: 4}


async def decode_request(kind: Descriptor, data: bytes, call: GrpcCall) -> Any:
    """Raises InvalidInput or RequestTooLarge."""
    call.request_bytes = len(data)
    if len(data) <= LOOP_BYTES:
        return _decode(kind, data)
    fields_max = _FIELDS_OF_MESSAGE * call.door.config.batch_messages_max
    return await call.door.aside(_decode_long, kind, data, fields_max)


async def decode_requests(
    kind: Descriptor, requests: AsyncIterator[bytes], call: GrpcCall
) -> AsyncGenerator[Any]:
    """Those of a stream. Each is in the budget until the next is asked for."""
    async for data in requests:
        with call.door.gate.buffers.room(len(data)):
            yield await decode_request(kind, data, call)


def _decode_long(kind: Descriptor, data: bytes, fields_max: int) -> Any:
    if len(data) > _COUNTED_BYTES and has_more_fields(kind, data, fields_max):
        raise RequestTooLarge(f"more than {fields_max} fields in one request; send it in parts")
    return _decode(kind, data)


def _decode(kind: Descriptor, data: bytes) -> Any:
    try:
        return message_factory.GetMessageClass(kind).FromString(data)
    except DecodeError as exc:
        raise InvalidInput(f"the request cannot be decoded: {exc}") from None


def has_more_fields(kind: Descriptor, data: bytes, limit: int) -> bool:
    """Whether more fields than `limit` are in messages that have lists. A list of numbers counts
    by its bytes. What is malformed is counted as far as it is; the decoder refuses it there."""
    shape = _shape(kind)
    if not shape.has_numbers and sum(map(data.count, shape.tags)) <= limit:
        return False
    inside = [(0, len(data), shape)]
    fields = 0
    while inside:
        at, end, shape = inside.pop()
        while at < end:
            fields += 1
            if fields > limit:
                return True
            tag, at = _varint(data, at)
            wire_type = tag & 7
            if wire_type != _BYTES:
                at = _varint(data, at)[1] if not wire_type else at + _FIXED_BYTES.get(wire_type, 0)
                continue
            length, at = _varint(data, at)
            if (tag >> 3) in shape.numbers:
                fields += length
            elif (below := shape.below.get(tag >> 3)) is not None:
                inside.append((at, min(at + length, end), below))
            at += length
    return fields > limit


class _Shape(NamedTuple):
    """Where a message has lists."""

    below: dict[int, _Shape]
    """The fields whose messages have some."""
    numbers: set[int]
    """Fields that are lists of numbers."""
    tags: set[int]
    """All first bytes of the tags of lists, here and below."""
    has_numbers: bool


@cache
def _shape(kind: Descriptor) -> _Shape:
    below, numbers, tags = {}, set(), set()
    for field in kind.fields:
        if is_repeated(field):
            tag = field.number << 3 | _BYTES
            tags |= {tag & 0x7F, tag & 0x7F | 0x80}  # a tag may be longer than it has to be
            if field.cpp_type not in (field.CPPTYPE_MESSAGE, field.CPPTYPE_STRING):
                numbers.add(field.number)
        if field.message_type is not None and (inner := _shape(field.message_type)).tags:
            below[field.number] = inner
            tags |= inner.tags
    has_numbers = bool(numbers) or any(each.has_numbers for each in below.values())
    return _Shape(below, numbers, tags, has_numbers)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    return 0, len(data)  # malformed
