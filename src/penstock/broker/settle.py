"""Settling by receipts and by leases: grouped by partition, and refused one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

from penstock.broker.settlement import Settlement
from penstock.delivery.offsets import Offsets
from penstock.errors import (
    DeliveryError,
    InvalidInput,
    InvalidReceipt,
    PartitionNotFound,
    TopicNotFound,
)
from penstock.log.base import DONE
from penstock.model.deliveries import LeasePart, Refusal, Settling
from penstock.model.names import TopicName, parse_topic
from penstock.model.receipts import Receipt

SettlePart = Callable[[TopicName, int, int, Offsets | None], Settlement]
"""Settles messages of a topic, partition and lease: those offsets, or with None all."""


def settle_parts(
    settle: SettlePart, name: TopicName | None, receipts: Sequence[str], leases: Sequence[LeasePart]
) -> Settling:
    """On each partition, also if it is too late on another one.

    Receipts may be of several topics if no `name` is given; leases are of that topic.
    """
    parts = parts_of(name, receipts, leases)
    for part in parts:
        part.settle(settle)
    return Settling(
        [refusal for part in parts for refusal in part.refusals()],
        [part.durable for part in parts if part.durable is not DONE],
    )


def parts_of(
    name: TopicName | None, receipts: Sequence[str], leases: Sequence[LeasePart]
) -> list[NamedPart]:
    """What is named, by the lease that it is under."""
    return [*_by_lease(name, leases), *_by_receipt(name, receipts)]


class NamedPart:
    """Messages of one lease, the receipts by which they were named, and what became of them."""

    __slots__ = ("durable", "lost", "name", "nonce", "offsets", "partition", "receipts", "refused")

    def __init__(
        self, name: TopicName, partition: int, nonce: int, offsets: list[int] | None
    ) -> None:
        self.name = name
        self.partition = partition
        self.nonce = nonce
        self.offsets = offsets
        self.receipts: dict[int, str] = {}
        self.durable: Future[None] = DONE
        self.refused: dict[int, type[DeliveryError]] = {}
        self.lost: DeliveryError | None = None

    def settle(self, settle: SettlePart) -> None:
        offsets = None if self.offsets is None else _offsets_of(self.offsets)
        try:
            settled = settle(self.name, self.partition, self.nonce, offsets)
            self.durable, self.refused = settled.durable, settled.refused
        except DeliveryError as exc:
            self.lost = exc
        except (TopicNotFound, PartitionNotFound):
            if not self.receipts:
                raise
            self.refused = dict.fromkeys(self.receipts, InvalidReceipt)

    def refusals(self) -> Iterator[Refusal]:
        if self.lost is not None:
            yield self._refusal(self.lost, None)
        for offset, kind in self.refused.items():
            yield self._refusal(kind(offset), offset)  # type: ignore[arg-type]

    def _refusal(self, error: DeliveryError, offset: int | None) -> Refusal:
        return Refusal(
            code=error.code,
            detail=str(error),
            partition=self.partition,
            offset=offset,
            lease=self.nonce,
            receipt=None if offset is None else self.receipts.get(offset),
        )


def _offsets_of(offsets: list[int]) -> Offsets:
    return Offsets.one(offsets[0]) if len(offsets) == 1 else Offsets.of(offsets)


def _by_lease(name: TopicName | None, leases: Iterable[LeasePart]) -> list[NamedPart]:
    parts = []
    for each in leases:
        if name is None:
            raise InvalidInput("leases are of a topic, which has to be named with them")
        parts.append(NamedPart(name, each.partition, each.lease, each.offsets))
    return parts


def _by_receipt(name: TopicName | None, receipts: Iterable[str]) -> Iterable[NamedPart]:
    parts: dict[tuple[TopicName, int, int], NamedPart] = {}
    topics: dict[str, TopicName] = {} if name is None else {str(name): name}
    for text in receipts:
        receipt = Receipt.parse(text)
        topic = topics.get(receipt.topic)
        if topic is None:
            topic = topics[receipt.topic] = _topic_of(text, receipt)
            if name is not None and topic != name:
                raise InvalidInput(f"receipt {text!r} is of topic {receipt.topic}, not of {name}")
        place = topic, receipt.partition, receipt.nonce
        part = parts.get(place)
        if part is None:
            part = parts[place] = NamedPart(*place, [])
        assert part.offsets is not None
        part.offsets.append(receipt.offset)
        part.receipts[receipt.offset] = text
    return parts.values()


def _topic_of(text: str, receipt: Receipt) -> TopicName:
    try:
        return parse_topic(receipt.topic)
    except InvalidInput:
        raise InvalidReceipt(text) from None
