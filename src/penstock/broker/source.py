"""What delivery asks about the messages of a partition, answered from its log."""

from __future__ import annotations

import mmh3
import numpy as np
from numpy.typing import NDArray

from penstock.broker.read_ahead import READ_AHEAD
from penstock.delivery.offsets import EMPTY, Int64s, Offsets
from penstock.log.base import PartitionLog
from penstock.log.frames import FrameTable
from penstock.record.batch import Batch
from penstock.record.frame import EXPIRES
from penstock.record.plain import Plain
from penstock.record.schema import BITS

_SCAN_BYTES = 256 << 10
_FETCH_BYTES_MIN = 4 << 10  # for a message somewhere; whoever reads on from there gets more
_FETCH_BYTES = 64 << 10
_FETCH_BYTES_MAX = 4 << 20
_TABLES_MAX = 32
_TABLES_BYTES_MAX = 8 << 20  # of log; what is not decoded is only mapped


class LogSource:
    """Reads of one partition, with the frames that were read last at hand.

    Each lane is at another place of the log, and whoever receives messages one by one asks for the
    same place again and again. Any thread may call anything.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._tables: tuple[FrameTable, ...] = ()  # those used last first; replaced as a whole
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
            table = self._table_at(start)
            if table is None:
                at = self._log.next_block(start, bit)
                if at >= end:
                    return range(0), end
                table = self._table_at(at) or self._read(at, _SCAN_BYTES)
                start = at
            found, start = table.scan(priority, start, limit, end)
            if len(found):
                return found, start
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
        for batch in self.fetch(self._perhaps_expiring(offsets)):
            if batch.columns & BITS["expires_at"]:
                ends = batch.expires_at.view("int64").fill_null(np.iinfo(np.int64).max)
                expired.append(batch.offset_numbers()[np.asarray(ends) <= wall_us])
        return Offsets.of(np.concatenate(expired)) if expired else EMPTY

    def keys(self, offsets: Offsets) -> NDArray[np.uint64]:
        hashes = dict.fromkeys(offsets, 0)
        for batch in self.fetch(offsets):
            if batch.columns & BITS["key"]:
                numbers = batch.offset_numbers().tolist()
                for offset, key in zip(numbers, batch.keys.to_pylist(), strict=True):
                    if key is not None:
                        hashes[offset] = mmh3.hash64(key, signed=False)[0] or 1
        return np.fromiter(hashes.values(), np.uint64, len(hashes))

    # For the broker.

    def has_read(self, offsets: Offsets, bytes_max: int) -> bool:
        """Whether these messages are among those read last, which have no more bytes together."""
        return any(
            table.start <= offsets.first
            and offsets.stop <= table.stop
            and table.nbytes <= bytes_max
            for table in self._tables
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
            table = self._table_at(at) or self._read_for(at, offsets)
            if offsets.bits is None:
                found += table.run(at, min(stop, table.stop))
            elif at == offsets.first and stop <= table.stop:
                found += table.rows(offsets.bits.to_array())
            else:
                found += table.rows([*(offsets & Offsets.run(at, table.stop))])
            self._asked_last = table.asked_last
            at = offsets.next_from(table.stop)
            if bytes_max is not None and at < stop:
                bytes_max -= sum([batch.payload_bytes for batch in found[counted:]])
                counted = len(found)
                if bytes_max < 0:
                    break
        return found

    def _table_at(self, offset: int) -> FrameTable | None:
        """The frames around an offset, if they are at hand."""
        tables = self._tables
        for table in tables:
            if table.start <= offset < table.stop:
                if table is not tables[0]:
                    self._tables = (table, *[other for other in tables if other is not table])
                return table
        return None

    def forget(self) -> None:
        """Others have read more lately: what was read last is read again if it is wanted."""
        self._tables, self._asked_last = (), Plain(())

    def _read_for(self, offset: int, wanted: Offsets) -> FrameTable:
        """The frames from an offset on, and more of them if it is likely that they are wanted."""
        budget = _FETCH_BYTES_MIN
        if any(table.stop == offset for table in self._tables):
            budget = _FETCH_BYTES
        if wanted.bits is None:
            budget = max(budget, min(wanted.count * 256, _FETCH_BYTES_MAX))
        return self._read(max(offset, self._log.start), budget)

    def _read(self, offset: int, max_bytes: int) -> FrameTable:
        table = self._log.frames(offset, max_bytes)
        left_bytes = _TABLES_BYTES_MAX - table.nbytes
        kept = [table]
        for other in self._tables[: _TABLES_MAX - 1]:
            left_bytes -= other.nbytes
            if left_bytes < 0:
                break
            kept.append(other)
        self._tables = tuple(kept)
        READ_AHEAD.add(self, sum(each.nbytes for each in kept))
        return table

    def _perhaps_expiring(self, offsets: Offsets) -> Offsets:
        """Without those that are known not to expire."""
        table = self._table_at(offsets.first)
        if table is None or table.stop < offsets.stop:
            return offsets
        return Offsets.of(table.expiring([*offsets]))
