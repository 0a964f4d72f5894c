"""A log in a folder of its own, with a clock and a committer that only move when told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config import LogConfig
from penstock.errors import PenstockError
from penstock.log.commit import ManualCommitter
from penstock.log.local import LocalLog
from tests.unit.log.watched import WatchedFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def committer(clock: ManualClock) -> ManualCommitter:
    return ManualCommitter(clock)


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


class Opener:
    """Opens logs in the test's folder; those that the test leaves open are closed after it."""

    def __init__(
        self, folder: Path, clock: ManualClock, committer: ManualCommitter, files: WatchedFiles
    ) -> None:
        self._folder = folder
        self._defaults = {"clock": clock, "committer": committer, "files": files}
        self.opened: list[LocalLog] = []

    def __call__(
        self,
        folder: Path | None = None,
        *,
        clock: Any = None,
        committer: Any = None,
        files: Any = None,
        **config: Any,
    ) -> LocalLog:
        given = {"clock": clock, "committer": committer, "files": files}
        parts = self._defaults | {name: part for name, part in given.items() if part is not None}
        settings = LogConfig(**{"free_bytes_min": 0} | config)
        log = LocalLog.open(folder or self._folder, settings, **parts)
        self.opened.append(log)
        return log


@pytest.fixture
def open_log(
    folder: Path, clock: ManualClock, committer: ManualCommitter, files: WatchedFiles
) -> Iterator[Opener]:
    opener = Opener(folder, clock, committer, files)
    yield opener
    files.before = files.after = None
    for log in opener.opened:
        with suppress(PenstockError):
            log.close()
