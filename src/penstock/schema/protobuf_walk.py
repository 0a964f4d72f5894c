"""Says at which field the bytes of a Protobuf message go wrong; the library does not."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from penstock.schema.definition import pointer

_DEPTH_MAX = 100
_FIXED = {1: 8, 5: 4}


class _Wrong(Exception):
    def __init__(self, path: list[object], reason: str) -> None:
        self.path = path
        self.reason = reason


def wrong_field(data: bytes, message: Any) -> tuple[str, str]:
    """The field and what is wrong with it, as far as that can be told."""
    try:
        _over(data, message, [])
    except _Wrong as exc:
        return pointer(exc.path), exc.reason
    return "", f"it is no {message.full_name}"


def _over(data: bytes, message: Any, path: list[object]) -> None:
    if len(path) > _DEPTH_MAX:
        raise _Wrong(path[:3], f"it is nested deeper than {_DEPTH_MAX} levels")
    at = 0
    while at < len(data):
        tag, at = _varint(data, at, path)
        field = message.fields_by_number.get(tag >> 3)
        here = [*path, field.name if field is not None else tag >> 3]
        wire = tag & 7
        if wire == 0:
            _, at = _varint(data, at, here)
        elif wire in _FIXED:
            at += _FIXED[wire]
        elif wire == 2:
            length, at = _varint(data, at, here)
            if at + length > len(data):
                raise _Wrong(here, f"it says that it has {length:,} bytes, and is cut off")
            _content(data[at : at + length], field, here)
            at += length
        else:
            raise _Wrong(here, f"wire type {wire} is not used")
        if at > len(data):
            raise _Wrong(here, "it is cut off")


def _content(data: bytes, field: Any, path: list[object]) -> None:
    if field is None:
        return
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        _over(data, field.message_type, path)
    elif field.type == FieldDescriptor.TYPE_STRING:
        try:
            data.decode()
        except UnicodeDecodeError:
            raise _Wrong(path, "it is no UTF-8") from None


def _varint(data: bytes, at: int, path: list[object]) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise _Wrong(path, "its number is longer than 64 bits")
    raise _Wrong(path, "it is cut off")
