"""Two small files beside the segments: up to where the log is durable, and where it starts."""

from __future__ import annotations

import logging
import os
import struct

from crc32c import crc32c

from penstock.errors import DiskFull
from penstock.log.descriptors import is_out_of_descriptors
from penstock.log.files import FileSystem, is_out_of_room, write_durably

DURABLE_FILE = "durable"
START_FILE = "start"

_MARK = struct.Struct("<qI")  # an offset, and its CRC32C
_READS = 3  # another process may be overwriting it at this moment
_logger = logging.getLogger("penstock.log")


class MarkDamaged(Exception):
    """The file is there, and does not hold an offset with its checksum."""


class DurableMark:
    """Tells other processes what is durable: overwritten after each commit, never synced."""

    def __init__(self, files: FileSystem, folder: str) -> None:
        self._folder = folder
        path = os.path.join(folder, DURABLE_FILE)
        try:
            self._file = files.open(path)
        except FileNotFoundError:
            self._file = files.create(path)

    def write(self, offset: int) -> None:
        try:
            self._file.overwrite(0, encode_mark(offset))
        except OSError as exc:
            if not is_out_of_room(exc) and not is_out_of_descriptors(exc):
                raise
            _logger.warning("%s: readers outside see the last commit later: %s", self._folder, exc)

    def close(self) -> None:
        self._file.close()


def write_start(files: FileSystem, folder: str, offset: int) -> None:
    """Note durably where a log starts. Raises DiskFull if there is no room even for that."""
    path, mark = os.path.join(folder, START_FILE), encode_mark(offset)
    try:
        write_durably(files, path, mark)
        return
    except OSError as exc:
        if not is_out_of_room(exc):
            raise
    try:
        _overwrite(files, path, mark)  # it takes no room, and a trim makes some
    except OSError as exc:
        if is_out_of_room(exc) or isinstance(exc, FileNotFoundError):
            raise DiskFull(f"{folder}: no room to note where the log starts") from exc
        raise


def encode_mark(offset: int) -> bytes:
    """An offset as the content of such a file."""
    packed = struct.pack("<q", offset)
    return packed + struct.pack("<I", crc32c(packed))


def read_mark(files: FileSystem, path: str) -> int | None:
    """The offset in such a file; None if it is not there, or not as it was written."""
    try:
        return read_mark_or_raise(files, path)
    except MarkDamaged:
        return None


def read_mark_or_raise(files: FileSystem, path: str) -> int | None:
    """The offset in such a file; None if it is not there, MarkDamaged if something else is."""
    for _ in range(_READS):
        try:
            data = files.read(path)
        except FileNotFoundError:
            return None
        if len(data) == _MARK.size and data == encode_mark(int(_MARK.unpack(data)[0])):
            return int(_MARK.unpack(data)[0])
    raise MarkDamaged


def _overwrite(files: FileSystem, path: str, mark: bytes) -> None:
    """Change a mark in place, durably: it lies within one sector, which is not torn."""
    file = files.open(path)
    try:
        file.overwrite(0, mark)
        file.sync()
    finally:
        file.close()
