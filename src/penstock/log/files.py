"""The only code that touches the file system.

Everything a log does to disk goes through the `FileSystem` protocol: `DiskFiles` is the real one,
and a simulated one that forgets unsynced writes stands in for it in tests. The calls are those
whose crash behaviour matters, no more: what is not followed by `sync` (for a file) or `sync_folder`
(for its name) may be gone, in part and in any order, after a power cut.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from penstock.errors import DataFolderInUse
from penstock.forks import abandon_in_children
from penstock.log.descriptors import SHARED, Descriptor

Buffer: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

_PAGE_BYTES = mmap.ALLOCATIONGRANULARITY
_WINDOW_BYTES_MAX = 4 << 20  # what is mapped ahead, at most
_WINDOWS_MAX = 8  # that are remembered, so at most 32 MB
_LIBC = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap = _LIBC.mmap, _LIBC.munmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,  # address: the kernel chooses
    ctypes.c_size_t,  # length
    ctypes.c_int,  # protection
    ctypes.c_int,  # flags
    ctypes.c_int,  # descriptor
    ctypes.c_long,  # where in the file
)
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class File(Protocol):
    """A file open for writing. Its caller is its only writer."""

    @property
    def size(self) -> int: ...

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write the buffers at the end. After an OSError any part of them may be in the file."""
        ...

    def overwrite(self, position: int, data: Buffer) -> None:
        """Write over bytes that are there already (or right at the end)."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when the file's bytes and length are on stable storage."""
        ...

    def close(self) -> None: ...


class FolderLock(Protocol):
    """Held by the one process that writes to a folder."""

    def is_in_place(self) -> bool:
        """Whether the folder is still where it was, and the same."""
        ...

    def release(self) -> None: ...


class FileSystem(Protocol):
    """What a log needs from a disk."""

    def make_folder(self, folder: str) -> None:
        """Create a folder, with its parents, durably. An existing one is left as it is."""
        ...

    def list(self, folder: str) -> list[str]:
        """The names in a folder, sorted. FileNotFoundError if there is no such folder."""
        ...

    def create(self, path: str) -> File:
        """A new empty file; one of that name is emptied."""
        ...

    def open(self, path: str) -> File:
        """An existing file, for more."""
        ...

    def map(self, path: str, position: int, length: int) -> memoryview:
        """Up to `length` bytes from `position`, without a copy; shorter where the file ends."""
        ...

    def read(self, path: str, length: int = -1, position: int = 0) -> bytes:
        """A copy of `length` bytes, by default all of them, from a position on.

        For small files, and for files that another process may cut shorter: a map of what is no
        longer there would kill the process.
        """
        ...

    def size(self, path: str) -> int: ...

    def rename(self, old: str, new: str) -> None:
        """Atomically; `new` is replaced if it exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_folder(self, folder: str) -> None:
        """With all that is in it; one that is not there is no error."""
        ...

    def sync_folder(self, folder: str) -> None:
        """Return when the names in the folder are on stable storage."""
        ...

    def free_bytes(self, folder: str) -> int: ...

    def lock(self, folder: str, owner: str) -> FolderLock:
        """Lock a folder for this process, or raise DataFolderInUse with the holder's `owner`."""
        ...


def is_out_of_room(error: OSError) -> bool:
    """Whether this error goes away by itself when there is room again."""
    return error.errno in _NO_ROOM


def write_durably(files: FileSystem, path: str, data: Buffer) -> None:
    """Replace a small file so that a crash leaves the old content or the new, never a mixture."""
    write_synced(files, path + ".tmp", data)
    files.rename(path + ".tmp", path)
    files.sync_folder(os.path.dirname(path))


def write_synced(files: FileSystem, path: str, data: Buffer) -> None:
    """Write a whole file and sync its bytes; its name is durable only after `sync_folder`."""
    file = files.create(path)
    try:
        file.append([data])
        file.sync()
    finally:
        file.close()


class DiskFile:
    """A real file, by its descriptor. Writes name their position, so none depends on another."""

    def __init__(self, descriptor: Descriptor, size: int) -> None:
        self._descriptor = descriptor
        self.size = size

    def append(self, buffers: Sequence[Buffer]) -> None:
        size, descriptor = self.size, self._descriptor
        with descriptor.lock:
            fd = descriptor.fd
            if fd < 0:
                fd = descriptor.reopen()
            descriptor.is_recent = True
            if len(buffers) == 1:
                data = buffers[0]
                written, wanted = os.pwrite(fd, data, size), len(data)
            else:
                written, wanted = os.pwritev(fd, buffers, size), sum(map(len, buffers))
        self.size = size + written
        if written < wanted:  # rare: a signal or a nearly full disk cuts a write short
            self.overwrite(self.size, b"".join(map(bytes, buffers))[written:])

    def overwrite(self, position: int, data: Buffer) -> None:
        rest = memoryview(data)
        with self._pinned() as fd:
            while rest:
                written = os.pwrite(fd, rest, position)
                position += written
                rest = rest[written:]
        self.size = max(self.size, position)

    def truncate(self, size: int) -> None:
        with self._pinned() as fd:
            os.ftruncate(fd, size)
        self.size = size

    def sync(self) -> None:
        with self._pinned() as fd:
            os.fdatasync(fd)

    def close(self) -> None:
        self._descriptor.close()

    @contextmanager
    def _pinned(self) -> Iterator[int]:
        fd = self._descriptor.pin()
        try:
            yield fd
        finally:
            self._descriptor.unpin()


class DiskLock:
    """An flock on the file LOCK. The kernel drops it when the process ends, however it ends."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        abandon_in_children(self)

    def is_in_place(self) -> bool:
        try:
            here, ours = os.stat(self._path), os.fstat(self._fd)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # whatever it is, the folder was not seen to be gone
        return (here.st_dev, here.st_ino) == (ours.st_dev, ours.st_ino)

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        fcntl.flock(fd, fcntl.LOCK_UN)  # also if a forked process has not closed it yet
        os.close(fd)

    def abandon(self) -> None:
        """This is a forked process: the lock is its parent's, and stays."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Window(NamedTuple):
    """A part of a file that is mapped."""

    inode: int
    start: int
    end: int
    view: memoryview


class DiskFiles:
    """The file system of this machine. One can serve many logs and threads.

    The last window into each of a few files is remembered. As long as reads of a file follow each
    other, each new window is twice as long as the one before, so that most reads find theirs mapped
    already. What is in a window is the file as it is, not a copy.
    """

    @cached_property
    def _windows(self) -> dict[str, _Window]:
        return {}

    def make_folder(self, folder: str) -> None:
        folder = os.path.abspath(folder)
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for path in reversed(missing):
            os.makedirs(path, 0o700, exist_ok=True)
            self.sync_folder(os.path.dirname(path))

    def list(self, folder: str) -> list[str]:
        return sorted(SHARED.give_way(os.listdir, folder))

    def create(self, path: str) -> DiskFile:
        fd = _open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        return DiskFile(Descriptor(SHARED, path, fd), 0)

    def open(self, path: str) -> DiskFile:
        fd = _open(path, os.O_RDWR)
        return DiskFile(Descriptor(SHARED, path, fd), os.fstat(fd).st_size)

    def map(self, path: str, position: int, length: int) -> memoryview:
        known = self._windows.get(path)
        ahead = length
        if known is not None:
            # Looked at each time: to read in a window where the file was cut would kill us.
            status = os.stat(path)
            end = min(position + length, status.st_size)
            if known.inode == status.st_ino and known.start <= position <= end <= known.end:
                return known.view[position - known.start : end - known.start]
            if known.start < position <= known.end:
                ahead = max(length, min(2 * (known.end - known.start), _WINDOW_BYTES_MAX))
        window = _map(path, position, ahead)
        if ahead <= _WINDOW_BYTES_MAX:
            if len(self._windows) >= _WINDOWS_MAX:
                self._windows.clear()
            self._windows[path] = window
        return window.view[position - window.start :][:length]

    def read(self, path: str, length: int = -1, position: int = 0) -> bytes:
        fd = _open(path, os.O_RDONLY)
        with open(fd, "rb", buffering=0) as file:
            file.seek(position)
            return file.read(length) or b""

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        self._windows.pop(path, None)  # the disk keeps what is mapped
        os.unlink(path)

    def remove_folder(self, folder: str) -> None:
        self._windows.clear()
        with suppress(FileNotFoundError):
            SHARED.give_way(shutil.rmtree, folder)
            self.sync_folder(os.path.dirname(folder))

    def sync_folder(self, folder: str) -> None:
        fd = _open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, folder: str) -> int:
        room = os.statvfs(folder)
        return room.f_bavail * room.f_frsize

    def lock(self, folder: str, owner: str) -> DiskLock:
        path = os.path.join(folder, "LOCK")
        fd = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 4096, 0).decode(errors="replace").strip()
            os.close(fd)
            raise DataFolderInUse(folder, holder) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, owner.encode(), 0)
        return DiskLock(fd, path)


def _map(path: str, position: int, length: int) -> _Window:
    fd = _open(path, os.O_RDONLY)
    try:
        status = os.fstat(fd)
        end = min(position + length, status.st_size)
        if end <= position:
            return _Window(status.st_ino, position, position, memoryview(b""))
        start = position - position % _PAGE_BYTES
        view = _map_pages(fd, start, end - start)
    finally:
        os.close(fd)
    return _Window(status.st_ino, start, end, view)


class _Mapping:
    """Mapped memory, until nobody looks at it any more."""

    __slots__ = ("_address", "_length")

    def __init__(self, address: int, length: int) -> None:
        self._address = address
        self._length = length

    def __del__(self, munmap: Callable[[int, int], int] = _munmap) -> None:
        munmap(self._address, self._length)


def _map_pages(fd: int, start: int, length: int) -> memoryview:
    """Not by `mmap.mmap`, which keeps a descriptor for as long as somebody holds a message."""
    # Populated at once: a fault for every page costs more than reading the pages.
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    address = _mmap(None, length, mmap.PROT_READ, flags, fd, start)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    mapped = pa.foreign_buffer(address, length, _Mapping(address, length))
    return memoryview(mapped).cast("B")


def _open(path: str, flags: int) -> int:
    return SHARED.give_way(os.open, path, flags | os.O_CLOEXEC, 0o600)
