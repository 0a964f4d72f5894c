"""Data of the first version of the format, for the tests of its conversion.

The fixtures are folders that the code of then wrote; `integration/broker/first_version/make.py`
says what is in them. `OldLog` makes up logs of any shape.
"""

from __future__ import annotations

import struct
import tarfile
from pathlib import Path

from crc32c import crc32c

from penstock.log.files import FileSystem
from penstock.log.index import SegmentIndex
from penstock.log.segment import Segment
from penstock.log.watermarks import encode_mark
from penstock.record.batch import Batch
from penstock.record.salt import PLAIN
from penstock.record.writing import encode

FIXTURES = Path(__file__).parent / "integration" / "broker" / "first_version"


def unpack(name: str, folder: Path) -> None:
    """Lay down the fixture `closed` or `killed`."""
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")


def load(name: str, files: FileSystem, folder: str) -> None:
    """The same on any file system, all of it synced."""
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        for member in archive:
            path = f"{folder}/{member.name}".replace("/./", "/").rstrip("/.")
            content = archive.extractfile(member) if member.isfile() else None
            if content is None:
                files.make_folder(path)
            else:
                write(files, path, content.read())
                files.sync_folder(path.rpartition("/")[0])


def write(files: FileSystem, path: str, data: bytes) -> None:
    file = files.create(path)
    file.append([data])
    file.sync()
    file.close()


class OldLog:
    """A log of the first version, as it is written."""

    def __init__(self, files: FileSystem, folder: str) -> None:
        self._files = files
        self._folder = folder
        self.next_offset = 0
        files.make_folder(folder)

    def segment(self, *batches: list[bytes], indexed: bool = True) -> str:
        """Write a segment of a frame for each batch; its path."""
        segment = Segment(self._folder, self.next_offset)
        segment.tail = (self.next_offset, 0)
        segment.index = SegmentIndex(512)
        frames = []
        for values in batches:
            frame = encode(Batch.build(values), self.next_offset, ulid=1 << 100, stamp_us=7)
            frames += [bytes(buffer) for buffer in frame.buffers]
            segment.add(frame)
            self.next_offset = frame.next_offset
        write(self._files, segment.path, b"".join(frames))
        if indexed:
            data = segment.index.encode(
                segment.base_offset, segment.next_offset, segment.size_bytes, PLAIN
            )
            data = data[:8] + struct.pack("<H", 1) + data[10:48] + bytes(16) + data[64:]
            data = data[:4] + struct.pack("<I", crc32c(data[8:])) + data[8:]
            write(self._files, segment.index_path, data)
        self._files.sync_folder(self._folder)
        return segment.path

    def mark_durable(self) -> None:
        write(self._files, f"{self._folder}/durable", encode_mark(self.next_offset))
        self._files.sync_folder(self._folder)
