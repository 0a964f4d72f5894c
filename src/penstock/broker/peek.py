"""Looking at messages without consuming them: positions, peeking, and reading for streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.delivery.offsets import Offsets
from penstock.errors import OffsetOutOfRange
from penstock.group.offsets import AtOffset, AtTime, Earliest, Latest
from penstock.log.base import Damage, PartitionLog
from penstock.model.groups import FetchedPart, PartitionOffset
from penstock.model.messages import MessagePage
from penstock.model.positions import parse_position
from penstock.model.values import StreamPosition
from penstock.record.batch import Batch
from penstock.record.schema import BITS

_PEEK_BYTES = 64 << 10


def offsets_at(topic: Topic, at: StreamPosition, partition: int | None) -> dict[int, int]:
    """The offset at a position, in one partition or in all."""
    partitions = topic.partitions if partition is None else [topic.partition(partition)]
    match parse_position(at):
        case Earliest():
            return {p.number: p.log.start for p in partitions}
        case Latest():
            return {p.number: p.log.end for p in partitions}
        case AtTime(timestamp_us=stamp_us):
            return {p.number: p.log.find(stamp_us) for p in partitions}
        case AtOffset(offset=offset):
            return {p.number: offset for p in partitions}


def within(partition: Partition, offset: int) -> int:
    """The offset, brought within what the partition holds."""
    return min(max(offset, partition.log.start), partition.log.end)


def peek(
    topic: Topic, at: StreamPosition, partition: int | None, limit: int, bytes_max: int | None
) -> MessagePage:
    """Messages from a position on; of all partitions in the order of time."""
    starts = offsets_at(topic, at, partition)
    pages = [
        _peek_one(topic.partition(number), offset, limit, bytes_max)
        for number, offset in starts.items()
    ]
    if len(pages) == 1:
        return pages[0]
    batches, partitions = _by_time(pages, limit, bytes_max)
    return MessagePage(
        batches=batches,
        partitions=partitions,
        partition=None,
        next_offset=sum(map(len, batches)),
        start=0,
        end=sum(page.end - page.start for page in pages),
        damage=[each for page in pages for each in page.damage],
    )


def _peek_one(partition: Partition, offset: int, limit: int, bytes_max: int | None) -> MessagePage:
    log = partition.log
    at = within(partition, offset)
    left, bytes_left = limit, 1 << 62 if bytes_max is None else bytes_max
    gone = partition.passed_over()
    found: list[Batch] = []
    damage: list[Damage] = []
    while at < log.end and left > 0:
        read = log.read(at, _PEEK_BYTES)
        for batch in _without(read, gone):
            rows = min(left, len(batch))
            if batch.payload_bytes > bytes_left:
                rows = min(rows, max(batch.rows_within(bytes_left), 0 if found else 1))
            if rows:
                found.append(batch if rows == len(batch) else batch.slice(0, rows))
                left -= rows
                bytes_left -= found[-1].payload_bytes
            if rows < len(batch):
                left = 0  # the page ends here
        at = found[-1].next_offset if left <= 0 and found else read.next_offset
        damage += [each for each in read.damage if each.first_offset < at]
    return MessagePage(
        batches=found,
        partitions=[partition.number] * len(found),
        partition=partition.number,
        next_offset=at,
        start=log.start,
        end=log.end,
        damage=damage,
    )


def _by_time(
    pages: Sequence[MessagePage], limit: int, bytes_max: int | None
) -> tuple[list[Batch], list[int]]:
    """The oldest messages of several partitions, row by row where these are interleaved, and in
    which partition each batch of them lies."""
    batches = [batch for page in pages for batch in page.batches]
    partitions = [number for page in pages for number in page.partitions]
    if not batches:
        return [], []
    stamps = np.concatenate([batch.timestamps_us() for batch in batches])
    owner = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    row = np.concatenate([np.arange(len(batch)) for batch in batches])
    order = np.argsort(stamps, kind="stable")[:limit]
    found: list[Batch] = []
    lie_in: list[int] = []
    left = 1 << 62 if bytes_max is None else bytes_max
    # Rows of one batch that are neighbours in time stay together.
    cuts = np.flatnonzero(np.diff(owner[order])) + 1
    for run in np.split(order, cuts):
        if not len(run) or left <= 0:
            break
        part = batches[owner[run[0]]].take(row[run])
        left -= part.payload_bytes
        found.append(part)
        lie_in.append(partitions[owner[run[0]]])
    return found, lie_in


def read_partition(partition: Partition, offset: int, max_bytes: int) -> MessagePage:
    """Messages as they lie in the log, from an offset that has to be there."""
    log = partition.log
    read = log.read(offset, max_bytes)
    batches = _without(read, partition.passed_over())
    return MessagePage(
        batches=batches,
        partitions=[partition.number] * len(batches),
        partition=partition.number,
        next_offset=read.next_offset,
        start=log.start,
        end=log.end,
        damage=list(read.damage),
    )


def nothing_yet(partition: Partition, position: PartitionOffset) -> FetchedPart:
    """The answer to who is to read on later."""
    log = partition.log
    return FetchedPart(
        topic=position.topic,
        partition=position.partition,
        next_offset=position.offset,
        start=log.start,
        end=log.end,
    )


def fetch(
    partition: Partition,
    position: PartitionOffset,
    bytes_left: int,
    now_us: int,
    *,
    durable: bool = False,
) -> FetchedPart:
    """What a stream reads on from a position; nothing if there are no bytes left for it."""
    log, next_offset = partition.log, position.offset
    end = stable_end(log) if durable else log.end
    batches: list[Batch] = []
    out_of_range = False
    if next_offset > end:
        out_of_range = next_offset > log.end
    elif bytes_left > 0:
        try:
            read = log.read(position.offset, bytes_left)
        except OffsetOutOfRange:
            out_of_range = True
        else:
            next_offset = min(read.next_offset, end)
            seen = _without(read, partition.passed_over(by_streams=True))
            if read.next_offset > end:
                seen = [_before(batch, end) for batch in seen]
            batches = [alive for alive in (_alive(batch, now_us) for batch in seen) if len(alive)]
    return FetchedPart(
        topic=position.topic,
        partition=position.partition,
        next_offset=next_offset,
        start=log.start,
        end=end,
        out_of_range=out_of_range,
        batches=batches,
    )


def stable_end(log: PartitionLog) -> int:
    """Up to where no power cut takes messages back, as far as the topic promises that of what is
    published; up to the end if it does not."""
    return log.durable_end if log.config.fsync == "always" else log.end


def _without(read: Iterable[Batch], gone: Offsets) -> list[Batch]:
    """What is left of the batches; empty ones are left out."""
    if not gone.count:
        return list(read)
    found = []
    for batch in read:
        numbers = batch.offset_numbers()
        here = gone & Offsets.run(int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else gone
        if here.count:
            batch = batch.filter(~np.isin(numbers, here.array()))
        if len(batch):
            found.append(batch)
    return found


def _before(batch: Batch, end: int) -> Batch:
    """The messages below an offset."""
    return batch.slice(0, int(np.searchsorted(batch.offset_numbers(), end)))


def _alive(batch: Batch, now_us: int) -> Batch:
    """Without what has expired."""
    if not batch.columns & BITS["expires_at"]:
        return batch
    ends = batch.expires_us()
    return batch if (ends > now_us).all() else batch.filter(ends > now_us)
