"""What became of transactions, for those who send one again: `transactions/outcomes/`.

A log of its own: a message is an outcome, its key the transaction's id, its timestamp the moment of
the commit. It is kept for 24 hours, or for the last million. The ids are read when somebody wants
to know of one; in memory they take 16 bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from penstock.config import LogConfig, Retention
from penstock.log.base import PartitionLog
from penstock.model.transactions import KEPT_MAX, KEPT_MS, TransactionOutcome, parse_transaction_id
from penstock.record.batch import Batch

_RETENTION = Retention(age_ms=KEPT_MS)
_CHUNK = 1 << 16
_READ_BYTES = 4 << 20
_PAGE_ROWS = 64

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TransactionOutcome)


OUTCOME_LOG_CONFIG = LogConfig(
    segment_bytes=16 << 20, segment_age_ms=KEPT_MS // 24, codec="zstd", free_bytes_min=0
)


class TransactionOutcomes:
    """The caller holds a lock."""

    def __init__(self, open_log: Callable[[bool], PartitionLog | None]) -> None:
        """`open_log`: the log; told not to make one, None if there is none."""
        self._open_log = open_log
        self._log = open_log(False)
        self._recent: dict[int, list[int]] | None = None
        """By the hash of an id, the offsets where it may be; None: nobody has asked yet."""
        self._recent_count = 0
        self._chunks: list[tuple[np.ndarray, np.ndarray]] = []
        self._oldest = -1, 0  # the first outcome: its offset, and when it was committed

    @property
    def last_number(self) -> int:
        """Of the newest outcome that is here."""
        log = self._log
        if log is None or log.end == log.start:
            return 0
        return max(each.number for each in self._rows(max(log.start, log.end - 1)))

    @property
    def forgotten_before_us(self) -> int:
        """What was committed before this may be forgotten although it is not too old, since more
        came than are kept; 0: nothing is."""
        log = self._log
        if log is None or log.end - log.start < KEPT_MAX:
            return 0
        if self._oldest[0] != log.start:
            self._oldest = log.start, next(self._rows(log.start)).at_us
        return self._oldest[1]

    def append(self, outcomes: Sequence[tuple[bytes, TransactionOutcome]]) -> None:
        """In the order of their numbers."""
        if not outcomes:
            return
        if self._log is None:
            self._log = self._open_log(True)
            assert self._log is not None
        batch = Batch.build(
            [_encoder.encode(outcome) for _, outcome in outcomes],
            keys=[id_ for id_, _ in outcomes],
            timestamps_us=[outcome.at_us for _, outcome in outcomes],
        )
        first = self._log.append(batch).first_offset
        if self._recent is not None:
            self._note([id_ for id_, _ in outcomes], first)

    def ordered(self) -> None:
        if self._log is not None:
            self._log.ordered()

    def find(self, id_: bytes) -> TransactionOutcome | None:
        if self._log is None:
            return None
        if self._recent is None:
            self._read_ids()
        assert self._recent is not None
        wanted = hash(id_)
        offsets = list(self._recent.get(wanted, ()))
        for hashes, places in self._chunks:
            first = int(np.searchsorted(hashes, wanted))
            last = int(np.searchsorted(hashes, wanted, side="right"))
            offsets += places[first:last].tolist()
        for offset in offsets:
            for found in self._rows(offset, only=True) if offset >= self._log.start else ():
                if parse_transaction_id(found.id) == id_:
                    return found
        return None

    def before(self, number: int | None) -> Iterator[TransactionOutcome]:
        """The newest first, from below a number on."""
        log = self._log
        if log is None:
            return
        end = log.end
        while end > log.start:
            start = max(log.start, end - _PAGE_ROWS)
            for outcome in reversed(list(self._rows(start, end))):
                if number is None or outcome.number < number:
                    yield outcome
            end = start

    def retain(self, now_us: int) -> None:
        """Forget what is too old, or too much."""
        if self._log is None:
            return
        self._log.retain(_RETENTION, now_us)
        if self._log.end - self._log.start > KEPT_MAX:
            self._log.trim(self._log.end - KEPT_MAX)
        start = self._log.start
        self._chunks = [chunk for chunk in self._chunks if chunk[1].max() >= start]

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _rows(
        self, offset: int, end: int | None = None, *, only: bool = False
    ) -> Iterator[TransactionOutcome]:
        """From an offset on: up to an end, or to that of the frame, or that one alone."""
        assert self._log is not None
        if end is None:
            batches = list(self._log.read(offset, 1))
        else:
            batches = []
            at = offset
            while at < end:
                read = self._log.read(at, _READ_BYTES)
                batches += read.batches
                at = read.next_offset
        for batch in batches:
            numbers = batch.offset_numbers().tolist()
            for at, value in zip(numbers, batch.values.to_pylist(), strict=True):
                if at >= offset and (end is None or at < end) and not (only and at > offset):
                    yield _decoder.decode(value)

    def _read_ids(self) -> None:
        assert self._log is not None
        self._recent = {}
        offset = self._log.start
        while offset < self._log.end:
            read = self._log.read(offset, _READ_BYTES)
            for batch in read:
                self._note(batch.keys.to_pylist(), int(batch.offset_numbers()[0]))
            offset = read.next_offset

    def _note(self, ids: Sequence[bytes], first: int) -> None:
        assert self._recent is not None
        for offset, id_ in enumerate(ids, first):
            self._recent.setdefault(hash(id_), []).append(offset)
        self._recent_count += len(ids)
        if self._recent_count >= _CHUNK:
            pairs = [(key, at) for key, found in self._recent.items() for at in found]
            table = np.array(pairs, np.int64)
            table = table[np.argsort(table[:, 0], kind="stable")]
            self._chunks.append((table[:, 0].copy(), table[:, 1].copy()))
            self._recent, self._recent_count = {}, 0
