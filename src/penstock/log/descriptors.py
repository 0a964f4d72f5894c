"""File descriptors, of which a process has few: files that are written to share a bounded number.

A log keeps its files for as long as it is open, and there may be thousands of logs. A file that was
not written to lately loses its descriptor, and gets one again when it is: that takes a few
microseconds. Bytes that no fsync has covered yet are not lost by that, since they are the file's
and not the descriptor's; an error that the kernel meets in writing them is told to the descriptor
that is opened next.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from penstock.errors import TooManyOpenFiles
from penstock.forks import abandon_in_children

P = ParamSpec("P")
T = TypeVar("T")

_OPEN_MIN = 16
_OPEN_MAX = 2048
_PART_OF_LIMIT = 4  # the rest is for connections, and for files that are read

_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether this error goes away by itself when other files or connections are closed."""
    return error.errno in _OUT_OF_DESCRIPTORS


class Descriptor:
    """That of one file, opened for reading and writing. It has none while others need it more.

    Who uses it holds `lock`, or has pinned it. The lock is never waited for by who needs another.
    """

    __slots__ = ("_inode", "_path", "_pins", "_pool", "fd", "is_recent", "lock")

    def __init__(self, pool: DescriptorPool, path: str, fd: int) -> None:
        self._pool = pool
        self._path = path
        self._inode = _inode(fd)
        self._pins = 0
        self.fd = fd
        """-1: it has none; `reopen` it."""
        self.is_recent = True
        """Set by who uses it; cleared when somebody else looks for one to close."""
        self.lock = threading.Lock()
        pool.admit(self)

    def reopen(self) -> int:
        """The lock is held, and it has none."""
        fd = self._pool.give_way(os.open, self._path, os.O_RDWR | os.O_CLOEXEC)
        if _inode(fd) != self._inode:
            os.close(fd)
            raise OSError(errno.ESTALE, "another file has its name now", self._path)
        self.fd = fd
        self._pool.admit(self)
        return fd

    def pin(self) -> int:
        """Keep it open, for a call during which others may write: an fsync."""
        with self.lock:
            fd = self.fd if self.fd >= 0 else self.reopen()
            self._pins += 1
            return fd

    def unpin(self) -> None:
        with self.lock:
            self._pins -= 1

    def close(self) -> None:
        with self.lock:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                self._pool.forget(self)
                os.close(fd)

    def try_close(self) -> bool:
        """Close it unless it is in use at this moment; whether it has none now."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if self._pins:
                return False
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)
            return True
        finally:
            self.lock.release()


class DescriptorPool:
    """The descriptors of a process that are open, at most a quarter of what it may have.

    When one more is opened, the first is closed that was not used since it was looked at last.
    """

    def __init__(self) -> None:
        self.abandon()
        abandon_in_children(self)

    def abandon(self) -> None:
        """Begin anew: in a forked process the descriptors are its parent's."""
        self._open: dict[Descriptor, None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, descriptor: Descriptor) -> None:
        with self._lock:
            self._open[descriptor] = None
            spare = len(self._open) - _open_max()
            if spare > 0:
                self._close_some(spare, but=descriptor)

    def forget(self, descriptor: Descriptor) -> None:
        with self._lock:
            self._open.pop(descriptor, None)

    def give_way(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something that needs a descriptor for itself; where there is none, after closing
        one of ours. Raises TooManyOpenFiles if there is still none."""
        while True:
            try:
                return call(*args, **kwargs)
            except OSError as exc:
                if not is_out_of_descriptors(exc):
                    raise
                with self._lock:
                    closed = self._close_some(1)
                if not closed:
                    raise TooManyOpenFiles(str(exc.filename or "")) from exc

    def _close_some(self, wanted: int, but: Descriptor | None = None) -> int:
        """Close so many that are not in use, if there are; the lock is held."""
        closed = 0
        for _ in range(2 * len(self._open)):
            if closed == wanted:
                break
            oldest = next(iter(self._open))
            del self._open[oldest]
            if oldest is but or oldest.is_recent or not oldest.try_close():
                oldest.is_recent = False
                self._open[oldest] = None
            else:
                closed += 1
        return closed


def _open_max() -> int:
    """Looked up each time: a server raises its limit after it has begun."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _OPEN_MAX
    return min(max(soft // _PART_OF_LIMIT, _OPEN_MIN), _OPEN_MAX)


def _inode(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


SHARED = DescriptorPool()
"""The process's own."""
