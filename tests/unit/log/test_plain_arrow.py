"""Any Arrow implementation can read a segment: by the documented layout, without Penstock."""

import gzip
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.record.batch import Batch
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import messages
from tests.unit.record.forge import HEADER_BYTES, dissect, schema_of

DECOMPRESSORS = {
    0: lambda body, raw_bytes: body,
    1: lambda body, raw_bytes: pa.decompress(body, raw_bytes, "lz4"),
    2: lambda body, raw_bytes: pa.decompress(body, raw_bytes, "zstd"),
    3: lambda body, raw_bytes: gzip.decompress(body),
}


def read_segment(data: bytes) -> list[tuple[int, dict[str, object]]]:
    """Offset and columns of every message, by nothing but the layout and Arrow."""
    rows: list[tuple[int, dict[str, object]]] = []
    magic, _, version, _, frame_magic, _ = struct.unpack_from("<4sIH14s4sI", data)
    assert (magic, version) == (b"PNSG", 2)
    assert data[:32] == data[32:64]
    position = 64
    while position < len(data):
        header, body = dissect(data[position:])
        assert header["magic"] == frame_magic
        position += HEADER_BYTES + header["stored_bytes"] + -header["stored_bytes"] % 8
        if not header["row_count"]:
            continue
        raw = DECOMPRESSORS[header["codec"]](body, header["raw_bytes"])
        batch = pa.ipc.read_record_batch(pa.py_buffer(raw), schema_of(header["columns"]))
        for row, columns in enumerate(batch.to_pylist()):
            rows.append((columns.pop("offset", header["base_offset"] + row), columns))
    return rows


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "gzip"])
def test_a_segment_is_frames_of_plain_arrow_record_batches(
    open_log: Opener, folder: Path, codec: str
) -> None:
    log = open_log(codec=codec)
    for number in range(5):
        log.append(Batch.build([b"tell me again " * 100] * 3))
        log.append(Batch.build([b"%d" % number], keys=["k"], headers=[{"h": b"1"}]))
    log.close()
    rows = read_segment((folder / "00000000000000000000.log").read_bytes())
    assert [offset for offset, _ in rows] == list(range(20))
    assert [columns["value"] for _, columns in rows] == [m.value for m in messages(log)]
    assert rows[3][1] == {
        "key": b"k",
        "value": b"0",
        "headers": [{"key": "h", "value": b"1"}],
    }


def test_a_compacted_segment_is_plain_arrow_too(open_log: Opener, folder: Path) -> None:
    log = open_log()
    for number in range(10):
        expires = [1, None, None]
        log.append(Batch.build([b"%d" % number] * 3, expires_at_us=expires, priority=[0, 1, 2]))
    log.roll()
    log.compact(now_us=5)
    log.close()
    rows = read_segment((folder / "00000000000000000000.g1.log").read_bytes())
    assert [offset for offset, _ in rows] == [m.offset for m in messages(log)]
    assert [columns["id"] for _, columns in rows] == [
        m.ulid.to_bytes(16, "big") for m in messages(log)
    ]
    assert [columns["priority"] for _, columns in rows] == [m.priority for m in messages(log)]
