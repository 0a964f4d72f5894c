"""Which records of a shard's stream count, and in which order: the rule that fences old owners."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.cluster.records import Record, RecordKind
from penstock.errors import ShardDamaged


class Fold:
    """Follows a stream record by record. All who follow the same stream agree.

    A record is void if its term is below the highest before it. It is void, too, if the record that
    its sender had sent before it never arrived, and a void one took its number: then it was never
    confirmed, since its sender waited for the other. Whoever owns the shard next deletes void
    records before any other: without its neighbours a record could not be told to be void.
    """

    def __init__(
        self, seq: int = 0, term: int = 0, crc: int = 0, voids: Iterable[int] = ()
    ) -> None:
        self.seq = seq
        """Of the last record that was seen, whether or not it counts."""
        self.term = term
        """The highest so far."""
        self.crc = crc
        """Of the last record that counts."""
        self.voids = list(voids)
        """Records that do not count, and may still be in the stream."""

    def take(self, seq: int, record: Record) -> bool:
        """Whether the next record counts. Raises ShardDamaged if it does not follow the others."""
        if seq <= self.seq:
            raise ShardDamaged(seq, f"it comes again after {self.seq}")
        before, self.seq = self.seq, seq
        if record.kind is RecordKind.TERM:
            counts = record.term > self.term
            self.term = max(record.term, self.term)
        elif record.term > self.term:
            raise ShardDamaged(seq, f"term {record.term} was never begun")
        else:
            # Where a record was purged nothing is known of it.
            follows = record.previous == self.crc or before != seq - 1
            counts = record.term == self.term and follows
            if record.term == self.term and not follows and not self._is_void(before):
                raise ShardDamaged(seq, "it does not follow the record before it")
        if counts:
            self.crc = record.crc
        else:
            self.voids.append(seq)
        return counts

    def _is_void(self, seq: int) -> bool:
        return bool(self.voids) and self.voids[-1] == seq
