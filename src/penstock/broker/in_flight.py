"""What a group was handed and has not settled, message by message."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.delivery.queue import GroupQueue
from penstock.errors import InvalidInput
from penstock.model.names import TopicName
from penstock.model.receipts import Receipt
from penstock.model.stats import InFlightMessage, InFlightPage


def in_flight_page(
    topic: Topic, group: str, after: str | None, limit: int, clock: Clock
) -> InFlightPage:
    """Messages by partition and offset, from one past `after` on."""
    first, offset = _parse_after(after)
    found: list[InFlightMessage] = []
    for partition in topic.partitions[first:]:
        with partition.lock:
            queue = partition.queues.get(group)
            if queue is not None:
                start = offset if partition.number == first else 0
                every = _of_partition(topic.name, partition, group, queue, start, clock)
                found += islice(every, limit + 1 - len(found))
        if len(found) > limit:
            last = found[limit - 1]
            return InFlightPage(messages=found[:limit], next=f"{last.partition}-{last.offset}")
    return InFlightPage(messages=found, next=None)


def _of_partition(
    name: TopicName,
    partition: Partition,
    group: str,
    queue: GroupQueue,
    start: int,
    clock: Clock,
) -> Iterator[InFlightMessage]:
    """The partition's lock is held."""
    state, histories = queue.state, queue.state.retries.histories
    # Deadlines are told by the wall clock, and kept in the ledger's own time.
    wall_us, now_ns = clock.wall_ns() // 1000, queue.ledger_ns(clock.monotonic_ns())
    leased = {
        offset: (lease, part.delivery_count)
        for lease in state.leases
        for part in lease.parts_of(lease.held())
        for offset in part.offsets
        if offset >= start
    }
    for offset in state.outstanding.iter_equal_or_larger(start):
        history = histories.get(offset)
        if offset in leased:
            lease, count = leased[offset]
            deadline_ns = (lease.extended or {}).get(offset, lease.deadline_ns)
            receipt = Receipt(str(name), partition.number, offset, count, lease.nonce)
            yield InFlightMessage(
                partition=partition.number,
                offset=offset,
                state="leased",
                delivery_count=count,
                receipt=str(receipt),
                consumer=lease.consumer,
                first_delivery_us=lease.wall_us if history is None else history.first_us,
                last_delivery_us=lease.wall_us,
                deadline_us=wall_us + (deadline_ns - now_ns) // 1000,
                error="" if history is None else history.error,
            )
        elif history is not None:
            yield InFlightMessage(
                partition=partition.number,
                offset=offset,
                state="retrying",
                delivery_count=history.deliveries,
                receipt=None,
                consumer=history.consumer,
                first_delivery_us=history.first_us,
                last_delivery_us=history.last_us,
                deadline_us=wall_us + (history.due_ns - now_ns) // 1000,
                error=history.error,
            )


def _parse_after(after: str | None) -> tuple[int, int]:
    """The partition and the offset to begin with."""
    if after is None:
        return 0, 0
    partition, dash, offset = after.partition("-")
    for part in (partition, offset):
        if not dash or not part.isascii() or not part.isdigit() or len(part) > 18:
            raise InvalidInput(f"after is {after!r:.100}; it is the `next` of a page")
    return int(partition), int(offset) + 1
