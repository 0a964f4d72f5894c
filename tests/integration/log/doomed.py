"""A log's life on the real disk, in a process that will not see the end of it.

The life is that of `LogLife` with the same seed in memory, operation by operation: so whoever knows
at which operation the process was killed knows what it had promised by then.

    python -m tests.integration.log.doomed <seed> <policy> <steps>     # in an empty folder

Before each operation its number is written to the file `operations`; that is how the survivors
learn how far it got.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from penstock.config import FsyncPolicy
from penstock.log.files import Buffer, DiskFile, DiskFiles, File
from tests.simulation.disk import SimulatedFiles
from tests.simulation.life import LogLife, small_segments

OPERATIONS_FILE = "operations"


def live(seed: int, policy: FsyncPolicy, steps: int, kill_before: int = 0) -> None:
    """Live in the current folder; `kill_before` says at which operation to end oneself."""
    disk = WatchedDisk(kill_before)
    # It is watched like a simulated disk, and cannot do any of the other things that one can.
    life = LogLife(seed, small_segments(policy), files=cast(SimulatedFiles, disk))
    life.run(steps)


class WatchedDisk(DiskFiles):
    """The real disk, with the boundaries of a simulated one."""

    def __init__(self, kill_before: int = 0) -> None:
        super().__init__()
        self.operations = 0
        self.trace: deque[str] = deque(maxlen=50)
        self.before_operation: Callable[[str, str], None] | None = None
        self.during_sync: Callable[[str], None] | None = None
        self._kill_before = kill_before
        self._progress = os.open(OPERATIONS_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def create(self, path: str) -> File:  # type: ignore[override]
        self.boundary("create", path)
        return WatchedFile(self, path, super().create(path))

    def open(self, path: str) -> File:  # type: ignore[override]
        return WatchedFile(self, path, super().open(path))

    def rename(self, old: str, new: str) -> None:
        self.boundary("rename", old)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        os.stat(path)  # what is not there is no operation
        self.boundary("remove", path)
        super().remove(path)

    def sync_folder(self, folder: str) -> None:
        if os.path.basename(folder) == "log":  # not those above it, when they are made
            self.boundary("sync_folder", folder)
        super().sync_folder(folder)

    def boundary(self, kind: str, path: str) -> None:
        if self.before_operation is not None:
            self.before_operation(kind, path)
        self.operations += 1
        self.trace.append(f"{self.operations}: {kind} {path}")
        os.write(self._progress, b"%d\n" % self.operations)
        if self.operations == self._kill_before:
            os.kill(os.getpid(), 9)


class WatchedFile:
    def __init__(self, disk: WatchedDisk, path: str, file: DiskFile) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    @property
    def size(self) -> int:
        return self._file.size

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._disk.boundary("append", self._path)
        self._file.append(buffers)

    def overwrite(self, position: int, data: Buffer) -> None:
        self._disk.boundary("overwrite", self._path)
        self._file.overwrite(position, data)

    def truncate(self, size: int) -> None:
        self._disk.boundary("truncate", self._path)
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.boundary("sync", self._path)
        if self._disk.during_sync is not None:
            self._disk.during_sync(self._path)
        self._file.sync()

    def close(self) -> None:
        self._file.close()


if __name__ == "__main__":
    live(int(sys.argv[1]), cast(FsyncPolicy, sys.argv[2]), int(sys.argv[3]))
