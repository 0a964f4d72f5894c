"""The stream of a shard in memory, with all that a network may do to what is sent to it.

What is sent lies on its way until `deliver` is called. Seeded faults: records overtake each other
or are lost; confirmations are late, lost, or overtake each other; what an owner sent that was
replaced arrives at any time later. The stream itself does what JetStream does: it takes a record
only right behind the one that the sender named, and keeps what it has taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from penstock.cluster.records import RecordKind, decode
from penstock.cluster.writer import RECORD_BYTES, Outgoing, ShardWriter


class Faults(NamedTuple):
    """How often each happens, from 0 to 1."""

    lost: float = 0
    overtaken: float = 0
    ack_lost: float = 0
    ack_overtaken: float = 0
    late: float = 0
    """A record that stays on its way until `deliver_late`: its sender is a zombie by then."""


NO_FAULTS = Faults()


class _Sent(NamedTuple):
    writer: ShardWriter
    record: Outgoing


class MemoryStream:
    """One thread uses it."""

    def __init__(self, shard: int = 0, rng: Random | None = None) -> None:
        self.shard = shard
        self.name = "memory"
        self.record_bytes = RECORD_BYTES
        self.records: dict[int, bytes] = {}
        self.end = 0
        self.faults = NO_FAULTS
        self.void_taken = 0
        """Records that were taken from owners that had been replaced."""
        self._rng = rng or Random(0)
        self._way: list[_Sent] = []
        self._late: list[_Sent] = []
        self._acks: list[Callable[[], None]] = []

    # What a takeover asks.

    def last_seq(self) -> int:
        return self.end

    def last_term(self) -> bytes | None:
        terms = [data for data in self.records.values() if decode(data, 0).kind is RecordKind.TERM]
        return terms[-1] if terms else None

    def begin_term(self, data: bytes, last_seq: int) -> int | None:
        return self._store(data) if last_seq == self.end else None

    def read(self, first_seq: int, last_seq: int) -> Iterator[tuple[int, bytes]]:
        for seq in range(first_seq, last_seq + 1):
            if seq in self.records:
                yield seq, self.records[seq]

    def next_of(self, log: int, seq: int) -> tuple[int, bytes] | None:
        for number in range(seq, self.end + 1):
            data = self.records.get(number)
            if data is not None:
                record = decode(data, number)
                if record.log == log and record.kind is RecordKind.FRAMES:
                    return number, data
        return None

    def delete(self, seq: int) -> None:
        self.records.pop(seq, None)

    def purge(self, log: int, before_seq: int) -> None:
        """Drop the frames of a log that lie before a record."""
        for seq, data in list(self.records.items()):
            record = decode(data, seq)
            if seq < before_seq and record.log == log and record.kind is RecordKind.FRAMES:
                del self.records[seq]

    # The way of what an owner sends.

    def send(self, writer: ShardWriter) -> None:
        """Take from a writer what it has to send."""
        self._way += [_Sent(writer, record) for record in writer.next_records()]

    def deliver(self) -> None:
        """Whatever is on its way arrives, or does not."""
        rng, faults = self._rng, self.faults
        if rng.random() < faults.overtaken:
            rng.shuffle(self._way)
        way, self._way = self._way, []
        for sent in way:
            chance = rng.random()
            if chance < faults.lost:
                continue
            if chance < faults.lost + faults.late:
                self._late.append(sent)
                continue
            self._arrive(sent)
        if rng.random() < faults.ack_overtaken:
            rng.shuffle(self._acks)
        acks, self._acks = self._acks, []
        for ack in acks:
            if rng.random() >= faults.ack_lost:
                ack()

    def deliver_late(self) -> None:
        """What was held up arrives, in any order."""
        late, self._late = self._late, []
        self._rng.shuffle(late)
        for sent in late:
            self._arrive(sent)
        self._acks.clear()  # nobody listens any more

    def lose_acks(self) -> None:
        """The owner is gone: what it sent may still arrive, and nobody hears of it."""
        self._late += [sent for sent in self._way if self._rng.random() < 0.7]
        self._way.clear()
        self._acks.clear()

    def _arrive(self, sent: _Sent) -> None:
        seq = sent.record.seq
        if seq == self.end + 1:
            stored = self._store(sent.record.data)
            self._acks.append(lambda: sent.writer.acked(seq, stored))
        else:
            told = f"wrong last sequence: {self.end}"
            self._acks.append(lambda: sent.writer.acked(seq, None, told))

    def _store(self, data: bytes) -> int:
        self.end += 1
        self.records[self.end] = data
        return self.end
