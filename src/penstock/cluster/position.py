"""How far the files of a shard follow its stream: a small file beside them.

It may be older than the files, since what is read from the stream again changes nothing. It is
never newer than what it speaks of. It names the boot of the machine: what was not synced before
another boot cannot be relied upon.
"""

from __future__ import annotations

import os
from functools import cache

import msgspec
from crc32c import crc32c

from penstock.cluster.directory import DirectoryState
from penstock.log.files import FileSystem, write_synced

POSITION_FILE = "position"


class CachePosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where in its stream a shard's cache is."""

    stream: str
    """Which stream: one that was made anew is another."""
    boot: str = ""
    seq: int = 0
    term: int = 0
    crc: int = 0
    directory: DirectoryState = DirectoryState()
    voids: list[int] = []
    """Records that do not count, and may still be in the stream."""
    begun: dict[int, int] = {}
    """Logs whose beginning was not there any more, and the offset at which they go on; the trim
    that explains it is still to come."""


def read_position(files: FileSystem, folder: str) -> CachePosition | None:
    """None: there is none, or none that can be believed."""
    try:
        data = files.read(os.path.join(folder, POSITION_FILE))
        if len(data) < 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "little"):
            return None
        return msgspec.json.decode(data[4:], type=CachePosition)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_position(files: FileSystem, folder: str, position: CachePosition) -> None:
    path, data = os.path.join(folder, POSITION_FILE), msgspec.json.encode(position)
    write_synced(files, path + ".tmp", crc32c(data).to_bytes(4, "little") + data)
    files.rename(path + ".tmp", path)


@cache
def this_boot() -> str:
    """Another one after the machine was started again; empty where it cannot be known."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
