"""A file system in memory, for brokers that are to leave nothing behind, as in tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from penstock.errors import DataFolderInUse
from penstock.log.files import Buffer


class MemoryFile:
    """A file, by its content. Whoever reads gets a copy."""

    def __init__(self, content: bytearray) -> None:
        self._content = content

    @property
    def size(self) -> int:
        return len(self._content)

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._content += b"".join(map(bytes, buffers))

    def overwrite(self, position: int, data: Buffer) -> None:
        self._content[position : position + len(data)] = bytes(data)

    def truncate(self, size: int) -> None:
        del self._content[size:]

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryLock:
    def __init__(self, locks: dict[str, str], folder: str) -> None:
        self._locks = locks
        self._folder = folder

    def is_in_place(self) -> bool:
        return True

    def release(self) -> None:
        self._locks.pop(self._folder, None)


class MemoryFiles:
    """What a log needs from a disk, without one. It is gone when nobody holds it any more."""

    def __init__(self, free_bytes: int = 1 << 40) -> None:
        self._files: dict[str, bytearray] = {}
        self._folders: set[str] = set()
        self._locks: dict[str, str] = {}
        self._mutex = threading.RLock()
        self._free_bytes = free_bytes

    def __contains__(self, path: str) -> bool:
        """Whether there is such a file."""
        return path in self._files

    def make_folder(self, folder: str) -> None:
        with self._mutex:
            while folder not in self._folders and folder != os.path.dirname(folder):
                self._folders.add(folder)
                folder = os.path.dirname(folder)

    def list(self, folder: str) -> list[str]:
        with self._mutex:
            if folder not in self._folders:
                raise FileNotFoundError(2, "No such folder", folder)
            inside = [*self._files, *self._folders]
            return sorted(os.path.basename(p) for p in inside if os.path.dirname(p) == folder)

    def create(self, path: str) -> MemoryFile:
        with self._mutex:
            self._files[path] = bytearray()
            return MemoryFile(self._files[path])

    def open(self, path: str) -> MemoryFile:
        return MemoryFile(self._content(path))

    def map(self, path: str, position: int, length: int) -> memoryview:
        return memoryview(bytes(self._content(path)[position : position + length]))

    def read(self, path: str, length: int = -1, position: int = 0) -> bytes:
        end = None if length < 0 else position + length
        return bytes(self._content(path)[position:end])

    def size(self, path: str) -> int:
        return len(self._content(path))

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            self._files[new] = self._content(old)
            del self._files[old]

    def remove(self, path: str) -> None:
        with self._mutex:
            self._content(path)
            del self._files[path]

    def remove_folder(self, folder: str) -> None:
        with self._mutex:
            inside = folder + os.sep
            self._files = {p: c for p, c in self._files.items() if not p.startswith(inside)}
            self._folders = {p for p in self._folders if p != folder and not p.startswith(inside)}

    def sync_folder(self, folder: str) -> None:
        pass

    def free_bytes(self, folder: str) -> int:
        return self._free_bytes

    def lock(self, folder: str, owner: str) -> MemoryLock:
        with self._mutex:
            if folder in self._locks:
                raise DataFolderInUse(folder, self._locks[folder])
            self._locks[folder] = owner
            return MemoryLock(self._locks, folder)

    def _content(self, path: str) -> bytearray:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(2, "No such file", path) from None
