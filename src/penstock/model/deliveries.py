"""What a receive hands out, and how it is settled."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.delivery.offsets import Offsets
from penstock.durations import Duration, parse_ns
from penstock.errors import InvalidInput
from penstock.model.values import Seconds, Short, Small, Whole
from penstock.record.batch import Batch

WAIT_MS_MAX = 30_000

GroupStart: TypeAlias = Literal["earliest", "latest"]
Verb: TypeAlias = Literal["ack", "nack", "reject", "extend"]


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """What one receive handed out of one partition, under one lease."""

    partition: int
    nonce: int
    count: int
    pieces: list[tuple[Batch, int]]
    """Messages, and how often they have been delivered, this time included."""
    firsts: tuple[tuple[int, Offsets], ...] = ()
    """When those were first delivered that come again."""

    def first_delivery_us(self, offset: int) -> int | None:
        """None: now."""
        return next((at_us for at_us, offsets in self.firsts if offset in offsets), None)


class LeasePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages of one lease, as the answer of a receive names it."""

    partition: Small
    lease: Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)]
    offsets: list[Whole] | None = None
    """Some of its messages; by default all."""


class Settle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages by their receipts, by their leases, or both."""

    receipts: Sequence[str] = ()
    leases: Sequence[LeasePart] = ()
    even_if_lost: bool = False
    """Also messages that another consumer holds by now, or whose lease ran out: any receipt that a
    message ever had is good for it. Not where keys are ordered."""


class Nack(Settle, frozen=True, kw_only=True, forbid_unknown_fields=True):
    delay: Seconds | None = None
    """By default the topic's backoff."""
    error: str = ""
    """What went wrong; it is kept for the dead letter."""
    retries: Whole | None = None
    """Dead letters after so many, if that is fewer than the topic allows."""


class Rejection(Settle, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: str = ""


class Extend(Settle, frozen=True, kw_only=True, forbid_unknown_fields=True):
    visibility: Seconds
    """How long the messages are to be held from now on."""


class Receive(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What a consumer wants."""

    max_messages: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10
    wait: Seconds = 0
    """How long to wait for the first message if there is none, at most 30 s."""
    visibility: Seconds | None = None
    """How long the messages are the consumer's; by default the topic's setting."""
    consumer: Short = ""
    """Who it is, for the story of a dead letter."""
    partition: Small | None = None
    start: GroupStart = "earliest"
    """Where a group begins that is not there yet: with the oldest message, or after the newest."""
    ack: Settle | None = None
    """Messages of the same topic and group that are done. They are acked first; if that is refused,
    nothing is received."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be settled."""

    code: str
    detail: str
    partition: int
    offset: int | None = None
    """None: every message of the lease."""
    lease: int = 0
    receipt: str | None = None


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """Everything is settled but what is named here."""

    refused: list[Refusal]


class Settling(msgspec.Struct, frozen=True):
    """What became of a settle, and when it is durable."""

    refused: list[Refusal]
    durable: Sequence[Future[None]]


def poll_seconds(wait: Duration) -> float:
    """How long a receive or a fetch may wait for messages."""
    if type(wait) is int and not wait:
        return 0.0
    wait_ns = parse_ns(wait, "wait")
    if wait_ns > WAIT_MS_MAX * 1_000_000:
        raise InvalidInput(f"wait is {wait!r}; a poll waits 30 seconds at the most")
    return wait_ns / 1e9
