"""Reading a log in order: as columns beside a plain read, as objects beside another queue."""

from __future__ import annotations

from pathlib import Path

from bench import messages
from bench.figures import at_least
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.peers import queuelib, raw
from penstock.log.local import LocalLog
from penstock.record.batch import Batch

_BATCHES = 1000
_POOL = 100
_SINGLES = 200_000
_READ_BYTES = 1 << 20
_READ_BYTES_DEFAULT = 4 << 20
_SMALL_BATCH = 100  # what the buffered appender writes


def run(bench: Bench) -> None:
    with bench.folder() as folder:
        large, small = str(folder / "large"), str(folder / "small")
        _fill(large, _BATCHES, messages.BATCH_MESSAGES)
        _fill(small, _BATCHES * messages.BATCH_MESSAGES // _SMALL_BATCH, _SMALL_BATCH)
        _columns(bench, large, small)
    _objects(bench)
    bench.note(
        f"Columns: log.read in steps of {_READ_BYTES >> 20} MiB, every frame's CRC32C checked, the "
        "column of values taken; beside a plain read of the same segment files, all in the page "
        "cache. Bytes are those of the files."
    )


def _columns(bench: Bench, large: str, small: str) -> None:
    race = bench.race(
        "columns",
        [
            raw.read(segment_files(large)),
            _read_columns("read columns", large),
            _read_columns("read columns, 4 MiB at a time", large, _READ_BYTES_DEFAULT),
            _read_columns("read columns, frames of 100", small),
        ],
    )
    bench.compare(race, "read columns", "plain read", at_least(0.5), "B")
    bench.compare(race, "read columns, 4 MiB at a time", "plain read", None, "B")
    bench.compare(race, "read columns, frames of 100", "plain read", None, "B")


def _objects(bench: Bench) -> None:
    values = messages.values(_SINGLES)
    race = bench.race("objects", [_read_messages(values), queuelib.pop(values)])
    bench.compare(race, "read messages", "queuelib pop", at_least(1.5), "messages")


def segment_files(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*.log"))


def _fill(folder: str, batches: int, batch_messages: int) -> None:
    pool = messages.in_batches(messages.values(_POOL * batch_messages), batch_messages)
    with LocalLog.open(folder) as log:
        for number in range(batches):
            log.append(Batch.build(pool[number % _POOL]))


def _read_columns(name: str, folder: str, max_bytes: int = _READ_BYTES) -> Contender:
    file_bytes = sum(path.stat().st_size for path in segment_files(folder))

    def run(_: Path) -> Sample:
        with LocalLog.open(folder) as log:
            rows = 0
            with stopwatch(file_bytes) as sample:
                offset, end = log.start, log.end
                while offset < end:
                    batches = log.read(offset, max_bytes)
                    for batch in batches:
                        rows += len(batch.values)
                    offset = batches.next_offset
            _expect(rows, log.end - log.start)
        return sample

    return Contender(name, run)


def _read_messages(values: list[bytes]) -> Contender:
    """Every message as an object, its value looked at, as `queuelib.pop` gives it."""

    def run(folder: Path) -> Sample:
        with LocalLog.open(str(folder / "log")) as log:
            for batch in messages.in_batches(values):
                log.append(Batch.build(batch))
            total_bytes = 0
            with stopwatch(len(values)) as sample:
                offset, end = log.start, log.end
                while offset < end:
                    batches = log.read(offset, _READ_BYTES)
                    for batch in batches:
                        for message in batch:
                            total_bytes += len(message.value)
                    offset = batches.next_offset
            _expect(total_bytes, sum(map(len, values)))
        return sample

    return Contender("read messages", run)


def _expect(got: int, wanted: int) -> None:
    """A contender that does less than its work must not win."""
    if got != wanted:
        raise RuntimeError(f"the log gave back {got:,} of {wanted:,}")
