"""The real disk, watched: what a log does to it is counted, and can be made to go wrong.

Syncs are counted and not done: what they are for is a power cut, and the simulated disk is where
those happen. That makes hundreds of lives on a real folder affordable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from penstock.log.files import Buffer, DiskFiles, File, FolderLock

Hook = Callable[[str, str], None]
"""Called with what is done (`"sync"`) and to which file; what it raises is what happens."""


class WatchedFiles:
    """The FileSystem protocol over DiskFiles, with a list of all that was done."""

    def __init__(self) -> None:
        self.disk = DiskFiles()
        self.done: list[tuple[str, str]] = []
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.free: int | None = None
        """What the disk says it has free; None for the truth."""

    def count(self, what: str, of: str = "") -> int:
        """How often something was done to files whose name ends so."""
        return sum(kind == what and name.endswith(of) for kind, name in self.done)

    def forget(self) -> None:
        self.done.clear()

    def make_folder(self, folder: str) -> None:
        self.disk.make_folder(folder)

    def list(self, folder: str) -> list[str]:
        return self.disk.list(folder)

    def create(self, path: str) -> WatchedFile:
        return self._do("create", path, lambda: WatchedFile(self, path, self.disk.create(path)))

    def open(self, path: str) -> WatchedFile:
        return self._do("open", path, lambda: WatchedFile(self, path, self.disk.open(path)))

    def map(self, path: str, position: int, length: int) -> memoryview:
        return self._do("map", path, lambda: self.disk.map(path, position, length))

    def read(self, path: str, length: int = -1, position: int = 0) -> bytes:
        return self._do("read", path, lambda: self.disk.read(path, length, position))

    def size(self, path: str) -> int:
        return self.disk.size(path)

    def rename(self, old: str, new: str) -> None:
        self._do("rename", new, lambda: self.disk.rename(old, new))

    def remove(self, path: str) -> None:
        self._do("remove", path, lambda: self.disk.remove(path))

    def sync_folder(self, folder: str) -> None:
        self._do("sync_folder", folder, lambda: None)

    def free_bytes(self, folder: str) -> int:
        self.done.append(("free_bytes", os.path.basename(folder)))
        return self.disk.free_bytes(folder) if self.free is None else self.free

    def lock(self, folder: str, owner: str) -> FolderLock:
        return self.disk.lock(folder, owner)

    def _do(self, what: str, path: str, work: Callable[[], Any]) -> Any:
        name = os.path.basename(path)
        self.done.append((what, name))
        if self.before is not None:
            self.before(what, name)
        result = work()
        if self.after is not None:
            self.after(what, name)
        return result


class WatchedFile:
    """A real file behind the same hooks."""

    def __init__(self, files: WatchedFiles, path: str, file: File) -> None:
        self._files = files
        self._path = path
        self._file = file

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._files._do("append", self._path, lambda: self._file.append(buffers))

    def overwrite(self, position: int, data: Buffer) -> None:
        self._files._do("overwrite", self._path, lambda: self._file.overwrite(position, data))

    def truncate(self, size: int) -> None:
        self._files._do("truncate", self._path, lambda: self._file.truncate(size))

    def sync(self) -> None:
        self._files._do("sync", self._path, lambda: None)

    def close(self) -> None:
        self._file.close()


def failing(what: str, error: BaseException, of: str = "", times: int = 1) -> Hook:
    """A hook that raises an error the first so many times that something is done."""
    left = times

    def hook(kind: str, name: str) -> None:
        nonlocal left
        if left and kind == what and name.endswith(of):
            left -= 1
            raise error

    return hook
