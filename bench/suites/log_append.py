"""Appending to a log: batches beside a raw write, single messages beside other queues."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import pyarrow as pa

from bench import messages
from bench.figures import at_least
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.peers import ledgerq, persist_queue, queuelib, raw
from penstock.log.appender import BufferedAppender
from penstock.log.local import LocalLog
from penstock.record.batch import Batch

_BATCHES = 1000
_POOL = 100  # different batches; they are sent again and again, so that memory stays small
_SINGLES = 200_000
_SINGLES_SLOW = 1000  # for a peer that needs a hundred times as long

_DEFAULTS = "default settings: fsync every second, segments of 64 MB"


def run(bench: Bench) -> None:
    _batches(bench)
    _singles(bench)
    bench.note(
        "Batches: 1000 random messages of 100 B each. Building the batch from the Python list or "
        "the Arrow record batch is timed, as are the frame, its CRC32C and the write."
    )
    bench.note(f"Penstock: {_DEFAULTS}. send: BufferedAppender with its defaults, flush timed.")


def _batches(bench: Bench) -> None:
    pool = messages.in_batches(messages.values(_POOL * messages.BATCH_MESSAGES))
    lists = list(islice(cycle(pool), _BATCHES))
    tables = list(islice(cycle([as_table(values) for values in pool]), _BATCHES))
    joined = list(islice(cycle([b"".join(values) for values in pool]), _BATCHES))
    race = bench.race(
        "batches",
        [
            raw.write(joined, units=_BATCHES * messages.BATCH_MESSAGES),
            append_lists("append lists", lists),
            append_tables("append Arrow", tables),
            ledgerq.enqueue_batch([value for batch in lists for value in batch], bench.cache),
        ],
        rounds=2 * bench.rounds - 1,  # short runs, close ratios
    )
    bench.compare(race, "append lists", "raw write", at_least(0.25), "messages")
    bench.compare(race, "append Arrow", "raw write", at_least(0.6), "messages")
    bench.compare(race, "append lists", "LedgerQ enqueue batch", at_least(1), "messages")


def _singles(bench: Bench) -> None:
    values = messages.values(_SINGLES)
    race = bench.race(
        "single messages",
        [
            _send(values),
            queuelib.push(values),
            persist_queue.put(values[:_SINGLES_SLOW]),
            ledgerq.enqueue(values, bench.cache),
        ],
    )
    bench.compare(race, "send", "queuelib push", at_least(1.5), "messages")
    bench.compare(race, "send", "persist-queue put", at_least(200), "messages")
    bench.compare(race, "send", "LedgerQ enqueue", at_least(0.5), "messages")


def append_lists(name: str, batches: Sequence[Sequence[bytes]]) -> Contender:
    """Each list made into a batch and appended; all messages counted."""

    def run(folder: Path) -> Sample:
        count = sum(map(len, batches))
        with LocalLog.open(str(folder / "log")) as log, stopwatch(count) as sample:
            for values in batches:
                log.append(Batch.build(values))
        return sample

    return Contender(name, run, _DEFAULTS)


def append_tables(name: str, tables: Sequence[pa.RecordBatch]) -> Contender:
    def run(folder: Path) -> Sample:
        rows = sum(table.num_rows for table in tables)
        with LocalLog.open(str(folder / "log")) as log, stopwatch(rows) as sample:
            for table in tables:
                log.append(Batch.from_arrow(table))
        return sample

    return Contender(name, run, _DEFAULTS)


def _send(values: Sequence[bytes]) -> Contender:
    def run(folder: Path) -> Sample:
        with LocalLog.open(str(folder / "log")) as log:
            appender = BufferedAppender(log)
            send = appender.send
            with stopwatch(len(values)) as sample:
                for value in values:
                    send(value)
                appender.flush()
            appender.close()
        return sample

    return Contender("send", run, _DEFAULTS)


def as_table(values: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})
