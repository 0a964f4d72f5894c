"""What the operating system refuses becomes an error with a code and a sentence, at every door."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.errors import PenstockError, StorageError, storage_error
from penstock.log.files import DiskFile
from tests.integration.broker.doors import DOORS
from tests.integration.broker.world import QuickFiles, World

CODES = {
    errno.EACCES: "access_denied",
    errno.EPERM: "access_denied",
    errno.EROFS: "read_only_file_system",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EMFILE: "too_many_open_files",
    errno.ENFILE: "too_many_open_files",
    errno.ENAMETOOLONG: "path_too_long",
    errno.EIO: "disk_failed",
    errno.EBADF: "storage_error",
}
AT_OPENING = {errno.EIO: "log_failed", errno.ENOSPC: "log_failed", errno.EDQUOT: "log_failed"} | {
    errno.ENAMETOOLONG: "log_failed",
    errno.EBADF: "log_failed",
}
"""Where a log cannot be recovered, it is the log that has failed."""


class RefusingFiles(QuickFiles):
    """Refuses to make or to read files, once it is told to."""

    making: int | None = None
    reading: int | None = None

    def make_folder(self, folder: str) -> None:
        self._refuse(self.making, folder)
        super().make_folder(folder)

    def create(self, path: str) -> DiskFile:
        self._refuse(self.making, path)
        return super().create(path)

    def list(self, folder: str) -> list[str]:
        self._refuse(self.reading, folder)
        return super().list(folder)

    def map(self, path: str, position: int, length: int) -> memoryview:
        self._refuse(self.reading, path)
        return super().map(path, position, length)

    def _refuse(self, number: int | None, path: str) -> None:
        if number is not None:
            raise OSError(number, os.strerror(number), path)


@pytest.fixture(params=sorted(DOORS))
def refusing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "data", request.param, files=RefusingFiles(), auto_create=True)
    yield world
    world.close()


@pytest.mark.parametrize("number", CODES)
def test_each_has_a_code_and_a_sentence(number: int) -> None:
    error = storage_error(OSError(number, os.strerror(number), "/data/some/file"))
    assert error.code == CODES[number]
    assert "/data/some/file" in str(error)
    assert storage_error(error) is error if isinstance(error, OSError) else True


def test_what_is_not_known_keeps_what_the_system_said() -> None:
    error = storage_error(OSError("no number at all"), "it cannot be done")
    assert isinstance(error, StorageError)
    assert str(error) == "it cannot be done: no number at all"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.EMFILE])
def test_publishing_and_receiving_say_what_was_refused(number: int, refusing: World) -> None:
    ps, files = refusing.ps, refusing.files
    assert isinstance(files, RefusingFiles)
    ps.create_topic("orders")
    files.making = number
    for call in (
        lambda: ps.publish("orders", b"a"),
        lambda: ps.receive("orders", "g"),
        lambda: ps.publish_batch("orders", [b"a"] * 3),
        lambda: ps.peek("orders"),
    ):
        with pytest.raises(PenstockError) as refused:
            call()
        assert refused.value.code == CODES[number]
        assert "orders" in str(refused.value)
    files.making = None
    ps.publish("orders", b"a")
    assert [m.value for m in ps.receive("orders", "g")] == [b"a"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_reading_says_what_was_refused(number: int, refusing: World) -> None:
    refusing.ps.create_topic("orders")
    refusing.ps.publish_batch("orders", [b"x" * 1000] * 100)
    refusing.broker.topic(next(iter(refusing.broker.topics())))
    ps = refusing.restart()
    files = refusing.files
    assert isinstance(files, RefusingFiles)
    files.reading = number
    for call in (lambda: ps.receive("orders", "g"), lambda: ps.peek("orders")):
        with pytest.raises(PenstockError) as refused:
            call()
        assert refused.value.code in (CODES[number], AT_OPENING.get(number))
    files.reading = None
    assert len(ps.receive("orders", "g", 100)) == 100


@pytest.mark.parametrize(
    ("folder", "code"),
    [
        ("file/data", "storage_error"),
        ("x" * 300, "path_too_long"),
        ("/proc/penstock", "storage_error"),
    ],
)
def test_a_folder_that_cannot_be_one_is_told_of(folder: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError) as refused:
        penstock.connect(tmp_path / folder)
    assert refused.value.code == code
    command = ["-m", "penstock", "topic", "create", "orders", "--data", str(tmp_path / folder)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"[{code}]" in done.stderr
    assert "Traceback" not in done.stderr
