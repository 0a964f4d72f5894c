"""A log in memory behaves as one on a disk does."""

from __future__ import annotations

import pytest

from penstock.config import LogConfig
from penstock.errors import DataFolderInUse
from penstock.log.files import write_durably
from penstock.log.local import LocalLog
from penstock.log.memory import MemoryFiles
from penstock.record.batch import Batch

CONFIG = LogConfig(segment_bytes=4096, free_bytes_min=0)


def values(log: LocalLog) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = log.start
    while offset < log.end:
        read = log.read(offset, 1 << 20)
        found += [message.value for message in read.messages()]
        offset = read.next_offset
    return found


def test_what_is_written_is_there_when_the_log_is_opened_again() -> None:
    files = MemoryFiles()
    wanted = [f"message {n}".encode() for n in range(500)]
    with LocalLog.open("/log", CONFIG, files=files) as log:
        for start in range(0, 500, 10):
            log.append(Batch.build(wanted[start : start + 10]))
        assert values(log) == wanted
        assert len([name for name in files.list("/log") if name.endswith(".log")]) > 3
    with LocalLog.open("/log", CONFIG, files=files) as log:
        assert values(log) == wanted
        log.trim(250)
        assert log.start > 0
        assert values(log) == wanted[log.start :]


def test_what_was_read_does_not_change_when_more_is_written() -> None:
    with LocalLog.open("/log", CONFIG, files=MemoryFiles()) as log:
        log.append(Batch.build([b"a"] * 10))
        read = log.read(0, 1 << 20)
        log.append(Batch.build([b"b"] * 1000))
        assert [message.value for message in read.messages()] == [b"a"] * 10


def test_a_folder_is_locked_until_it_is_released() -> None:
    files = MemoryFiles()
    lock = files.lock("/data", "me")
    with pytest.raises(DataFolderInUse, match="in use by me"):
        files.lock("/data", "you")
    lock.release()
    files.lock("/data", "you")


def test_files_and_folders_come_and_go() -> None:
    files = MemoryFiles()
    files.make_folder("/a/b")
    write_durably(files, "/a/b/c", b"12345")
    assert files.list("/a") == ["b"]
    assert files.list("/a/b") == ["c"]
    assert files.read("/a/b/c", 2, 1) == b"23"
    assert bytes(files.map("/a/b/c", 3, 99)) == b"45"
    file = files.open("/a/b/c")
    file.overwrite(4, b"xyz")
    file.truncate(6)
    assert (file.size, files.read("/a/b/c")) == (6, b"1234xy")
    files.remove_folder("/a/b")
    assert files.list("/a") == []
    for gone in (files.size, files.open, files.remove, files.read):
        with pytest.raises(FileNotFoundError):
            gone("/a/b/c")
    with pytest.raises(FileNotFoundError):
        files.list("/a/b")
