"""A broker on a real folder, whose time is the test's, and who can be restarted and killed."""

from __future__ import annotations

import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.broker.broker import Broker, BrokerConfig
from penstock.clock import ManualClock
from penstock.log.files import Buffer, DiskFile, DiskFiles, FileSystem
from penstock.log.local_engine import LocalEngine
from penstock.model.names import TopicName
from tests.integration.broker.doors import DOORS, Door

NS = 1_000_000_000
EVENT_S_MAX = 20


class World:
    """What a scenario acts in. `ps` is the client; time stands still between calls to `pass_`."""

    def __init__(
        self,
        folder: Path,
        door: str = "sync",
        *,
        namespace: str = "default",
        files: FileSystem | None = None,
        **config: Any,
    ) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.files = files or QuickFiles()
        self._door = door
        self._namespace = namespace
        self._config = BrokerConfig(**{"free_bytes_min": 0} | config)
        self._killed: list[Door] = []
        self._copies = 0
        self._open()

    def _open(self) -> None:
        engine = LocalEngine(self.folder, clock=self.clock, files=self.files)
        self.broker = Broker(engine, self._config, housekeeping=False)
        self._current = DOORS[self._door](self.broker, self._namespace)
        self.ps = self._current.client

    def pass_(self, seconds: float) -> None:
        """Let time pass, and let the broker do all that fell due."""
        self.clock.advance(seconds)
        self.broker.housekeep()

    def restart(self, down_s: float = 0, **config: Any) -> Any:
        """Close the broker and open it again, with other settings if they are given."""
        self.close()
        self._config = BrokerConfig(**{"free_bytes_min": 0} | config)
        self.clock.advance(down_s)
        self._open()
        return self.ps

    def kill(self, down_s: float = 0) -> Any:
        """Go on from what a `kill -9` at this moment leaves."""
        return self.go_on_in(self.copy(), down_s)

    def copy(self) -> Path:
        """The folder as a `kill -9` at this moment leaves it: all that the kernel was given."""
        self._copies += 1
        copy = self.folder.with_name(f"{self.folder.name}-{self._copies}")
        shutil.copytree(self.folder, copy, copy_function=_copy_if_there)
        return copy

    def go_on_in(self, folder: Path, down_s: float = 0) -> Any:
        """Another broker takes over in a copy of the folder; the present one counts for nothing."""
        self._killed.append(self._current)
        self.folder = folder
        self.clock.advance(down_s)
        self._open()
        return self.ps

    def close(self) -> None:
        self._current.close()

    def close_all(self) -> None:
        for door in [*self._killed, self._current]:
            door.close()

    def client(self, namespace: str) -> Any:
        """Another client of the same broker; closing it is the first one's business."""
        return DOORS["sync"](self.broker, namespace).client

    def polls(self, topic: str, count: int = 1) -> None:
        """Wait until so many receives or streams are waiting for news of a topic."""
        name = TopicName(self._namespace, topic)
        until(lambda: self._current.polls(name) >= count)


class QuickFiles(DiskFiles):
    """The real disk without its syncs, which are for power cuts: what is written stays written.

    `before_append`, where set, is called with the path before each write at the end of a file.
    """

    before_append: Callable[[str], None] | None = None

    def create(self, path: str) -> DiskFile:
        return _QuickFile(self, path, super().create(path))

    def open(self, path: str) -> DiskFile:
        return _QuickFile(self, path, super().open(path))

    def sync_folder(self, folder: str) -> None:
        pass


class _QuickFile(DiskFile):
    def __init__(self, files: QuickFiles, path: str, file: DiskFile) -> None:
        super().__init__(file._descriptor, file.size)
        self._files = files
        self._path = path

    def append(self, buffers: Sequence[Buffer]) -> None:
        if self._files.before_append is not None:
            self._files.before_append(self._path)
        super().append(buffers)

    def sync(self) -> None:
        pass


def until(true: Callable[[], bool]) -> None:
    """Wait for something that other threads are about to do."""
    deadline = time.monotonic() + EVENT_S_MAX
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)


class Background:
    """A call in a thread of its own, and its result."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout_s: float = EVENT_S_MAX) -> Any:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the call does not return"
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as exc:  # noqa: BLE001 - it is raised again where it is asked for
            self._error = exc


def values(messages: Any) -> list[bytes]:
    return [message.value for message in messages]


def take(ps: Any, topic: str = "orders", group: str = "g", **how: Any) -> list[bytes]:
    """Receive all that is ready, and ack it."""
    messages = ps.receive(topic, group, **{"max_messages": 1000} | how)
    for message in messages:
        message.ack()
    return values(messages)


def drain(stream: Any) -> list[bytes]:
    """All that there is to read now."""
    got = []
    while (message := stream.next(0)) is not None:
        got.append(message.value)
    return got


def _copy_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # an index that is being laid down changes its name
        if stat.S_ISSOCK(os.lstat(source).st_mode):
            return
        shutil.copy2(source, target)
