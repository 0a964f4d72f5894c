"""Whether the stream of a shard is what was written to it, and the files of its owner are too.

The stream is read from its first record: the checksum of each record, and that each follows the one
before. Each frame in it is compared with the frame of the same offset in the files, by checksum.
Files that are not right are not mended: the owner lets go of the shard and fetches them again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.cluster.engine import ShardEngine
from penstock.cluster.fold import Fold
from penstock.cluster.records import MORE, RecordKind, decode
from penstock.cluster.replica import log_path
from penstock.cluster.shard import OwnedShard
from penstock.errors import ShardDamaged, ShardLost
from penstock.log.files import FileSystem
from penstock.log.recovery import list_segments
from penstock.log.segment import ValidFrame, walk
from penstock.log.segment_header import decode_header
from penstock.model.cluster import ShardVerified
from penstock.record.frame import read_header
from penstock.record.salt import PLAIN
from penstock.record.writing import resalted

_TOLD_MAX = 20


def verify_shard(shard: OwnedShard) -> ShardVerified:
    """While it is served. What is appended meanwhile is not looked at."""
    until = shard.writer.committed_seq
    check = _Check(shard.engine)
    fold, records = Fold(), 0
    try:
        for seq, data in shard.stream.read(1, until):
            records += 1
            record = decode(data, seq)
            if not fold.take(seq, record):
                continue
            if record.kind is RecordKind.TERM:
                check.parts.clear()
            elif record.kind is RecordKind.FRAMES:
                check.frames(record.log, record.body, more=bool(record.flags & MORE))
    except ShardDamaged as exc:
        check.damaged.append(str(exc))
        return check.result(shard.number, records, len(fold.voids), repaired=False)
    stores = [*shard.stream.damaged_stores.values()]
    shard.stream.damaged_stores.clear()
    if check.damaged:
        shard.engine.distrust()
        shard.writer.fail(ShardLost(shard.number, "its files are damaged, and fetched again"))
    repaired = bool(check.damaged) and not stores
    check.damaged[:0] = stores
    return check.result(shard.number, records, len(fold.voids), repaired=repaired)


class _Check:
    def __init__(self, engine: ShardEngine) -> None:
        self.damaged: list[str] = []
        self.parts: dict[int, list[memoryview]] = {}
        self._engine = engine
        self._walks: dict[int, Iterator[tuple[int, int]]] = {}
        self._ahead: dict[int, tuple[int, int]] = {}
        self._compared = 0

    def frames(self, log: int, body: memoryview, *, more: bool) -> None:
        parts = self.parts.setdefault(log, [])
        parts.append(body)
        if more:
            return
        body = memoryview(b"".join(self.parts.pop(log)))
        start, position = self._engine.start_of(log), 0
        while position < len(body) and start is not None:
            header = read_header(body, position)
            crc = int.from_bytes(body[position + 4 : position + 8], "little")
            position += header.frame_bytes
            if header.base_offset >= start:
                self._compare(log, header.base_offset, crc)

    def result(self, shard: int, records: int, void: int, *, repaired: bool) -> ShardVerified:
        return ShardVerified(
            shard=shard,
            records=records,
            void=void,
            frames=self._compared,
            damaged=self.damaged[:_TOLD_MAX],
            repaired=repaired,
        )

    def _compare(self, log: int, offset: int, crc: int) -> None:
        self._compared += 1
        if log not in self._walks:
            folder = log_path(self._engine.folder, log)
            self._walks[log] = _frames_of(self._engine.files, folder)
        here = self._ahead.pop(log, None) or next(self._walks[log], None)
        while here is not None and here[0] < offset:
            here = next(self._walks[log], None)
        if (here is None or here[0] != offset) and offset < (self._engine.start_of(log) or offset):
            self._ahead.update({} if here is None else {log: here})  # trimmed just now
        elif here is None or here[0] != offset:
            self.damaged.append(f"log {log}: the frame at offset {offset} is not in the files")
            if here is not None:
                self._ahead[log] = here
        elif here[1] != crc:
            self.damaged.append(f"log {log}: the frame at offset {offset} is another one")


def _frames_of(files: FileSystem, folder: str) -> Iterator[tuple[int, int]]:
    """Offset and checksum, as it stands alone, of each whole frame in the files of a log."""
    try:
        segments, _ = list_segments(files, folder)
    except FileNotFoundError:
        return
    for segment in segments:
        try:
            buffer = files.map(segment.path, 0, files.size(segment.path))
        except FileNotFoundError:
            continue  # trimmed just now
        header = decode_header(buffer, os.path.basename(segment.path))
        if header is None:
            continue
        for item in walk(buffer, header.salt, segment.base_offset):
            if isinstance(item, ValidFrame):
                end = item.position + item.header.frame_bytes
                plain = resalted([buffer[item.position : end]], PLAIN)[0]
                yield item.header.base_offset, int.from_bytes(bytes(plain[4:8]), "little")
