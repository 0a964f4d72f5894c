"""The log under the queue, in one short run: `.venv/bin/python examples/log_demo.py`.

Every number is measured while you watch. Everything happens in a temporary folder;
`--keep some/folder` leaves it there to be looked at.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.config import LogConfig
from penstock.log.appender import BufferedAppender
from penstock.log.files import DiskFile, DiskFiles
from penstock.log.inspect import inspect_log
from penstock.log.local import LocalLog
from penstock.log.segment_scan import Options
from penstock.record.batch import Batch
from penstock.record.schema import Priority

HOUR_US = 3600 * 1_000_000
SMALL_SEGMENTS = LogConfig(segment_bytes=4 << 20, codec="lz4")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--keep", type=Path, help="leave the data in this folder")
    options.add_argument("--writer", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    logging.disable()  # the log reports damage there, too; here it is part of the story
    if given.writer:
        write_until_killed(given.writer)
    began = time.monotonic()
    story = Story()
    with folder_for(given.keep) as folder:
        batches(story, folder / "orders")
        group_commit(story, folder / "payments")
        reading(story, folder / "orders")
        priorities(story, folder / "orders")
        kill(story, folder / "killed")
        damage(story, folder / "orders")
        compaction(story, folder / "prices")
        story.chapter("Where to look next")
        if given.keep:
            story.say(f"The data is in {folder}:  penstock inspect {folder} --limit 3")
    story.say("docs/howto/log.md       the same, step by step, in your own program")
    story.say("docs/internals/log.md   every byte on disk, and what happens in a crash")
    story.say("make bench              figures beside those of other queues, on this machine")
    story.say("make torture            crashes, power cuts and damage, by the thousand")
    story.say("penstock inspect -h     the files of a log, frame by frame")
    story.done(time.monotonic() - began)


def batches(story: Story, folder: Path) -> None:
    story.chapter("A log is a folder, and a batch of columns is what it takes")
    orders = [
        [f'{{"order": {number}, "total": {random.random():.4f}}}' for number in range(1000)]
        for _ in range(20)
    ]
    keys = [f"customer-{i % 97}" for i in range(1000)]
    with LocalLog.open(folder, SMALL_SEGMENTS) as log:
        began = time.perf_counter()
        for number in range(300):
            log.append(Batch.build(orders[number % 20], keys=keys))
        took = time.perf_counter() - began
        log.sync()
        raw = sum(segment.raw_bytes for segment in inspect_log(folder).segments)
        story.table(
            ("appended", f"{log.end:,} messages in 300 batches, from Python lists"),
            ("in", f"{took:.2f} s: {log.end / took:,.0f} messages a second"),
            ("on disk", f"{log.size_bytes / 1e6:.1f} MB in {len(log.segments)} segments"),
            ("before lz4", f"{raw / 1e6:.1f} MB"),
        )


def group_commit(story: Story, folder: Path) -> None:
    story.chapter("Confirmed means on disk: fsync 'always', shared by the threads that wait")
    rows = []
    for threads in (1, 16):
        files = CountingFiles()
        config = LogConfig(fsync="always")
        with LocalLog.open(folder / f"{threads}-threads", config, files=files) as log:
            files.syncs = 0
            count, took = confirmed_by(threads, log)
            share = f"{count / files.syncs:.1f} messages to an fsync"
            label = "1 thread" if threads == 1 else f"{threads} threads"
            rows.append((label, f"{count / took:,.0f} confirmed messages a second, {share}"))
    story.table(*rows)


def confirmed_by(threads: int, log: LocalLog) -> tuple[int, float]:
    """Single messages, each waited for; how many, and how long it took."""
    each = 400 // threads

    def work(name: int) -> None:
        for i in range(each):
            priority = Priority.HIGH if i % 10 == 0 else Priority.NORMAL
            message = Batch.build([b"pay"], keys=[f"account-{name}"], priority=priority)
            log.append(message).durable.result()

    workers = [threading.Thread(target=work, args=(name,)) for name in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return each * threads, time.perf_counter() - began


def reading(story: Story, folder: Path) -> None:
    story.chapter("Read from an offset or from a time, as columns or as messages")
    with LocalLog.open(folder, SMALL_SEGMENTS) as log:
        log.find(0)  # the first call loads a part of Arrow
        time.sleep(0.01)
        now_us = time.time_ns() // 1000
        with BufferedAppender(log) as appender:  # gathers single messages into batches
            for i in range(1000):
                appender.send(f"late {i}", key="night-shift", expires_at_us=now_us + HOUR_US)
        began = time.perf_counter()
        found = log.find(now_us)
        find_us = (time.perf_counter() - began) * 1e6
        message = log.read(found).messages()[0]
        began = time.perf_counter()
        offset = count = size = 0
        while offset < log.end:
            part = log.read(offset, 4 << 20)
            count += len(part)
            size += sum(batch.nbytes for batch in part)
            offset = part.next_offset
        took = time.perf_counter() - began
        story.table(
            ("by time", f"offset {found:,} is the first of this chapter; in {find_us:,.0f} us"),
            ("a message", f"{message.value!r}, key {message.key!r}"),
            ("its id", message.id),
            ("all, as columns", f"{count:,} messages, decompressed and checked, in {took:.3f} s"),
            ("", f"{count / took / 1e6:.1f} million a second, {size / took / 1e9:.1f} GB/s"),
        )


def priorities(story: Story, folder: Path) -> None:
    story.chapter("One critical message behind many others")
    with LocalLog.open(folder, SMALL_SEGMENTS) as log:
        log.append(Batch.build([b"the pump is on fire"], priority="critical"))
        for _ in range(20):
            log.append(Batch.build([b"all is well"] * 1000, priority="low"))
        mask = 1 << Priority.CRITICAL
        log.next_block(log.start, mask)  # the indexes are read once
        began = time.perf_counter()
        offset = log.next_block(log.start, mask)
        took_us = (time.perf_counter() - began) * 1e6
        critical = next(m for m in log.read(offset).messages() if m.priority == Priority.CRITICAL)
        story.table(
            ("backlog", f"{log.end - log.start:,} messages"),
            ("found", f"{critical.value!r} at offset {critical.offset:,}"),
            ("in", f"{took_us:,.0f} us, by the masks in the index; no message was read"),
        )


def kill(story: Story, folder: Path) -> None:
    story.chapter("kill -9 in the middle of writing, five times over")
    confirmed = 0
    torn = []
    for _ in range(5):
        command = [sys.executable, __file__, "--writer", str(folder)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()  # it is at work
        time.sleep(random.uniform(0.1, 0.3))
        child.send_signal(signal.SIGKILL)
        told = [int(line) for line in child.stdout.read().split("\n")[:-1]]
        child.wait()
        child.stdout.close()
        confirmed = max([confirmed, *told])
        torn.append(sum(s.unfinished_bytes for s in inspect_log(folder).segments))
    with LocalLog.open(folder) as log:
        offset = found = 0
        while offset < log.end:
            part = log.read(offset)
            offset, found = part.next_offset, found + len(part)
        story.table(
            ("confirmed before a kill", f"{confirmed:,} messages"),
            ("found afterwards", f"{found:,}; {found - confirmed:,} of them not yet confirmed"),
            ("confirmed and lost", f"{max(confirmed - found, 0)}"),
            ("half-written bytes cut", ", ".join(f"{count:,}" for count in torn)),
            ("damage", f"{len(log.damage)} places"),
        )
    assert found >= confirmed, "a confirmed message was lost"


def write_until_killed(folder: Path) -> None:
    """The other process: it says aloud up to which offset it was promised durability."""
    log = LocalLog.open(folder, LogConfig(fsync="always", segment_bytes=8 << 20))
    batch = Batch.build([b"x" * 1000] * 1000)
    print("at work", flush=True)
    while True:
        appended = log.append(batch)
        appended.durable.result()
        print(appended.next_offset, flush=True)


def damage(story: Story, folder: Path) -> None:
    story.chapter("A bit flips on the disk")
    segment = sorted(folder.glob("*.log"))[1]
    position = segment.stat().st_size // 2
    with segment.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
    began = time.perf_counter()
    report = inspect_log(folder, Options(deep=True))
    took = time.perf_counter() - began
    with LocalLog.open(folder) as log:
        offset = found = 0
        while offset < log.end:
            part = log.read(offset)
            offset, found = part.next_offset, found + len(part)
        lost = sum(d.next_offset - d.first_offset for d in log.damage)
        story.table(
            ("flipped", f"bit 4 of byte {position:,} of {segment.name}"),
            ("penstock inspect", str(report.damage[0])),
            ("", f"the whole log was verified in {took:.2f} s"),
            ("readers get", f"{found:,} messages; {lost:,} are skipped and reported"),
            ("sum", f"{found + lost:,} of {log.end - log.start:,} accounted for"),
        )


def compaction(story: Story, folder: Path) -> None:
    story.chapter("Compaction keeps the last message of each key and drops what has expired")
    now_us = time.time_ns() // 1000
    with LocalLog.open(folder, LogConfig(segment_bytes=1 << 20)) as log:
        for round_ in range(300):
            prices = [f"price {round_}" for _ in range(100)]
            keys = [f"item-{i}" for i in range(100)]
            log.append(Batch.build(prices, keys=keys))
            log.append(Batch.build([b"offer of the minute " * 5] * 10, expires_at_us=now_us))
        log.roll()
        last = log.end
        began = time.perf_counter()
        done = log.compact(now_us + 1, keyed=True)
        took = time.perf_counter() - began
        left = log.read(log.start).messages()
        story.table(
            ("before", f"{last:,} messages, {done.bytes_before / 1e6:.2f} MB"),
            (
                "after",
                f"{last - done.messages_removed:,} messages, {done.bytes_after / 1e6:.3f} MB",
            ),
            ("in", f"{took:.2f} s; offsets stay as they were: the first is now {left[0].offset:,}"),
        )


class CountingFiles(DiskFiles):
    """The real disk, counting its fsyncs."""

    syncs = 0

    def create(self, path: str) -> CountedFile:
        return CountedFile(super().create(path), self)

    def open(self, path: str) -> CountedFile:
        return CountedFile(super().open(path), self)


class CountedFile:
    def __init__(self, file: DiskFile, counter: CountingFiles) -> None:
        self._file = file
        self._counter = counter

    def sync(self) -> None:
        self._counter.syncs += 1
        self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Story:
    """Headings, sentences and small tables; plain lines where there is no terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._chapters = 0

    def chapter(self, title: str) -> None:
        self._chapters += 1
        self._console.print(f"\n[bold cyan]{self._chapters}. {title}[/]")

    def say(self, text: str) -> None:
        self._console.print(f"   {text}", markup=False)

    def table(self, *rows: tuple[str, str]) -> None:
        if not self._console.is_terminal:
            for name, text in rows:
                self.say(f"{name}: {text}" if name else text)
            return
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 3))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for name, text in rows:
            table.add_row(name, text.replace("[", "\\["))
        self._console.print(table)

    def done(self, took_s: float) -> None:
        self._console.print(f"\n[green]Done in {took_s:.1f} s.[/]")


@contextmanager
def folder_for(keep: Path | None) -> Iterator[Path]:
    if keep:
        if keep.exists() and any(os.scandir(keep)):
            sys.exit(f"{keep} is not empty; give --keep a new folder")
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        yield Path(folder)


if __name__ == "__main__":
    main()
