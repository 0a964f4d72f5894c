"""How a message says by which schema it was written.

The value begins with a zero byte and the id in four bytes, big-endian; or the header
`__value_schema_id` has these, or a one and the sixteen bytes of the schema's GUID. Of Protobuf
the data begins with the indexes of its message: their count and each as a zigzag varint, or a
single zero byte for the first message.
"""

from __future__ import annotations

SCHEMA_HEADER = "__value_schema_id"
PREFIX_BYTES = 5
GUID_BYTES = 16
_INDEXES_MAX = 100


def prefix(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def schema_id_of(data: bytes) -> int | None:
    """The id that a value, or a header, begins with; None: it begins with none."""
    if len(data) < PREFIX_BYTES or data[0]:
        return None
    return int.from_bytes(data[1:PREFIX_BYTES], "big")


def guid_of(header: bytes) -> bytes | None:
    """The GUID in a header, with what follows it: the indexes of a Protobuf message."""
    return header[1:] if len(header) > GUID_BYTES and header[0] == 1 else None


def read_indexes(data: bytes) -> tuple[list[int], int]:
    """The indexes of a message, and where its data begins. Raises ValueError."""
    count, at = _read(data, 0)
    if count == 0:
        return [0], at
    if not 0 < count <= _INDEXES_MAX:
        raise ValueError(f"it says that its message has {count} indexes")
    indexes = []
    for _ in range(count):
        index, at = _read(data, at)
        indexes.append(index)
    return indexes, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value >> 1 ^ -(value & 1), at
        shift += 7
    raise ValueError("the indexes of its message are cut off")
