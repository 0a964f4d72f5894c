"""The engine of one machine: a data folder with a lock, and a folder in it for each log."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from penstock.clock import Clock, SystemClock
from penstock.config import LogConfig
from penstock.errors import DataFolderLost, LogError, storage_error
from penstock.log.commit import Committer
from penstock.log.files import DiskFiles, FileSystem
from penstock.log.local import LocalLog
from penstock.record.schema import BatchUlids


class LocalEngine:
    """Logs in a folder that this process alone writes to, from now until `close`."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        owner: str = "",
        clock: Clock | None = None,
        files: FileSystem | None = None,
        committer: Committer | None = None,
    ) -> None:
        """Lock a data folder, or make one. `owner` is what a second process is told about who has
        it; by default this process."""
        self.folder = os.path.abspath(os.fspath(folder))
        self.clock = clock or SystemClock()
        self.files = files or DiskFiles()
        self._committer = committer
        self._ulids = BatchUlids()
        self.before_release: Callable[[], None] = lambda: None
        """Called while the folder is still locked, when nothing is written to it any more."""
        try:
            self.files.make_folder(self.folder)
            self._lock = self.files.lock(self.folder, owner or _this_process())
        except OSError as exc:
            raise storage_error(exc, f"{self.folder} cannot be a data folder") from exc

    def open(self, name: str, config: LogConfig) -> LocalLog:
        return LocalLog.open(
            self._path(name),
            config,
            clock=self.clock,
            files=self.files,
            committer=self._committer,
            lock=False,
            ulids=self._ulids,
        )

    def names(self, prefix: str) -> list[str]:
        try:
            return self.files.list(self._path(prefix))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def rename(self, old: str, new: str) -> None:
        source, target = self._path(old), self._path(new)
        self.files.make_folder(os.path.dirname(target))
        self.files.rename(source, target)
        self.files.sync_folder(os.path.dirname(target))
        self.files.sync_folder(os.path.dirname(source))

    def remove(self, prefix: str) -> None:
        self.files.remove_folder(self._path(prefix))

    def is_intact(self) -> bool:
        """Whether the data folder is the one that was locked: not removed, moved or replaced."""
        return self._lock.is_in_place()

    def loss(self) -> LogError:
        return DataFolderLost(self.folder)

    def close(self) -> None:
        if self.is_intact():  # else what lies there is another's
            self.before_release()
        self._lock.release()

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, *name.split("/"))


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
