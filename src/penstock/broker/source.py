"""What delivery asks about the messages of a partition, answered from its log."""

from __future__ import annotations

from collections.abc import Sequence

import mmh3
import numpy as np
from numpy.typing import NDArray

from penstock.broker.fair_marks import FairMarks
from penstock.broker.read_ahead import READ_AHEAD
from penstock.delivery.fairness import NO_MESSAGE, Marks
from penstock.delivery.offsets import EMPTY, Int64s, Offsets
from penstock.log.base import Appended, PartitionLog
from penstock.log.frames import FEW, FrameTable
from penstock.record.batch import Batch
from penstock.record.frame import EXPIRES
from penstock.record.plain import Plain, Single
from penstock.record.schema import BITS
from penstock.record.single_with_expiry import SingleWithExpiry
from penstock.record.singles import Singles

_SCAN_BYTES = 256 << 10
_FETCH_BYTES_MIN = 4 << 10  # for a single message; reading on from there fetches more
_FETCH_BYTES = 64 << 10
_FETCH_BYTES_MAX = 4 << 20
_MARKS_BYTES = 1 << 20
_MESSAGE_BYTES = 256  # of a usual message, for guesses
_TABLES_MAX = 64
_NOTHING = (-1, -1, ())
_APART_MAX = 32  # messages that are handed out one by one, made at a time
_TABLES_BYTES_MAX = 16 << 20  # of log; what is not decoded is only mapped


class LogSource:
    """Reads of one partition, with the frames that were read last at hand.

    Each lane reads at an offset of its own, and receiving messages one by one asks for the same
    frames again and again. Any thread may call anything.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._tables: tuple[FrameTable, ...] = ()  # those used last first; replaced as a whole
        self._asked_last: Plain | Singles = Plain(())  # handed out a few messages at a time
        self._at_hand: tuple[int, int, tuple[Batch, ...]] = _NOTHING  # from, to, what is there
        self._apart: tuple[int, Sequence[Batch]] = (0, ())
        """The first of some neighbours, and each by itself, for whoever takes one at a time."""
        self.read_up_to = -1
        """One past what was fetched last. What is appended there is likely to be asked for next."""
        self.fair: FairMarks | None = None
        """Set where tenants take turns."""

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
        while not batches and offset < self._log.end:  # compacted away, or damaged: the next one
            read = self._log.read(offset, 1)
            batches, offset = [batch for batch in read if len(batch)], read.next_offset
        return int(batches[0].timestamps_us()[0]) if batches else 0

    def expired(self, offsets: Offsets, wall_us: int) -> Offsets:
        log = self._log
        if not (
            log.may_expire
            and offsets.count
            and log.priorities_between(offsets.first, offsets.stop) & EXPIRES
        ):
            return EMPTY
        expired: list[Int64s] = []
        for batch in self.fetch(self._perhaps_expiring(offsets)):
            if batch.columns & BITS["expires_at"] and batch.first_expiry_us() <= wall_us:
                expired.append(batch.offset_numbers()[batch.expires_us() <= wall_us])
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

    def marks(self, start: int, end: int) -> Marks:
        marks = self.known_marks(start, end)
        if not len(marks):
            first = self._log.start
            if start < first:  # dropped
                return np.full(min(end, first) - start, NO_MESSAGE, np.uint16)
            read = self._log.read(start, _MARKS_BYTES)
            assert self.fair is not None
            self.fair.read(read, start, read.next_offset)
            marks = self.known_marks(start, end)
        return marks

    def known_marks(self, start: int, end: int) -> Marks:
        assert self.fair is not None
        return self.fair.known(start, end)

    # For the broker.

    def appended(self, batch: Batch, at: Appended) -> None:
        """Keep a message that is likely to be asked for next: all before it were read.

        Its bytes in the log need not be mapped and decoded then. Only what nobody can change
        meanwhile is kept, and what is short.
        """
        if (
            at.first_offset == self.read_up_to
            and isinstance(batch, Single | SingleWithExpiry)
            and batch.base_offset is None
            and batch.payload_bytes <= _FETCH_BYTES_MIN
        ):
            stored = batch.stored_at(at.first_offset, at.ulid, at.timestamp_us)
            self._at_hand = at.first_offset, at.next_offset, (stored,)

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
        count, begin = offsets.count, offsets.first
        self.read_up_to = end = begin + 1 if count == 1 else offsets.stop
        if count == 1:
            first, apart = self._apart
            if 0 <= begin - first < len(apart):
                return [apart[begin - first]]
        first, stop, batches = self._at_hand
        if begin == first and end == stop and count == stop - first:
            return [*batches]
        last = self._asked_last
        if offsets.bits is None and last.base_offset is not None:
            row = begin - last.base_offset
            if 0 <= row < row + count <= len(last):
                if count > 1:
                    return [last.slice(row, count)]
                apart = last.apart(row, _APART_MAX)
                self._apart = begin, apart
                return [apart[0]]
        found: list[Batch] = []
        counted = 0
        at, stop = begin, end
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
                    return found
        if offsets.bits is None and offsets.count <= FEW:  # the next question is about the same
            self._at_hand = offsets.first, stop, tuple(found)
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

    def be_fair(self, fair_by: str | None) -> None:
        """Tenants take turns who are told apart by this, or nobody does."""
        if fair_by is None:
            self.fair = None
        elif self.fair is None or self.fair.fair_by != fair_by:
            self.fair = FairMarks(fair_by)

    def forget(self) -> None:
        """Others have read more lately: what was read last is read again if it is wanted."""
        self._tables, self._asked_last = (), Plain(())
        self._at_hand, self._apart = _NOTHING, (0, ())

    def _read_for(self, offset: int, wanted: Offsets) -> FrameTable:
        """The frames from an offset on, and more of them if it is likely that they are wanted."""
        budget = _FETCH_BYTES_MIN
        if any(table.stop == offset for table in self._tables):
            budget = _FETCH_BYTES
        # All up to the last one that is wanted, unless there is too much between them.
        ahead = (wanted.stop - offset) * _MESSAGE_BYTES, wanted.count * _FETCH_BYTES_MIN
        budget = max(budget, min(*ahead, _FETCH_BYTES_MAX))
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
        if offsets.count == 1:  # it is fetched next, whether it expires or not
            return offsets
        table = self._table_at(offsets.first)
        if (
            table is None
            or table.stop < offsets.stop
            or (offsets.bits is None and table.all_expire(offsets.first, offsets.stop))
        ):
            return offsets
        return Offsets.of(table.expiring([*offsets]))
