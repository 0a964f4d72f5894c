"""What is checked of a transaction before any lock is taken: its size, and its messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.broker.publishing import due_us, expiring
from penstock.delivery.offsets import Int64s
from penstock.errors import InvalidInput, RequestTooLarge
from penstock.model.names import TopicName, dedup_names, topic_name
from penstock.model.settings import parse_dedup_window_ms
from penstock.model.transactions import BYTES_MAX, MESSAGES_MAX, StagedMessages, StagedTransaction
from penstock.record.batch import Batch

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class GivenMessages(NamedTuple):
    """Messages that were given together, checked."""

    name: TopicName
    batch: Batch
    partition: int | None
    due_us: int | Int64s | None
    dedup_names: Sequence[bytes | None] | None
    window_ms: int


def check_messages(
    broker: Broker, namespace: str, now_us: int, staged: StagedMessages
) -> GivenMessages:
    """Messages that were given together, as they are published. Raises what is wrong."""
    name = topic_name(staged.topic, namespace)
    batch, at = staged.batch, staged.deliver_at
    due: int | Int64s | None
    if isinstance(at, np.ndarray):
        if staged.delay is not None:
            raise InvalidInput("give delay or deliver_at, not both")
        if len(at) != len(batch):
            raise InvalidInput(f"{len(batch)} messages, but {len(at)} of deliver_at")
        due = at
    else:
        due = due_us(staged.delay, at, broker.clock.wall_ns())
    names, window_ms = None, 0
    if staged.dedup_ids is not None:
        names = dedup_names(staged.dedup_ids, len(batch))
    if staged.dedup_window is not None:
        if names is None:
            raise InvalidInput("dedup_window says how long a dedup_id is remembered: give one")
        window_ms = parse_dedup_window_ms(staged.dedup_window)
    broker.check(
        name,
        batch,
        partition=staged.partition,
        dedup_ids=staged.dedup_ids,
        deliver_at_us=due,
    )
    tenants = broker.tenants
    if tenants.limited:
        tenants.check_message_bytes(name.namespace, batch)
    batch = expiring(batch, staged.ttl, now_us if due is None else due)
    return GivenMessages(name, batch, staged.partition, due, names, window_ms)


def check_size(staged: StagedTransaction) -> None:
    messages = sum(len(each.batch) for each in staged.messages)
    if messages > MESSAGES_MAX:
        raise RequestTooLarge(f"{messages:,} messages in one transaction; at most {MESSAGES_MAX:,}")
    size = sum(each.batch.payload_bytes for each in staged.messages)
    if size > BYTES_MAX:
        raise RequestTooLarge(f"{size:,} bytes in one transaction; at most {BYTES_MAX >> 20} MiB")
    if len(staged.messages) + len(staged.settle) + len(staged.offsets) > MESSAGES_MAX:
        raise RequestTooLarge(f"more than {MESSAGES_MAX:,} items in one transaction")
