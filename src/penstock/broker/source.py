"""What delivery asks about the messages of a partition, answered from its log."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import mmh3
import numpy as np
from numpy.typing import NDArray

from penstock.broker.read_ahead import READ_AHEAD
from penstock.delivery.offsets import EMPTY, Int64s, Offsets
from penstock.log.base import PartitionLog
from penstock.record.batch import Batch
from penstock.record.frame import EXPIRES
from penstock.record.plain import Plain
from penstock.record.schema import BITS

_FEW = 100
_SCAN_BYTES = 1 << 20
_FETCH_BYTES_MIN = 64 << 10
_FETCH_BYTES_MAX = 4 << 20
_UNKNOWN = 1 << 62  # bytes: more than anybody takes


class LogSource:
    """Reads of one partition, with the frames that were read last at hand.

    Whoever receives messages one by one asks for the same frame again and again.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._recent = _NOTHING
        self._asked_last = Plain(())  # a frame that is handed out a few messages at a time

    # The Source protocol of penstock.delivery.

    def scan(self, priority: int, start: int, limit: int, end: int) -> tuple[range | Int64s, int]:
        bit = 1 << priority
        while start < end:
            span = self._log.span_at(start)
            stop = min(end, span.next_offset)
            if stop <= start:  # lost to damage: go on behind it
                start = self._log.read(start, 1).next_offset
                continue
            if span.priorities & ~EXPIRES == bit and span.is_dense:
                # The usual case, without reading anything: one priority, and no offset missing.
                stop = min(stop, start + limit)
                return range(start, stop), stop
            at = self._log.next_block(start, bit)
            if at >= end:
                return range(0), end
            found, scanned = self._scan_frames(priority, at, limit, end)
            if len(found):
                return found, scanned
            start = scanned
        return range(0), end

    def priorities(self, start: int, end: int) -> int:
        return self._log.priorities_between(start, end) & ~EXPIRES

    def arrived_us(self, offset: int) -> int:
        batches = self.fetch(Offsets.one(offset))
        return int(batches[0].timestamps_us()[0]) if batches else 0

    def expired(self, offsets: Offsets, wall_us: int) -> Offsets:
        if (
            not offsets.count
            or not self._log.priorities_between(offsets.first, offsets.stop) & EXPIRES
        ):
            return EMPTY
        expired: list[Int64s] = []
        for batch in self.fetch(offsets):
            if batch.columns & BITS["expires_at"]:
                ends = batch.expires_at.view("int64").fill_null(np.iinfo(np.int64).max)
                expired.append(batch.offset_numbers()[np.asarray(ends) <= wall_us])
        return Offsets.of(np.concatenate(expired)) if expired else EMPTY

    def keys(self, offsets: Offsets) -> NDArray[np.uint64]:
        hashes = dict.fromkeys(offsets, 0)
        for batch in self.fetch(offsets):
            if batch.columns & BITS["key"]:
                for offset, key in zip(
                    batch.offsets.to_pylist(), batch.keys.to_pylist(), strict=True
                ):
                    if key is not None:
                        hashes[offset] = mmh3.hash64(key, signed=False)[0] or 1
        return np.fromiter(hashes.values(), np.uint64, len(hashes))

    # For the broker.

    def has_read(self, offsets: Offsets, bytes_max: int) -> bool:
        """Whether these messages are among those read last, which have no more bytes together."""
        recent = self._recent
        return (
            recent.start <= offsets.first
            and offsets.stop <= recent.stop
            and recent.bytes_max <= bytes_max
        )

    def fetch(self, offsets: Offsets, bytes_max: int | None = None) -> list[Batch]:
        """The messages at these offsets, in order; those that are damaged or gone are missing.

        With `bytes_max` it ends, somewhere, when there are more bytes than that.
        """
        last = self._asked_last
        if offsets.bits is None and last.base_offset is not None:
            row = offsets.first - last.base_offset
            if 0 <= row < row + offsets.count <= len(last.payloads):
                return [last.slice(row, offsets.count)]
        found: list[Batch] = []
        counted = 0
        at, stop = offsets.first, offsets.stop
        while at < stop:
            recent = self._recent
            if not recent.start <= at < recent.stop:
                budget = min(max(_FETCH_BYTES_MIN, offsets.count * 256), _FETCH_BYTES_MAX)
                recent = self._recent = _Recent.of(self._log, max(at, self._log.start), budget)
                READ_AHEAD.add(self, budget)
            for number in range(max(bisect_right(recent.bases, at) - 1, 0), len(recent.bases)):
                if recent.bases[number] >= stop:
                    break
                batch = recent.batch(number, offsets.count)
                if type(batch) is Plain:
                    self._asked_last = batch
                chosen = _choose(batch, offsets, at)
                if len(chosen):
                    found.append(chosen)
            at = recent.stop
            if bytes_max is not None and at < stop:
                bytes_max -= sum([batch.payload_bytes for batch in found[counted:]])
                counted = len(found)
                if bytes_max < 0:
                    break
        return found

    def forget(self) -> None:
        """Others have read more lately: what was read last is read again if it is wanted."""
        self._recent, self._asked_last = _NOTHING, Plain(())

    def _scan_frames(
        self, priority: int, start: int, limit: int, end: int
    ) -> tuple[range | Int64s, int]:
        read = self._log.read(start, _SCAN_BYTES)
        parts: list[Int64s] = []
        count = 0
        scanned = start
        for batch in read:
            scanned = min(batch.next_offset, end)
            if batch.columns & BITS["priority"]:
                hits = batch.offset_numbers()[np.asarray(batch.priorities) == priority]
            elif batch.priority == priority:
                hits = batch.offset_numbers()
            else:
                continue
            hits = hits[hits < end][: limit - count]
            parts.append(hits)
            count += len(hits)
            if count == limit:
                return np.concatenate(parts), int(hits[-1]) + 1
        found = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return found, max(min(read.next_offset, end), scanned)


class _Recent(NamedTuple):
    """The frames of one read, and what it covers: what is not in them does not exist."""

    batches: list[Batch]
    bases: tuple[int, ...]
    start: int
    stop: int
    bytes_max: int
    """They have no more."""
    asked: set[int]
    """Frames of which a few messages were wanted: they are wanted again, and as objects."""

    @classmethod
    def of(cls, log: PartitionLog, offset: int, max_bytes: int) -> _Recent:
        read = log.read(offset, max_bytes)
        bases = tuple([batch.base_offset or 0 for batch in read.batches])
        if len(read.batches) == 1:  # a long one is read, whatever the limit is
            max_bytes = _UNKNOWN
        return cls(list(read.batches), bases, offset, read.next_offset, max_bytes, set())

    def batch(self, number: int, wanted: int) -> Batch:
        batch = self.batches[number]
        if wanted <= _FEW and len(batch) > wanted and batch.columns == BITS["value"]:
            if number not in self.asked:
                self.asked.add(number)
            elif not isinstance(batch, Plain):
                batch = self.batches[number] = Plain.of(batch)
        return batch


_NOTHING = _Recent([], (), 0, 0, 0, set())


def _choose(batch: Batch, offsets: Offsets, from_offset: int) -> Batch:
    """The rows of a batch that are wanted, from an offset on."""
    first, stop = batch.base_offset or 0, batch.next_offset
    if offsets.bits is None and not batch.columns & BITS["offset"]:
        low = max(first, offsets.first, from_offset)
        high = min(stop, offsets.stop)
        return (
            batch if (low, high) == (first, stop) else batch.slice(low - first, max(high - low, 0))
        )
    wanted = (offsets & Offsets.run(max(first, from_offset), stop)).array()
    return batch.filter(np.isin(batch.offset_numbers(), wanted))
