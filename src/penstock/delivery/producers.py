"""Idempotent producers: a batch that is sent again after a lost answer is not stored twice.

Each producer numbers its messages from 0 in every epoch, without gaps, for each partition. All that
is needed to recognise a batch stands in the frames of the log (producer id, epoch, base sequence),
so this state is rebuilt from a snapshot and the frames after it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import msgspec

from penstock.errors import InvalidInput, OutOfOrderSequence, ProducerFenced

RECENT = 5  # batches whose offsets are remembered: as many as a producer may have under way
WRAPS_AT = 1 << 31  # where the numbers of Kafka's producers begin again


class Duplicate(NamedTuple):
    """The batch is stored already."""

    offset: int | None  # of its first message; None if it is too long ago to say


class Producers:
    """What each producer has stored in a partition.

    The caller checks, appends and records under one lock. Beyond `producers_max` the one that was
    silent longest is forgotten; if it comes back, it is told to begin a new epoch.
    """

    def __init__(self, producers_max: int = 100_000) -> None:
        self.producers_max = producers_max
        self._producers: OrderedDict[int, _Producer] = OrderedDict()  # last: heard of last

    def __len__(self) -> int:
        return len(self._producers)

    def check(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        count: int,
        *,
        anywhere: bool = False,
    ) -> Duplicate | None:
        """None: the batch is the next one. Raises ProducerFenced or OutOfOrderSequence.

        `anywhere`: a producer that is not known, or no longer, may begin with any number."""
        if base_sequence < 0 or count < 1:
            raise InvalidInput(f"a batch of {count} messages from sequence {base_sequence} on")
        producer = self._producers.get(producer_id)
        if producer is None and anywhere:
            return None
        if producer is not None and epoch < producer.epoch:
            raise ProducerFenced(producer_id, epoch, producer.epoch)
        expected = 0
        if producer is not None and epoch == producer.epoch:
            expected = producer.next_sequence
            if base_sequence + count <= expected:
                return Duplicate(producer.offset_of(base_sequence))
        if base_sequence != expected:
            raise OutOfOrderSequence(producer_id, base_sequence, expected)
        return None

    def unwrapped(self, producer_id: int, epoch: int, sequence: int) -> int:
        """The number meant by one that begins again at 0 after `WRAPS_AT`: the nearest to what is
        to come next."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            return sequence
        rounds = (producer.next_sequence - sequence + WRAPS_AT // 2) // WRAPS_AT
        return sequence + max(rounds, 0) * WRAPS_AT

    def record(
        self, producer_id: int, epoch: int, base_sequence: int, count: int, offset: int
    ) -> None:
        """A batch was stored; also how a recovery tells what stands in the log."""
        producer = self._producers.pop(producer_id, None)
        if producer is None or epoch > producer.epoch:
            producer = _Producer(epoch)
        elif epoch < producer.epoch:
            # A fence was raised while the append was under way; the log has it all the same.
            self._producers[producer_id] = producer
            return
        producer.recent.append((base_sequence, offset))
        del producer.recent[:-RECENT]
        producer.next_sequence = base_sequence + count
        self._keep(producer_id, producer)

    def fence(self, producer_id: int, epoch: int) -> None:
        """From now on only this epoch or a later one counts."""
        producer = self._producers.get(producer_id)
        if producer is None or epoch > producer.epoch:
            self._producers.pop(producer_id, None)
            self._keep(producer_id, _Producer(epoch))

    def epoch(self, producer_id: int) -> int | None:
        producer = self._producers.get(producer_id)
        return None if producer is None else producer.epoch

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self._producers)

    def restore(self, data: bytes | memoryview) -> None:
        try:
            self._producers = OrderedDict(_decoder.decode(data))
        except msgspec.DecodeError as exc:
            raise InvalidInput(f"not a snapshot of producers: {exc}") from exc

    def _keep(self, producer_id: int, producer: _Producer) -> None:
        self._producers[producer_id] = producer
        if len(self._producers) > self.producers_max:
            self._producers.popitem(last=False)


class _Producer(msgspec.Struct, array_like=True):
    epoch: int
    next_sequence: int = 0
    recent: list[tuple[int, int]] = []  # base sequence and first offset, oldest first

    def offset_of(self, sequence: int) -> int | None:
        for base_sequence, offset in reversed(self.recent):
            if base_sequence <= sequence:
                return offset + sequence - base_sequence
        return None


_decoder = msgspec.msgpack.Decoder(dict[int, _Producer])
