"""What callers may give: positions, messages and moments, wherever the broker is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.model.names import TopicName, parse_topic
from penstock.model.settings import WAIT_MS_MAX
from penstock.delivery.offsets import Int64s
from penstock.model.receipts import Receipt
from penstock.durations import Duration, Moment, parse_ns, parse_us
from penstock.errors import InvalidInput, InvalidReceipt
from penstock.group.offsets import AtOffset, AtTime, Earliest, Latest, Start
from penstock.record.batch import Batch, HeaderMap, Payload
from penstock.record.schema import Priority

Position: TypeAlias = Literal["earliest", "latest"] | int | datetime
Messages: TypeAlias = Sequence[Payload] | pa.Table | pa.RecordBatch | Batch


def parse_start(position: Position) -> Start:
    """Where to begin to read, or InvalidInput."""
    if position == "earliest":
        return Earliest()
    if position == "latest":
        return Latest()
    if isinstance(position, datetime):
        return AtTime(parse_us(position))
    if isinstance(position, int) and not isinstance(position, bool) and position >= 0:
        return AtOffset(position)
    raise InvalidInput(
        f'a position is "earliest", "latest", an offset or a datetime; not {position!r}'
    )


def parse_receipts(receipts: str | Sequence[str]) -> list[tuple[str, TopicName, Receipt]]:
    """Receipts with the topics that they name, or InvalidReceipt, before any is used."""
    several = [receipts] if isinstance(receipts, str) else receipts
    if not isinstance(several, Sequence):
        raise InvalidInput(f"a receipt or a list of them is wanted, not {receipts!r:.100}")
    parsed = []
    for text in several:
        receipt = Receipt.parse(text)
        try:
            name = parse_topic(receipt.topic)
        except InvalidInput:
            raise InvalidReceipt(text) from None
        parsed.append((text, name, receipt))
    return parsed


def poll_ns(wait: Duration) -> int:
    """How long a receive may wait."""
    if type(wait) is int and not wait:
        return 0
    wait_ns = parse_ns(wait, "wait")
    if wait_ns > WAIT_MS_MAX * 1_000_000:
        raise InvalidInput(f"wait is {wait!r}; a poll waits 30 seconds at the most")
    return wait_ns


def as_batch(
    messages: Messages,
    keys: Sequence[Payload] | None,
    headers: Sequence[HeaderMap | None] | None,
    priority: int | str | Sequence[int | str],
) -> Batch:
    """Messages as `publish_batch` takes them, as a batch."""
    if isinstance(messages, Batch | pa.Table | pa.RecordBatch):
        if keys is not None or headers is not None or priority != Priority.NORMAL:
            raise InvalidInput("a table brings its own columns 'key', 'headers' and 'priority'")
        return messages if isinstance(messages, Batch) else Batch.from_arrow(messages)
    if isinstance(messages, str | bytes):
        raise InvalidInput("a list of messages is wanted; publish() takes a single one")
    if not hasattr(messages, "__len__"):
        raise InvalidInput(f"a list of messages or a table is wanted, not {messages!r:.100}")
    return Batch.build(messages, keys=keys, headers=headers, priority=priority)


def moments_us(moments: Sequence[Moment] | NDArray[Any]) -> Int64s:
    """Moments as `schedule_batch` takes them, in microseconds since 1970."""
    if set(map(type, moments)) == {float}:
        # Many at once. Up to here, which is the year 2255, a float counts microseconds exactly.
        seconds = np.array(moments)
        if (np.abs(seconds) < 9e9).all():
            return np.rint(seconds * 1e6).astype(np.int64)
    return np.array([parse_us(moment, "deliver_at") for moment in moments], np.int64)


def nack_how(delay: Duration | None, error: str, retries: int | None) -> dict[str, Any]:
    """The options of a nack, as a broker takes them."""
    delay_ns = None if delay is None else parse_ns(delay, "delay")
    how: dict[str, Any] = {"delay_ns": delay_ns, "error": error}
    return how if retries is None else {**how, "retries": retries}
