"""Ctrl-C in the middle of anything: the log goes on, and nothing that it confirmed is lost."""

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config import LogConfig
from penstock.log.base import Appended
from penstock.log.commit import ManualCommitter
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import messages, values
from tests.unit.log.watched import WatchedFiles, failing


def interrupted_append(log: LocalLog, files: WatchedFiles, value: str, when: str) -> None:
    hook = failing("append", KeyboardInterrupt(), ".log")
    setattr(files, when, hook)
    with pytest.raises(KeyboardInterrupt):
        log.append(Batch.build([value]))
    setattr(files, when, None)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_append_never_was(open_log: Opener, files: WatchedFiles, when: str) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    interrupted_append(log, files, "never", when)
    assert log.end == 1
    assert log.append(Batch.build(["b"])).first_offset == 1
    assert values(log) == [b"a", b"b"]
    log.close()
    log = open_log()
    assert values(log) == [b"a", b"b"]
    assert log.damage == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_segment_that_is_sealed_after_an_interrupted_append_ends_where_it_counts(
    open_log: Opener, files: WatchedFiles, when: str
) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    interrupted_append(log, files, "never", when)
    log.roll()
    log.append(Batch.build(["b"]))
    log.close()
    log = open_log()
    assert values(log) == [b"a", b"b"]
    assert log.damage == []


def test_an_interrupt_while_a_commit_is_planned_leaves_it_to_the_next_append(
    open_log: Opener,
    clock: ManualClock,
    committer: ManualCommitter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_log(fsync="interval", fsync_interval_ms=1000)

    def interrupt(delay_ms: float, task: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(committer, "schedule", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.append(Batch.build(["a"]))
    log.append(Batch.build(["b"]))
    clock.advance(1)
    committer.run_due()
    assert log.durable_end == log.end == 2


def test_a_write_that_reached_the_disk_before_the_interrupt_does_not_count_either(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    written = os.pwritev

    def interrupted(*arguments: object) -> int:
        written(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwritev", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append(Batch.build(["a longer message that nobody was told of"]))
    monkeypatch.undo()
    log.roll()
    log.append(Batch.build(["b"]))
    log.close()
    log = open_log()
    assert values(log) == [b"a", b"b"]
    assert log.damage == []


def test_closing_after_an_interrupted_append_leaves_a_whole_log(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    interrupted_append(log, files, "perhaps", "after")
    log.close()
    log = open_log()
    assert values(log) in ([b"a"], [b"a", b"perhaps"])
    assert log.append(Batch.build(["b"])).first_offset == len(values(log)) - 1
    assert log.damage == []


def test_an_interrupted_sync_leaves_nobody_waiting(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter
) -> None:
    log = open_log(fsync="always")
    first = log.append(Batch.build(["a"]))
    files.before = failing("sync", KeyboardInterrupt(), ".log")
    with pytest.raises(KeyboardInterrupt):
        log.sync()
    second = log.append(Batch.build(["b"]))
    assert not first.durable.done()
    committer.run_due()
    assert log.durable_end == 2
    assert first.durable.done()
    assert second.durable.done()


def test_an_interrupted_close_can_be_repeated(open_log: Opener, files: WatchedFiles) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    files.before = failing("sync", KeyboardInterrupt(), ".log")
    with pytest.raises(KeyboardInterrupt):
        log.close()
    log.close()
    assert values(open_log()) == [b"a"]


def test_an_interrupt_at_any_line_of_a_roll_leaves_a_whole_log(open_log: Opener) -> None:
    log = open_log()
    rolls = LocalLog._roll.__code__, LocalLog._go_on_in.__code__
    written: list[bytes] = []
    reached = 0
    for line in range(1, 100):
        left = line

        def interrupt(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if frame.f_code not in rolls:
                return None
            left -= event == "line"
            if not left:
                sys.settrace(None)
                raise KeyboardInterrupt
            return interrupt

        log.append(Batch.build([b"before %d" % line]))
        sys.settrace(interrupt)
        try:
            log.roll()
        except KeyboardInterrupt:
            reached += 1
        finally:
            sys.settrace(None)
        log.append(Batch.build([b"after %d" % line]))
        log.sync()
        written += [b"before %d" % line, b"after %d" % line]
        assert values(log) == written
        if left > 0:
            break
    assert reached > 8
    log.close()
    log = open_log()
    assert values(log) == written
    assert log.damage == []


class Life:
    """A little of everything that a log does to its files, interrupted once on the way."""

    def __init__(self, folder: Path, interrupt_at: int, when: str) -> None:
        self.files = WatchedFiles()
        self.folder = folder
        self.clock = ManualClock()
        self.committer = ManualCommitter(self.clock)
        self.left = interrupt_at
        self.confirmed: dict[int, bytes] = {}
        self.waiting: list[Appended] = []
        self.said: set[bytes] = set()
        self.log = self.opened()
        setattr(self.files, when, self.interrupt)

    def opened(self) -> LocalLog:
        config = LogConfig(segment_bytes=4096, fsync="always", free_bytes_min=0)
        return LocalLog.open(
            self.folder, config, clock=self.clock, files=self.files, committer=self.committer
        )

    def interrupt(self, what: str, name: str) -> None:
        if what in ("open", "map", "read"):
            return  # they change nothing
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def run(self) -> None:
        for number in range(9):
            self.attempt(lambda n=number: self.append(b"%d" % n))
            if number % 3 == 2:
                self.attempt(self.committer.run_due)
            if number == 5:
                self.attempt(lambda: self.log.trim(2))
            if number == 7:
                self.attempt(lambda: self.log.compact(0))
        self.attempt(self.log.sync)

    def attempt(self, step: object) -> None:
        try:
            step()  # type: ignore[operator]
        except KeyboardInterrupt:
            assert self.left == 0, "an interrupt that nobody made"

    def append(self, name: bytes) -> None:
        value = name.ljust(1400, b".")
        self.said.add(value)
        appended = self.log.append(Batch.build([value]))
        self.confirmed[appended.first_offset] = value
        self.waiting.append(appended)

    def check(self, log: LocalLog) -> None:
        held = {message.offset: message.value for message in messages(log)}
        assert sorted(held) == list(range(log.start, log.end))
        for offset, value in self.confirmed.items():
            if offset >= log.start:
                assert held[offset] == value, f"offset {offset}"
        assert set(held.values()) <= self.said
        assert log.damage == []


def test_an_interrupt_at_any_step_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    reached = 0
    for when in ("before", "after"):
        for step in range(1, 1000):
            life = Life(tmp_path / f"{when}{step}", step, when)
            life.run()
            if life.left > 0:
                break
            reached += 1
            where = f"interrupted {when} {life.files.done}"
            life.files.before = life.files.after = None
            life.check(life.log)
            life.log.sync()
            life.committer.run_due()
            assert all(a.durable.done() and not a.durable.exception() for a in life.waiting), where
            life.log.close()
            with life.opened() as log:
                life.check(log)
    assert reached > 80
