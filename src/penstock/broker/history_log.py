"""The log in which is kept how things stood: minutes that are over, by topic, and of all together.

It is `history/` in the data folder. A message is one topic in one minute: its key is the topic, its
timestamp the beginning of the minute, its value a `Stored`. The key `NAMESPACE/` is that of all
topics of a namespace together, and `/` that of all. What is stored twice for the same minute adds
up: there was a restart, or the clock was set back.

A minute in which nothing changed for a topic is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.config import DAY_MS, LogConfig, Retention
from penstock.errors import OffsetOutOfRange
from penstock.log.base import Batches, PartitionLog
from penstock.record import compute as pc
from penstock.record.batch import Batch

RETENTION = Retention(age_ms=7 * DAY_MS, bytes_max=256 << 20)
_READ_BYTES = 1 << 20


def history_log_config(free_bytes_min: int) -> LogConfig:
    return LogConfig(
        segment_bytes=16 << 20,
        segment_age_ms=DAY_MS,
        codec="zstd",
        free_bytes_min=free_bytes_min,
    )


class Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """New fields go to the end and need a default."""

    published: int = 0
    delivered: int = 0
    acked: int = 0
    failed: int = 0
    dead_lettered: int = 0
    depth: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    dead: int | None = None
    lag: dict[str, int] = {}


class HistoryNote(NamedTuple):
    key: str
    minute_us: int
    stored: Stored


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Stored)


class HistoryLog:
    """One thread at a time appends; any thread reads."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def append(self, minutes: Sequence[HistoryNote], wall_us: int) -> None:
        batch = Batch.build(
            [_encoder.encode(each.stored) for each in minutes],
            keys=[each.key for each in minutes],
            timestamps_us=[each.minute_us for each in minutes],
        )
        self._log.append(batch)
        self._log.retain(RETENTION, wall_us)

    def read(self, since_us: int, key: str | None = None) -> Iterator[list[HistoryNote]]:
        """What is stored from a time on, of one key or of all, piece by piece."""
        log, wanted = self._log, None if key is None else pa.scalar(key.encode())
        offset = log.find(since_us)
        while offset < log.end:
            read = self._read(offset)
            for batch in read:
                yield _minutes(batch, since_us, wanted)
            offset = read.next_offset

    def close(self) -> None:
        self._log.close()

    def _read(self, offset: int) -> Batches:
        while True:
            try:
                return self._log.read(max(offset, self._log.start), _READ_BYTES)
            except OffsetOutOfRange:  # retention was quicker
                continue


def _minutes(batch: Batch, since_us: int, key: pa.Scalar | None) -> list[HistoryNote]:
    stamps = batch.timestamps_us()
    chosen = stamps >= since_us
    if key is not None:
        chosen &= np.asarray(pc.equal(batch.keys, key).to_numpy(zero_copy_only=False), bool)
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return []
    keys, values = batch.keys.take(rows).to_pylist(), batch.values.take(rows).to_pylist()
    return [
        HistoryNote(name.decode(), stamp_us, _decoder.decode(value))
        for name, stamp_us, value in zip(keys, stamps[rows].tolist(), values, strict=True)
    ]
