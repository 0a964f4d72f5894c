"""Small frames that try to become large ones. Run as a program, so that memory can be measured.

    python -m tests.unit.record.bombs <name>

prints what became of the frame, and by how many bytes the process grew while it was read.
"""

from __future__ import annotations

import gzip
import resource
import struct
import sys

import pyarrow as pa

from penstock.errors import FrameError
from penstock.record.frame import BODY_BYTES_MAX, decode
from tests.unit.record.forge import CODECS, body_of, forge, mask_of, schema_of

MEGABYTE = 1 << 20
GIGABYTE = 1 << 30


def inflating(codec: str, raw_bytes: int) -> bytes:
    """Bytes that decompress to this much, made without ever holding it."""
    chunk = bytes(MEGABYTE)
    if codec == "gzip":  # members one after the other: one gzip file
        return gzip.compress(chunk, 9) * (raw_bytes // MEGABYTE)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        for _ in range(raw_bytes // MEGABYTE):
            stream.write(chunk)
    return sink.getvalue().to_pybytes()


def claiming(codec: str, claimed_bytes: int) -> bytes:
    """About 1 MB that becomes 1 GB (LZ4: 255 MB, it can do no more) and claims another length."""
    raw_bytes = 255 * MEGABYTE if codec == "lz4" else GIGABYTE
    return forge(inflating(codec, raw_bytes), codec=CODECS[codec], raw_bytes=claimed_bytes)


def inflating_inside_arrow() -> bytes:
    """A body whose Arrow message asks for each buffer to be inflated, one of them to 1 GB."""
    batch = pa.RecordBatch.from_arrays([pa.array([b""])], schema=schema_of(mask_of("value")))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    message = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))[1]
    honest = message.serialize().to_pybytes()
    length = struct.pack("<q", 8)  # of the offsets, when inflated
    assert length in honest
    return forge(honest.replace(length, struct.pack("<q", GIGABYTE)))


def many_rows(count: int) -> bytes:
    """A few bytes that claim to be this many messages."""
    return forge(body_of({"value": [b"a"]}), row_count=count, span=count)


BOMBS = {
    **{f"{codec} honest": lambda c=codec: claiming(c, GIGABYTE) for codec in ("zstd", "gzip")},
    **{
        f"{codec} modest": lambda c=codec: claiming(c, MEGABYTE)
        for codec in CODECS
        if codec != "none"
    },
    **{f"{codec} limit": lambda c=codec: claiming(c, BODY_BYTES_MAX) for codec in ("lz4", "zstd")},
    "arrow": inflating_inside_arrow,
    "rows": lambda: many_rows(1 << 24),
    "rows beyond": lambda: many_rows((1 << 32) - 1),
    "short": lambda: forge(b"\x28\xb5\x2f\xfd", codec=CODECS["zstd"], raw_bytes=BODY_BYTES_MAX),
}


def main(name: str) -> None:
    warm_up = forge(b"", codec=CODECS["gzip"], raw_bytes=1)
    outcome(warm_up)
    frame = BOMBS[name]()
    before = peak_bytes()
    what = outcome(frame)
    print(what, peak_bytes() - before, len(frame))


def outcome(frame: bytes) -> str:
    try:
        decode(memoryview(frame))
    except FrameError as exc:
        return type(exc).__name__
    return "read"


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1])
