"""Delayed messages of a folder in which a topic had one log for those of all its partitions.

They were to be given their partition when they fell due: the one that a header named, that of
their key, or any. Now each waits in its partition. Those of partition 0 stay where they are, and
keep the ids by which they can be cancelled; the others are appended to the logs of theirs. Then the
old log becomes that of partition 0, which is what tells that all of this is done: a crash before
leaves what is recognised by the ids of the messages, and not appended again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import mmh3
import numpy as np
import pyarrow as pa

from penstock.broker.delays import Delays
from penstock.broker.partition import Partition
from penstock.broker.topic import moved_ids
from penstock.delivery.offsets import Offsets
from penstock.log.base import PartitionLog
from penstock.log.engine import Engine
from penstock.record.batch import Batch, Message

PARTITION_HEADER = "penstock-partition"
"""Was on a delayed message that was sent to a certain partition."""

OpenDelays: TypeAlias = Callable[[str, Partition, Iterable[pa.Array], Sequence[Partition]], Delays]


def split_delays(
    engine: Engine, prefix: str, partitions: Sequence[Partition], open_delays: OpenDelays
) -> None:
    """Give each partition of a topic its own delays; `prefix`: below which its logs are."""
    arrived = [ids for partition in partitions for ids in moved_ids(partition)]
    old = open_delays(f"{prefix}/delays", partitions[0], arrived, partitions)
    try:
        if len(partitions) > 1:
            _move_out(old, prefix, partitions, open_delays)
    finally:
        old.close()
    engine.rename(f"{prefix}/delays", f"{prefix}/00000/delays")


def _move_out(
    old: Delays, prefix: str, partitions: Sequence[Partition], open_delays: OpenDelays
) -> None:
    for number, offsets in _by_partition(old, len(partitions)).items():
        new = open_delays(f"{prefix}/{number:05d}/delays", partitions[number], (), ())
        try:
            known = _ids(new.log)
            for batch in old.fetch(offsets):
                fresh = [row for row, id_ in enumerate(batch.ids.to_pylist()) if id_ not in known]
                if fresh:
                    new.add_moved(_without_header(batch.take(fresh)))
            new.log.sync()  # before the old log lets them go
            old.finish(offsets)
        finally:
            new.close()
    old.checkpoint()  # and with it go entries that name other partitions than the first


def _by_partition(old: Delays, partitions: int) -> dict[int, Offsets]:
    """The messages that cannot stay where they are, by where they go."""
    found: dict[int, list[int]] = {}
    after = 0
    while page := old.pending(after, 1000):
        for _, waiting in page:
            message = waiting.message
            number = _partition_of(message, partitions)
            if number:
                found.setdefault(number, []).append(message.offset)
        after = page[-1][1].message.offset + 1
    return {number: Offsets.of(np.array(offsets)) for number, offsets in found.items()}


def _partition_of(message: Message, partitions: int) -> int:
    header = message.headers.get(PARTITION_HEADER)
    if header and header.isdigit() and len(header) <= 9 and int(header) < partitions:
        return int(header)
    if message.key is not None:
        return mmh3.hash(message.key, signed=False) % partitions
    return message.offset % partitions


def _without_header(batch: Batch) -> Batch:
    headers = [dict(message.headers) for message in batch.messages()]
    if not any(PARTITION_HEADER in each for each in headers):
        return batch
    for each in headers:
        each.pop(PARTITION_HEADER, None)
    return batch.with_headers(headers, instead=True)


def _ids(log: PartitionLog) -> set[bytes]:
    found: set[bytes] = set()
    offset = log.start
    while offset < log.end:
        read = log.read(offset)
        found.update(id_ for batch in read for id_ in batch.ids.to_pylist())
        offset = read.next_offset
    return found
