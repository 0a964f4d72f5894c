"""Folders of LedgerQ and GoQueue, written from the description of their layouts."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import pack
from typing import Any

from crc32c import crc32c


def ledgerq_entry(
    id_: int,
    payload: bytes,
    *,
    timestamp_ns: int = 1_700_000_000_000_000_000,
    priority: int | None = None,
    expires_ns: int | None = None,
    headers: Mapping[str, str] | None = None,
    compress: bool = False,
    kind: int = 1,
) -> bytes:
    flags, body = 0, b""
    if priority is not None:
        flags |= 0x10
        body += bytes([priority])
    if expires_ns is not None:
        flags |= 0x04
        body += pack("<q", expires_ns)
    if headers:
        flags |= 0x08
        body += pack("<H", len(headers))
        for name, value in headers.items():
            for part in (name.encode(), value.encode()):
                body += pack("<H", len(part)) + part
    if compress:
        flags |= 0x01
        body += b"\x01"
        payload = gzip.compress(payload)
    length = 22 + len(body) + len(payload) + 4
    entry = pack("<IBBQq", length, kind, flags, id_, timestamp_ns) + body + payload
    return entry + pack("<I", crc32c(entry)) + bytes(4)


def ledgerq_folder(
    folder: Path,
    segments: Sequence[Sequence[bytes]],
    *,
    read_id: int | None = None,
    retries: Sequence[dict[str, Any]] = (),
) -> Path:
    folder.mkdir(parents=True)
    for number, entries in enumerate(segments):
        header = pack("<IHHQqQQ20x", 0x4C445151, 1, 0, number * 1000, 0, 0, 0)
        header += pack("<I", crc32c(header))
        assert len(header) == 64
        (folder / f"{number * 1000:020d}.log").write_bytes(header + b"".join(entries))
    if read_id is not None:
        (folder / "metadata.dat").write_bytes(pack("<IQQ4x", 1, 10_000, read_id))
    if retries:
        state = {"version": 1, "max_retries": 3, "entries": list(retries)}
        (folder / ".retry_state.json").write_text(json.dumps(state))
    return folder


def goqueue_message(
    offset: int,
    value: bytes,
    *,
    key: bytes = b"",
    headers: Mapping[str, bytes] | None = None,
    priority: int = 2,
    flags: int = 0,
    older: bool = False,
    compress: str = "",
) -> bytes:
    packed = b""
    if headers:
        flags |= 2
        packed = pack(">H", len(headers))
        for name, content in headers.items():
            for part in (name.encode(), content):
                packed += pack(">H", len(part)) + part
    if compress:
        flags |= 1
        packer = zlib.compressobj(wbits=-15 if compress == "deflate" else 31)
        value = packer.compress(value) + packer.flush()
    rest = pack(">QQBBHI", offset, 1_700_000_000_000_000_000, priority, 0, len(key), len(value))
    if not older:
        rest += pack(">H", len(packed))
    rest += key + value + packed
    return pack(">2sBBI", b"GQ", 1, flags, crc32c(rest)) + rest


def goqueue_log(folder: Path, topic: str, partition: int, *segments: Sequence[bytes]) -> None:
    where = folder / "logs" / topic / str(partition)
    where.mkdir(parents=True)
    for number, messages in enumerate(segments):
        (where / f"{number * 1000:020d}.log").write_bytes(b"".join(messages))


def goqueue_delays(folder: Path, topic: str, *entries: tuple[int, int, int, int]) -> None:
    """Each: offset, when in nanoseconds, partition, state."""
    where = folder / "delays" / topic
    where.mkdir(parents=True)
    data = pack(">4sHHQ", b"GQDL", 1, 0, len(entries))
    data += b"".join(pack(">qqII8x", *entry) for entry in entries)
    (where / "delay.index").write_bytes(data)


def goqueue_offsets(folder: Path, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    where = folder / "offsets" / group
    where.mkdir(parents=True)
    partitions = {
        str(number): {"partition": number, "offset": offset, "metadata": ""}
        for number, offset in offsets.items()
    }
    stored = {
        "group_id": group,
        "generation": 1,
        "topics": {topic: {"topic": topic, "partitions": partitions}},
    }
    (where / "offsets.json").write_text(json.dumps(stored))
