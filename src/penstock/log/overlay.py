"""Files of a disk that is never written to: what is changed is changed in memory.

So a broker can work on a folder as it always does, put in order what a crash left and open every
log, and the folder stays as it is, to the byte: for looking at one that is mounted read-only, or
that somebody else will go on with. What lies on disk is read, not mapped: its owner may cut it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from penstock.log.files import Buffer, DiskFiles
from penstock.log.memory import MemoryFile, MemoryFiles, MemoryLock


class OverlayFiles:
    def __init__(self) -> None:
        self._disk = DiskFiles()
        self._memory = MemoryFiles()
        self._gone: set[str] = set()  # files and folders of the disk
        self._mutex = threading.RLock()

    def make_folder(self, folder: str) -> None:
        self._memory.make_folder(folder)

    def list(self, folder: str) -> list[str]:
        with self._mutex:
            names: set[str] = set()
            in_memory = True
            try:
                names.update(self._memory.list(folder))
            except FileNotFoundError:
                in_memory = False
            if not self._is_gone(folder) and (not in_memory or os.path.isdir(folder)):
                on_disk = self._disk.list(folder)
                names.update(n for n in on_disk if not self._is_gone(os.path.join(folder, n)))
            return sorted(names)

    def create(self, path: str) -> MemoryFile:
        return self._memory.create(path)

    def open(self, path: str) -> OverlayFile:
        return OverlayFile(self, path, self.size(path))

    def map(self, path: str, position: int, length: int) -> memoryview:
        return memoryview(self.read(path, length, position))

    def read(self, path: str, length: int = -1, position: int = 0) -> bytes:
        if self._is_in_memory(path):
            return self._memory.read(path, length, position)
        self._check_there(path)
        return self._disk.read(path, length, position)

    def size(self, path: str) -> int:
        if self._is_in_memory(path):
            return self._memory.size(path)
        self._check_there(path)
        return self._disk.size(path)

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            if os.path.isdir(old) and not self._is_gone(old):
                for name in self.list(old):
                    self.rename(os.path.join(old, name), os.path.join(new, name))
                self._gone.add(old)
                return
            self.take_up(old)
            self._memory.make_folder(os.path.dirname(new))
            self._memory.rename(old, new)
            self._gone.add(old)

    def remove(self, path: str) -> None:
        with self._mutex:
            self.size(path)  # FileNotFoundError if it is not there
            if self._is_in_memory(path):
                self._memory.remove(path)
            self._gone.add(path)

    def remove_folder(self, folder: str) -> None:
        with self._mutex:
            self._memory.remove_folder(folder)
            self._gone.add(folder)

    def sync_folder(self, folder: str) -> None:
        pass

    def free_bytes(self, folder: str) -> int:
        return self._memory.free_bytes(folder)

    def lock(self, folder: str, owner: str) -> MemoryLock:
        return self._memory.lock(folder, owner)

    def take_up(self, path: str) -> MemoryFile:
        """A file that is in memory from now on, as it is."""
        with self._mutex:
            if not self._is_in_memory(path):
                content = self.read(path)
                self._memory.create(path).append([content])
            return self._memory.open(path)

    def _is_in_memory(self, path: str) -> bool:
        return path in self._memory

    def _is_gone(self, path: str) -> bool:
        while path not in self._gone:
            parent = os.path.dirname(path)
            if parent == path:
                return False
            path = parent
        return True

    def _check_there(self, path: str) -> None:
        if self._is_gone(path):
            raise FileNotFoundError(2, "No such file", path)


class OverlayFile:
    """A file that is taken into memory when it is first written to."""

    def __init__(self, files: OverlayFiles, path: str, size: int) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._file: MemoryFile | None = None

    @property
    def size(self) -> int:
        return self._size if self._file is None else self._file.size

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._changed().append(buffers)

    def overwrite(self, position: int, data: Buffer) -> None:
        self._changed().overwrite(position, data)

    def truncate(self, size: int) -> None:
        if size != self.size:
            self._changed().truncate(size)

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _changed(self) -> MemoryFile:
        if self._file is None:
            self._file = self._files.take_up(self._path)
        return self._file
