"""Files share a bounded number of descriptors, and a process without any stops no log."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.config import LogConfig
from penstock.errors import LogFailed, TooManyOpenFiles
from penstock.log import descriptors
from penstock.log.commit import ManualCommitter
from penstock.log.descriptors import SHARED
from penstock.log.files import DiskFiles
from penstock.log.local import LocalLog
from penstock.record.batch import Batch


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(descriptors, "_OPEN_MAX", 4)
    return 4


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # that of the list itself


def test_the_error_says_that_it_can_be_tried_again() -> None:
    assert TooManyOpenFiles("/data/log").retriable
    assert TooManyOpenFiles("/data/log").errno == errno.EMFILE
    assert "/data/log cannot be opened" in str(TooManyOpenFiles("/data/log"))


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Others have them all, up to the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as closing:
        closing.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, fds())) + 10, hard))
        while True:
            try:
                closing.callback(os.close, os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        yield


def fds() -> list[str]:
    return os.listdir("/proc/self/fd")


def test_more_files_than_descriptors_can_be_written_to_in_turns(tmp_path: Path, few: int) -> None:
    before = len(SHARED)
    files = [DiskFiles().create(str(tmp_path / str(n))) for n in range(20)]
    for turn in range(3):
        for number, file in enumerate(files):
            file.append([f"{number}.{turn} ".encode()])
            if turn == 1:
                file.sync()
        assert len(SHARED) <= max(few, before)
    for number, file in enumerate(files):
        assert (tmp_path / str(number)).read_text() == f"{number}.0 {number}.1 {number}.2 "
        file.close()


def test_a_file_whose_name_is_another_ones_by_now_is_not_written_to(
    tmp_path: Path, few: int
) -> None:
    path = tmp_path / "file"
    file = DiskFiles().create(str(path))
    others = [DiskFiles().create(str(tmp_path / str(n))) for n in range(2 * few)]
    path.rename(tmp_path / "moved")
    path.write_text("another")
    with pytest.raises(OSError, match="another file has its name"):
        file.append([b"x"])
    assert path.read_text() == "another"
    for each in [file, *others]:
        each.close()


def test_writers_that_take_descriptors_from_each_other_write_all_they_have(
    tmp_path: Path, few: int
) -> None:
    files = [DiskFiles().create(str(tmp_path / str(n))) for n in range(3 * few)]

    def write(mine: int) -> None:
        for turn in range(300):
            for number in range(mine, len(files), 3):
                files[number].append([turn.to_bytes(2, "big")])
                if turn % 50 == 0:
                    files[number].sync()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = b"".join(turn.to_bytes(2, "big") for turn in range(300))
    for number, file in enumerate(files):
        file.close()
        assert (tmp_path / str(number)).read_bytes() == wanted


def test_messages_that_somebody_holds_keep_no_descriptor(tmp_path: Path) -> None:
    with LocalLog.open(tmp_path, LogConfig(segment_bytes=4096, free_bytes_min=0)) as log:
        for _ in range(50):
            log.append(Batch.build([b"x" * 1000]))
        log.sync()
        before = open_descriptors()
        held = [log.read(offset, 1) for offset in range(50)]
        assert open_descriptors() <= before
        assert all(batches.messages()[0].value == b"x" * 1000 for batches in held)


@pytest.mark.parametrize("policy", ["always", "interval", "never"])
def test_a_log_goes_on_when_there_are_descriptors_again(tmp_path: Path, policy: str) -> None:
    config = LogConfig(segment_bytes=4096, free_bytes_min=0, fsync=policy)  # type: ignore[arg-type]
    with LocalLog.open(tmp_path, config) as log:
        stored = 0
        for number in range(5):
            log.append(Batch.build([b"before %d" % number])).durable.result()
            stored += 1
        with no_descriptor_left():
            for number in range(20):  # over several segments
                try:
                    log.append(Batch.build([b"x" * 900, b"%d" % number]))
                    stored += 2
                except TooManyOpenFiles:
                    continue
        log.append(Batch.build([b"after"])).durable.result()
        log.sync()
        assert log.durable_end == log.end == stored + 1
        assert log.read(log.end - 1).messages()[0].value == b"after"
    with LocalLog.open(tmp_path, config) as log:
        assert (log.end, log.damage) == (stored + 1, [])


def test_a_sync_without_a_descriptor_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a new segment has to be synced: that opens its folder."""
    clock = ManualClock()
    committer, config = ManualCommitter(clock), LogConfig(fsync="never", free_bytes_min=0)
    with LocalLog.open(tmp_path, config, clock=clock, committer=committer) as log:
        log.append(Batch.build([b"1"]))
        log.roll()
        log.append(Batch.build([b"2"]))

        def none_left(files: DiskFiles, folder: str) -> None:
            raise OSError(errno.EMFILE, "Too many open files", folder)

        with monkeypatch.context() as patch:
            patch.setattr(DiskFiles, "sync_folder", none_left)
            with pytest.raises(TooManyOpenFiles):
                log.sync()
            soon = log.sync_soon()
            committer.run_due()
            assert not soon.done()
        clock.advance(1)
        committer.run_due()
        assert soon.done()
        assert log.durable_end == 2


def test_an_error_of_another_kind_still_stops_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LocalLog.open(tmp_path, LogConfig(fsync="never", free_bytes_min=0))
    log.append(Batch.build([b"1"]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda fd: (_ for _ in ()).throw(OSError(errno.EIO, "no")))
        with pytest.raises(LogFailed):
            log.sync()
    with pytest.raises(LogFailed):
        log.append(Batch.build([b"2"]))
    with pytest.raises(LogFailed):
        log.close()
