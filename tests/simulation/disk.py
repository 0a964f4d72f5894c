"""A file system in memory that can fail, fill up, be killed and lose power.

`SimulatedFiles` stands in for `DiskFiles`. Nothing in it is random but `crash`, which takes its
randomness from the caller, so a seed replays a life exactly.

    files = SimulatedFiles()
    files.fail("sync", nth=2)                    # the second sync from now raises EIO
    files.crash_at(17)                           # the 17th operation from now ends the process
    after = files.crash(Random(seed))            # the disk as a power cut may leave it
    after = files.kill()                         # the disk as SIGKILL leaves it
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from penstock.errors import DataFolderInUse
from penstock.log.files import Buffer
from tests.simulation.platter import Content, Folder, NameChange, Truncate, Write

KINDS = (
    "create",
    "append",
    "overwrite",
    "truncate",
    "sync",
    "rename",
    "remove",
    "sync_folder",
)
"""The operations that change the disk: those that can fail, and between which a crash can fall."""

ROOMY_BYTES = 1 << 40


class SimulatedCrash(BaseException):
    """The process ends here. A BaseException, because nothing may catch it and carry on."""


class SimulatedFiles:
    """The FileSystem protocol over `platter`'s model of a disk.

    Any thread may call it. Paths are plain strings; folders are there at once and for good, the
    names in them are not. `before_operation(kind, path)`, where set, is called at every boundary;
    `during_sync(path)` is called while a sync runs, after the bytes that it covers are fixed, so
    that a test can write what it must not vouch for.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self.counts: Counter[str] = Counter()
        self.failures = 0
        self.trace: deque[str] = deque(maxlen=50)
        self.before_operation: Callable[[str, str], None] | None = None
        self.during_sync: Callable[[str], None] | None = None
        self._folders: dict[str, Folder] = {}
        self._locks: dict[str, str] = {}
        self._faults: list[_Fault] = []
        self._crash: _CrashPoint | None = None
        self._dead = False
        self._mutex = threading.RLock()

    # What may go wrong.

    def fail(
        self,
        kind: str,
        nth: int = 1,
        error: int = errno.EIO,
        *,
        path: str = "",
        times: int = 1,
        partial: float = 0.5,
    ) -> None:
        """Make the nth operation of a kind from now (and `times - 1` after it) raise an OSError.

        `path` counts only files whose path holds it. A failing append or overwrite leaves that
        `partial` share of its bytes in the file; a failing sync loses what it should have saved.
        """
        assert kind in KINDS, kind
        self._faults.append(_Fault(kind, path, nth, times, error, partial))

    def mend(self) -> None:
        """No more faults from now on."""
        self._faults.clear()
        self._crash = None

    def crash_at(self, nth: int, *, after: bool = False, kind: str = "") -> None:
        """Raise SimulatedCrash before (or after) the nth operation from now; then for ever."""
        self._crash = _CrashPoint(kind, nth, after)

    def rot(self, path: str, bit: int) -> None:
        """Flip one bit of a file, in the cache and on the platter: the disk has gone bad."""
        content = self._content(path)
        for image in (content.cached, content.platter):
            image[bit // 8] ^= 1 << bit % 8

    # What is left.

    def crash(self, rng: Random) -> SimulatedFiles:
        """A power cut now. This object stays as it is: many crashes can start from one moment."""
        contents: dict[int, Content] = {}

        def survivor(content: Content) -> Content:
            if id(content) not in contents:
                image = content.after_power_cut(rng)
                contents[id(content)] = Content(bytearray(image), bytearray(image), [], image)
            return contents[id(content)]

        left = SimulatedFiles(self.capacity_bytes)
        with self._mutex:
            for path, folder in self._folders.items():
                names = {
                    name: survivor(content) for name, content in folder.after_power_cut(rng).items()
                }
                left._folders[path] = Folder(dict(names), dict(names))
        return left

    def kill(self) -> SimulatedFiles:
        """SIGKILL now: what was written stays, synced or not, and can still be lost later."""
        left = SimulatedFiles(self.capacity_bytes)
        copies: dict[int, Content] = {}
        with self._mutex:
            left._folders = {path: folder.copy(copies) for path, folder in self._folders.items()}
        return left

    # The FileSystem protocol.

    def make_folder(self, folder: str) -> None:
        self._check_alive()
        self._folders.setdefault(_clean(folder), Folder())

    def list(self, folder: str) -> list[str]:
        folders = {path.split("/")[0] for path in self._below(folder)}
        if not folders:
            self._folder(folder)  # or FileNotFoundError
        files = self._folders.get(_clean(folder), Folder()).cached
        return sorted({*files, *folders})

    def create(self, path: str) -> SimulatedFile:
        folder, name = self._split(path)
        with _Operation(self, "create", path):
            content = folder.cached.get(name)
            if content is None:
                content = Content()
                folder.change(NameChange(None, name, content))
            else:
                content.change(Truncate(0))
        return SimulatedFile(self, path, content)

    def open(self, path: str) -> SimulatedFile:
        return SimulatedFile(self, path, self._content(path))

    def map(self, path: str, position: int, length: int) -> memoryview:
        return memoryview(bytes(self._content(path).cached[position : position + length]))

    def read(self, path: str, length: int = -1, position: int = 0) -> bytes:
        cached = self._content(path).cached
        return bytes(cached[position:] if length < 0 else cached[position : position + length])

    def size(self, path: str) -> int:
        return len(self._content(path).cached)

    def rename(self, old: str, new: str) -> None:
        folder, old_name = self._split(old)
        new_folder, new_name = self._split(new)
        assert folder is new_folder, "a rename between folders is not one atomic step here"
        content = self._content(old)
        with _Operation(self, "rename", f"{old} -> {new_name}"):
            folder.change(NameChange(old_name, new_name, content))

    def remove(self, path: str) -> None:
        folder, name = self._split(path)
        content = self._content(path)
        with _Operation(self, "remove", path):
            folder.change(NameChange(name, None, content))

    def remove_folder(self, folder: str) -> None:
        """File by file, so that a crash can leave some of it; then it is gone for good."""
        self._check_alive()
        doomed = [os.path.join(_clean(folder), below) for below in self._below(folder)]
        doomed += [_clean(folder)] if _clean(folder) in self._folders else []
        for path in doomed:
            for name in list(self._folders[path].cached):
                self.remove(os.path.join(path, name))
        for path in doomed:
            del self._folders[path]

    def sync_folder(self, folder: str) -> None:
        names = self._folder(folder)
        with _Operation(self, "sync_folder", folder) as fault:
            if not fault:  # names are journalled: unlike pages, they are tried again
                names.sync()

    def free_bytes(self, folder: str) -> int:
        self._check_alive()
        return ROOMY_BYTES if self.capacity_bytes is None else self._room()

    def lock(self, folder: str, owner: str) -> SimulatedLock:
        names, path = self._folder(folder), _clean(folder)
        if path in self._locks:
            raise DataFolderInUse(folder, self._locks[path])
        self._locks[path] = owner
        if "LOCK" not in names.cached:
            names.change(NameChange(None, "LOCK", Content(bytearray(owner.encode()))))
        return SimulatedLock(self._locks, path)

    # How the operations work.

    def _begin(self, kind: str, path: str) -> _Fault | None:
        """Count an operation; raise or return what is to go wrong with it."""
        self._check_alive()
        if self.before_operation is not None:
            self.before_operation(kind, path)
        self.operations += 1
        self.counts[kind] += 1
        self.trace.append(f"{self.operations}: {kind} {path}")
        if self._crash is not None and self._crash.strikes(kind, after=False):
            self._die()
        striking = [fault for fault in self._faults if fault.strikes(kind, path)]
        self.failures += bool(striking)
        return striking[0] if striking else None

    @contextmanager
    def _while_the_disk_works(self) -> Iterator[None]:
        """Other threads go on while one waits for its sync."""
        self._mutex.release()
        try:
            yield
        finally:
            self._mutex.acquire()

    def _end(self, kind: str) -> None:
        if self._crash is not None and self._crash.strikes(kind, after=True):
            self._die()

    def _die(self) -> None:
        self._dead = True
        raise SimulatedCrash(f"crashed at operation {self.trace[-1]}")

    def _check_alive(self) -> None:
        if self._dead:
            raise SimulatedCrash("the process has ended")

    def _room(self) -> int:
        assert self.capacity_bytes is not None
        contents = {
            id(content): content
            for folder in self._folders.values()
            for content in folder.cached.values()
        }
        return max(0, self.capacity_bytes - sum(len(one.cached) for one in contents.values()))

    def _folder(self, folder: str) -> Folder:
        self._check_alive()
        try:
            return self._folders[_clean(folder)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder) from None

    def _below(self, folder: str) -> list[str]:
        """The folders below a folder, by their paths from there."""
        self._check_alive()
        prefix = os.path.join(_clean(folder), "")
        return [path.removeprefix(prefix) for path in self._folders if path.startswith(prefix)]

    def _split(self, path: str) -> tuple[Folder, str]:
        return self._folder(os.path.dirname(path)), os.path.basename(path)

    def _content(self, path: str) -> Content:
        folder, name = self._split(path)
        try:
            return folder.cached[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


class SimulatedFile:
    """An open file. Like the real one it keeps its own idea of where the end is, so that what a
    failed append left behind is written over by the next."""

    def __init__(self, files: SimulatedFiles, path: str, content: Content) -> None:
        self._files = files
        self._path = path
        self._content = content
        self.size = len(content.cached)
        self._open = True

    def append(self, buffers: Sequence[Buffer]) -> None:
        data = b"".join(bytes(memoryview(buffer)) for buffer in buffers)
        self._write("append", self.size, data)
        self.size += len(data)

    def overwrite(self, position: int, data: Buffer) -> None:
        data = bytes(memoryview(data))
        self._write("overwrite", position, data)
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        with self._operation("truncate"):
            self._content.change(Truncate(size))
        self.size = size

    def sync(self) -> None:
        with self._operation("sync") as fault:
            sync = self._content.begin_sync()
            if self._files.during_sync is not None:
                with self._files._while_the_disk_works():
                    self._files.during_sync(self._path)
            if fault:
                self._content.lose_unsynced(sync)
            else:
                self._content.finish_sync(sync)

    def close(self) -> None:
        self._open = False

    def _write(self, kind: str, position: int, data: bytes) -> None:
        with self._operation(kind) as fault:
            fits = int(len(data) * fault.partial) if fault else len(data)
            if self._files.capacity_bytes is not None:
                grows = position + fits - len(self._content.cached)
                fits -= max(0, grows - self._files._room())
            if fits > 0:
                self._content.change(Write(position, data[:fits]))
            if fits < len(data) and fault is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)

    def _operation(self, kind: str) -> _Operation:
        assert self._open, f"{kind} on {self._path}, which is closed"
        return _Operation(self._files, kind, self._path)


class SimulatedLock:
    def __init__(self, locks: dict[str, str], path: str) -> None:
        self._locks = locks
        self._path = path

    def is_in_place(self) -> bool:
        return True

    def release(self) -> None:
        self._locks.pop(self._path, None)


@dataclass
class _Fault:
    kind: str
    path: str
    nth: int
    times: int
    error: int
    partial: float

    def strikes(self, kind: str, path: str) -> bool:
        if kind != self.kind or self.path not in path:
            return False
        self.nth -= 1
        return -self.times < self.nth <= 0


@dataclass
class _CrashPoint:
    kind: str
    nth: int
    after: bool

    def strikes(self, kind: str, *, after: bool) -> bool:
        if after != self.after or self.kind not in ("", kind):
            return False
        self.nth -= 1
        return self.nth == 0


class _Operation:
    """One operation on the disk, from its boundary to its end. Yields the fault it suffers, for
    the damage that goes with it, and raises the error afterwards."""

    def __init__(self, files: SimulatedFiles, kind: str, path: str) -> None:
        self._files = files
        self._kind = kind
        self._path = path
        self._fault: _Fault | None = None

    def __enter__(self) -> _Fault | None:
        self._files._mutex.acquire()
        try:
            self._fault = self._files._begin(self._kind, self._path)
            if self._fault and self._kind in ("create", "truncate", "rename", "remove"):
                raise self._error(self._fault)  # these happen whole or not at all
        except BaseException:
            self._files._mutex.release()
            raise
        return self._fault

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if error is None:
                self._files._end(self._kind)
                if self._fault:
                    raise self._error(self._fault)
        finally:
            self._files._mutex.release()

    def _error(self, fault: _Fault) -> OSError:
        return OSError(fault.error, os.strerror(fault.error), self._path)


def _clean(folder: str) -> str:
    return os.path.normpath(folder) if folder else "."
