"""What an append costs by the size of the batch, by the size of the values, and by codec."""

from __future__ import annotations

from pathlib import Path

from bench import messages
from bench.figures import Curve
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.peers import raw
from bench.suites.log_append import append_lists, append_tables, as_table
from bench.units import quantity, rate
from penstock.config import LogConfig
from penstock.log.local import LocalLog
from penstock.record.batch import Batch

_BATCH_SIZES = (1, 10, 100, 1000, 10_000)
_VALUE_SIZES = (10, 100, 1000, 10_000, 100_000, 1_000_000)
_CODECS = ("none", "lz4", "zstd", "gzip")
_RUN_BYTES_MAX = 20_000_000
_RUN_APPENDS_MAX = 2000
_ROUNDS = 3


def run(bench: Bench) -> None:
    _by_batch_size(bench)
    _by_value_size(bench)
    _by_codec(bench)


def _by_batch_size(bench: Bench) -> None:
    """Small batches pay for each append, large ones for each byte."""
    from_lists, from_tables = "from lists", "from Arrow"
    lines: dict[str, list[tuple[float, float]]] = {from_lists: [], from_tables: []}
    for size in _BATCH_SIZES:
        batches = _batches(size, messages.VALUE_BYTES)
        tables = [as_table(values) for values in batches]
        race = bench.race(
            f"batches of {size:,}",
            [append_lists(from_lists, batches), append_tables(from_tables, tables)],
            _ROUNDS,
        )
        for name, line in lines.items():
            line.append((size, 1e6 / race.rate(name).median))
    bench.curve(
        Curve(
            "Append by batch size", "messages of 100 B a batch", "us a message", lines, y_log=True
        )
    )
    first, last = lines[from_lists][0][1], lines[from_lists][-2][1]
    detail = f"{quantity(first, 'us')} / {quantity(last, 'us')} a message, from lists"
    bench.figure("a message alone / in a batch of 1000, cost", first / last, detail=detail)


def _by_value_size(bench: Bench) -> None:
    lines: dict[str, list[tuple[float, float]]] = {"append lists / raw write": []}
    for size in _VALUE_SIZES:
        batches = _batches(max(1, min(1000, 1_000_000 // size)), size)
        joined = [b"".join(values) for values in batches]
        race = bench.race(
            f"values of {size:,} B",
            [append_lists("append", batches), raw.write(joined, units=sum(map(len, batches)))],
            _ROUNDS,
        )
        lines["append lists / raw write"].append((size, race.ratio("append", "raw write").median))
    bench.curve(Curve("Append by value size", "bytes a value", "x raw write", lines))
    bench.note("By value size: batches of 1 MB, or of 1000 messages where that is less.")


def _by_codec(bench: Bench) -> None:
    values = messages.documents(50 * messages.BATCH_MESSAGES)
    batches = messages.in_batches(values)
    stored = {}
    for codec in _CODECS:
        with bench.folder() as folder:
            stored[codec] = _stored_bytes(folder, batches, codec)
    writing = bench.race("codecs, writing", [_write(batches, codec) for codec in _CODECS], _ROUNDS)
    with bench.folder() as folder:
        reading = bench.race(
            "codecs, reading", [_read(folder, batches, codec) for codec in _CODECS], _ROUNDS
        )
    for codec in _CODECS[1:]:
        detail = f"JSON documents of 200 B; stored {stored[codec] / stored['none']:.2f} of the size"
        for verb, race in (("append", writing), ("read", reading)):
            speed = rate(race.rate(codec).median, "B")
            ratio = race.ratio(codec, "none")
            bench.figure(f"{verb} with {codec} / none", ratio, detail=f"{speed}; {detail}")


def _batches(batch_messages: int, value_bytes: int) -> list[list[bytes]]:
    """Enough appends for a steady figure, within what a run may write."""
    appends = min(_RUN_APPENDS_MAX, max(5, _RUN_BYTES_MAX // (batch_messages * value_bytes)))
    pool = messages.in_batches(messages.values(5 * batch_messages, value_bytes), batch_messages)
    return [pool[number % len(pool)] for number in range(appends)]


def _fill(folder: Path, batches: list[list[bytes]], codec: str) -> LocalLog:
    log = LocalLog.open(str(folder), LogConfig(codec=codec))
    for values in batches:
        log.append(Batch.build(values))
    return log


def _stored_bytes(folder: Path, batches: list[list[bytes]], codec: str) -> int:
    with _fill(folder / "log", batches, codec) as log:
        return log.size_bytes


def _write(batches: list[list[bytes]], codec: str) -> Contender:
    payload_bytes = sum(len(value) for values in batches for value in values)

    def run(folder: Path) -> Sample:
        with stopwatch(payload_bytes) as sample:
            log = _fill(folder / "log", batches, codec)
        log.close()
        return sample

    return Contender(codec, run)


def _read(folder: Path, batches: list[list[bytes]], codec: str) -> Contender:
    payload_bytes = sum(len(value) for values in batches for value in values)
    _fill(folder / codec, batches, codec).close()

    def run(_: Path) -> Sample:
        with LocalLog.open(str(folder / codec)) as log, stopwatch(payload_bytes) as sample:
            offset = log.start
            while offset < log.end:
                offset = log.read(offset).next_offset
        return sample

    return Contender(codec, run)
