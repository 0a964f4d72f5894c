"""Frames by hand: the format as it is documented, written a second time.

The tests use it to take frames apart and to make those that no honest writer makes, with a right
checksum. It shares no code with `penstock.record.frame`, so each keeps the other true.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
from crc32c import crc32c

LAYOUT = (  # name, struct code; little-endian, without gaps
    ("magic", "4s"),
    ("crc", "I"),
    ("version", "B"),
    ("flags", "B"),
    ("codec", "B"),
    ("priorities", "B"),
    ("columns", "H"),
    ("reserved", "H"),
    ("stored_bytes", "I"),
    ("raw_bytes", "I"),
    ("base_offset", "q"),
    ("span", "I"),
    ("row_count", "I"),
    ("first_timestamp", "q"),
    ("last_timestamp", "q"),
    ("producer_id", "q"),
    ("base_sequence", "q"),
    ("producer_epoch", "I"),
    ("term", "I"),
    ("ulid", "16s"),
)
HEADER = struct.Struct("<" + "".join(code for _, code in LAYOUT))
HEADER_BYTES = 96
CRC_FROM = 8

COLUMNS = ("timestamp", "priority", "expires_at", "key", "value", "headers", "offset", "id")
CODECS = {"none": 0, "lz4": 1, "zstd": 2, "gzip": 3}

_TIME = pa.timestamp("us", tz="UTC")
_TYPES = {
    "timestamp": _TIME,
    "priority": pa.uint8(),
    "expires_at": _TIME,
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(
        pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
    ),
    "offset": pa.int64(),
    "id": pa.binary(16),
}
_NULLABLE = {"expires_at", "key", "value", "headers"}


def mask_of(*names: str) -> int:
    return sum(1 << COLUMNS.index(name) for name in names)


def schema_of(columns: int) -> pa.Schema:
    """The Arrow schema that a column mask stands for."""
    return pa.schema(
        [
            pa.field(name, _TYPES[name], nullable=name in _NULLABLE)
            for bit, name in enumerate(COLUMNS)
            if columns >> bit & 1
        ]
    )


def body_of(columns: dict[str, Any]) -> bytes:
    """Columns as the body of a frame: one Arrow record-batch message."""
    schema = schema_of(mask_of(*columns))
    arrays = [
        items if isinstance(items, pa.Array) else pa.array(items, schema.field(name).type)
        for name, items in sorted(columns.items(), key=lambda item: COLUMNS.index(item[0]))
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()


def forge(body: bytes = b"", **fields: Any) -> bytes:
    """A frame of these bytes and fields, with a right checksum unless `crc` is given."""
    header = {
        "magic": b"PNSK",
        "crc": 0,
        "version": 1,
        "flags": 0,
        "codec": 0,
        "priorities": 1 << 2,
        "columns": mask_of("value"),
        "reserved": 0,
        "stored_bytes": len(body),
        "raw_bytes": len(body),
        "base_offset": 0,
        "span": 1,
        "row_count": 1,
        "first_timestamp": 0,
        "last_timestamp": 0,
        "producer_id": 0,
        "base_sequence": -1,
        "producer_epoch": 0,
        "term": 0,
        "ulid": bytes(16),
    }
    assert not set(fields) - set(header), set(fields) - set(header)
    header |= fields
    rest = HEADER.pack(*header.values())[CRC_FROM:] + body + bytes(-len(body) % 8)
    crc = fields.get("crc", crc32c(rest))
    return header["magic"] + struct.pack("<I", crc) + rest


def dissect(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """The fields of a frame's header, and its body."""
    names = [name for name, _ in LAYOUT]
    header = dict(zip(names, HEADER.unpack_from(frame), strict=True))
    return header, frame[HEADER_BYTES : HEADER_BYTES + header["stored_bytes"]]


def alter(frame: bytes, **fields: Any) -> bytes:
    """The same frame with other fields, and the checksum to match."""
    header, body = dissect(frame)
    del header["crc"]
    return forge(body, **header | fields)
