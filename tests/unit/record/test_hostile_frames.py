"""Frames with a right checksum that no honest writer made.

A checksum tells damage from what was written, not friend from foe: bytes may come over a network or
from a file that somebody edited. Whatever they are, the outcome is FrameCorrupt or
FrameTooLarge with the position: no other exception, no crash, no hang.
"""

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import FrameCorrupt, FrameTooLarge
from penstock.record.batch import Batch
from penstock.record.frame import BODY_BYTES_MAX, decode
from penstock.record.schema import ROWS_MAX
from tests.simulation.torture import scaled
from tests.unit.record.forge import CODECS, alter, body_of, forge, mask_of, schema_of

ROOT = Path(__file__).parents[3]
BEFORE = b"\xa5" * 40


def read(frame: bytes) -> Batch:
    return decode(memoryview(BEFORE + frame), len(BEFORE)).batch


def refused(frame: bytes, error: type[Exception] = FrameCorrupt, why: str = ".") -> None:
    with pytest.raises(error, match=why) as caught:
        read(frame)
    assert caught.value.position == len(BEFORE)  # type: ignore[attr-defined]


def of(columns: dict[str, Any], **fields: Any) -> bytes:
    """A frame of these columns that is right unless the fields say otherwise."""
    rows = len(next(iter(columns.values())))
    right = {"columns": mask_of(*columns), "row_count": rows, "span": rows}
    if "expires_at" in columns:
        right["priorities"] = 0b10000100
    return forge(body_of(columns), **right | fields)


VALUE = {"value": [b"one", b"two"]}


def test_an_honest_frame_by_another_hand_is_read() -> None:
    assert [m.value for m in read(of(VALUE))] == [b"one", b"two"]
    everything = {
        "timestamp": [1, 2],
        "priority": [0, 2],
        "expires_at": [None, 3],
        "key": [b"k", None],
        "value": [None, b"v"],
        "headers": [[{"key": "h", "value": b"1"}], None],
        "offset": [10, 14],
        "id": [b"0" * 16, b"1" * 16],
    }
    frame = of(everything, base_offset=10, span=5, last_timestamp=2, priorities=0b10000101)
    assert [(m.offset, m.value) for m in read(frame)] == [(10, None), (14, b"v")]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"magic": b"PNSX"}, "magic number"),
        ({"crc": 0}, "checksum"),
        ({"version": 2}, "format version 2; this reads 1"),
        ({"version": 0}, "format version 0"),
        ({"flags": 1}, "out of range"),
        ({"reserved": 1}, "out of range"),
        ({"codec": 4}, "out of range"),
        ({"codec": 255}, "out of range"),
        ({"priorities": 0}, "out of range"),
        ({"priorities": 1 << 5}, "out of range"),
        ({"priorities": 1 << 7}, "out of range"),
        ({"priorities": 1 << 7 | 1 << 2}, "out of range"),
        ({"columns": 0}, "out of range"),
        ({"columns": mask_of("key")}, "out of range"),
        ({"columns": mask_of("value") | 1 << 8}, "out of range"),
        ({"columns": mask_of("key", "value")}, "not a (plain )?record batch"),
        ({"base_offset": -1}, "out of range"),
        ({"base_offset": (1 << 63) - 1}, "out of range"),
        ({"row_count": 3}, "more messages than offsets"),
        ({"row_count": 1, "span": 1}, "2 messages; the header says 1"),
        ({"row_count": 0, "priorities": 0}, "a body, but no messages"),
        ({"row_count": ROWS_MAX + 1, "span": ROWS_MAX + 1}, "out of range"),
        ({"span": 3}, "nothing says which"),
        ({"span": 1}, "more messages than offsets"),
        ({"first_timestamp": 1}, "out of range"),
        ({"raw_bytes": 0}, "out of range"),
    ],
    ids=str,
)
def test_a_field_that_no_writer_sets_so_is_refused(fields: dict[str, Any], why: str) -> None:
    refused(alter(of(VALUE), **fields), FrameCorrupt, why)


@pytest.mark.parametrize("name", ["stored_bytes", "raw_bytes"])
def test_a_claim_beyond_the_limit_is_refused_as_too_large(name: str) -> None:
    refused(alter(of(VALUE), **{name: BODY_BYTES_MAX + 1}), FrameTooLarge, f"{BODY_BYTES_MAX}")
    refused(alter(of(VALUE), **{name: (1 << 32) - 1}), FrameTooLarge)


@pytest.mark.parametrize(
    ("columns", "fields", "why"),
    [
        ({"offset": [1, 2]}, {}, "offsets out of order or out of range"),
        ({"offset": [1, 0]}, {}, "offsets out of order"),
        ({"offset": [0, 0]}, {}, "offsets out of order"),
        ({"offset": [-1, 1]}, {}, "out of range"),
        ({"offset": [0, 1 << 62]}, {"span": 9}, "out of range"),
        ({"priority": [0, 5]}, {}, "priority 5 does not exist"),
        ({"priority": [0, 255]}, {}, "priority 255 does not exist"),
        ({"timestamp": [None, 1]}, {}, "a message without timestamp"),
        ({"priority": [1, None]}, {}, "a message without priority"),
        ({"offset": [0, None]}, {}, "a message without offset"),
        ({"id": [None, bytes(16)]}, {}, "a message without id"),
        ({"headers": [[None], None]}, {}, "a header without a name"),
        ({"headers": [[{"key": None, "value": b""}], None]}, {}, "a header without a name"),
    ],
    ids=str,
)
def test_rows_that_break_the_headers_promises_are_refused(
    columns: dict[str, Any], fields: dict[str, Any], why: str
) -> None:
    refused(of(columns | VALUE, **fields), FrameCorrupt, why)


def test_offsets_that_run_around_the_whole_range_of_numbers_are_refused() -> None:
    third = (1 << 64) // 3
    around = [0, third, 2 * third - (1 << 64), 3]  # each step is upwards only by overflowing
    assert (np.diff(np.array(around)) > 0).all()
    columns = {"offset": around, "value": [b"a", b"b", b"c", b"d"]}
    refused(of(columns), FrameCorrupt, "offsets out of order")


def binary_column(offsets: list[int], data: bytes, type_: pa.DataType | None = None) -> pa.Array:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(type_ or pa.binary(), len(offsets) - 1, buffers)


@pytest.mark.parametrize(
    "offsets",
    [[0, 3, 2], [0, -1, 3], [-5, 0, 3], [0, 1, 4], [0, 1 << 30, 3], [3, 0, 3], [0, 0, -(1 << 31)]],
    ids=str,
)
def test_offsets_of_bytes_that_lead_elsewhere_are_refused(offsets: list[int]) -> None:
    honest = of({"value": binary_column([0, 1, 3], b"abc")})
    at = honest.index(struct.pack("<3i", 0, 1, 3)) - 96
    body = bytearray(honest[96:])
    struct.pack_into("<3i", body, at, *offsets)
    refused(forge(bytes(body), row_count=2, span=2), FrameCorrupt, "not a record batch")


def test_header_names_that_are_no_text_are_refused() -> None:
    names = binary_column([0, 2], b"\xff\xfe", pa.string())
    fields = list(schema_of(mask_of("headers")).field(0).type.value_type)
    pairs = pa.StructArray.from_arrays([names, pa.array([b"x"])], fields=fields)
    headers = pa.ListArray.from_arrays([0, 1], pairs)
    refused(of({"value": [b"a"], "headers": headers}), FrameCorrupt, "UTF8")


def record_batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([b"x" * 5000])], schema=schema_of(mask_of("value")))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_body_that_arrow_would_inflate_by_itself_is_refused(codec: str) -> None:
    options = pa.ipc.IpcWriteOptions(compression=codec)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, record_batch().schema, options=options) as stream:
        stream.write_batch(record_batch())
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages = [message.serialize().to_pybytes() for message in reader]
    refused(forge(messages[1]), FrameCorrupt, "not a (plain )?record batch")
    refused(
        forge(messages[0]), FrameCorrupt, "not a (plain )?record batch"
    )  # a schema is no record batch


def test_a_body_in_the_framing_of_old_arrow_versions_is_refused() -> None:
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, record_batch().schema, options=options) as stream:
        stream.write_batch(record_batch())
    stream_bytes = sink.getvalue().to_pybytes()
    schema_bytes = 4 + struct.unpack_from("<i", stream_bytes)[0]
    legacy = stream_bytes[schema_bytes:]
    assert legacy[:4] != b"\xff\xff\xff\xff"
    refused(forge(legacy), FrameCorrupt, "not a (plain )?record batch")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00" * 8,
        b"\xff" * 4,
        b"\xff" * 300,
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\xff\xff\xff\xff\xf8\xff\xff\x7f" + bytes(200),
        b"ARROW1\x00\x00" + bytes(200),
        b"PAR1" * 50,
    ],
    ids=lambda body: body[:8].hex(),
)
def test_garbage_for_a_body_is_refused(body: bytes) -> None:
    refused(forge(body), FrameCorrupt)


@pytest.mark.parametrize("codec", ["lz4", "zstd", "gzip"])
def test_a_compressed_body_that_is_not_what_its_header_says_is_refused(codec: str) -> None:
    body = body_of({"value": [b"tell me again " * 200]})
    packed = pa.compress(body, codec, asbytes=True)
    number = CODECS[codec]

    def frame(stored: bytes, raw_bytes: int = len(body), codec: int = number) -> bytes:
        return forge(stored, codec=codec, raw_bytes=raw_bytes)

    assert len(read(frame(packed))) == 1
    refused(frame(packed, len(body) + 1), FrameCorrupt, "another length")
    refused(frame(packed, len(body) - 1), FrameCorrupt, "another length")
    refused(frame(packed, 0), FrameCorrupt)
    refused(frame(packed[: len(packed) // 2]), FrameCorrupt)
    refused(frame(packed[4:]), FrameCorrupt)
    refused(frame(packed + packed), FrameCorrupt)
    refused(frame(b""), FrameCorrupt)
    refused(frame(bytes(500)), FrameCorrupt)
    for other in {1, 2, 3} - {number}:
        refused(frame(packed, codec=other), FrameCorrupt)


def run_mutations(*arguments: str, timeout_s: float) -> str:
    """In a process of its own: a crash of Arrow must not take the test run with it."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.unit.record.mutations"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_some_thousands_of_lying_frames_are_read_or_refused() -> None:
    counts = run_mutations("exhaustive", "41", timeout_s=100)
    assert "FrameCorrupt" in counts
    counts = run_mutations("random", "1", "3000", timeout_s=100)
    assert "read" in counts


@pytest.mark.torture
def test_every_single_lie_is_read_or_refused() -> None:
    print("every field, bit and word:", run_mutations("exhaustive", "1", timeout_s=3600))


@pytest.mark.torture
def test_many_lies_at_once_are_read_or_refused() -> None:
    for seed in range(scaled(10)):
        print(f"seed {seed}:", run_mutations("random", str(seed), "100000", timeout_s=3600))
