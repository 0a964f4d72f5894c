"""Leases of a broker far away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.model.names import TopicName
from penstock.model.deliveries import Delivered
from penstock.client.messages import Lease, Leased
from penstock.client.waiting import Steps
from penstock.delivery.offsets import Offsets
from penstock.errors import AlreadySettled, DeliveryError, InvalidInput, RequestTooLarge
from penstock.record.batch import Batch
from penstock.model.messages import LeasePart, Refusal, Settle
from penstock.model.problem import make_error

_ASK_MAX = 1000  # messages: a refusal of each comes back


class SettleCall(Protocol):
    """Settles messages of a topic and group in some way. Gives those that could not be, and
    whether it was asked twice, since an answer was lost."""

    def __call__(
        self, verb: str, name: TopicName, group: str, body: dict[str, Any], repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]: ...


class RemoteLease(Lease):
    __slots__ = ("_settle",)

    def __init__(
        self,
        settle: SettleCall,
        topic: TopicName,
        group: str,
        partition: int,
        nonce: int,
    ) -> None:
        super().__init__(topic, group, partition, nonce)
        self._settle = settle

    def settle(self, verb: str, offsets: Offsets, **how: Any) -> Steps[None]:
        part = {
            "partition": self.partition,
            "lease": self.nonce,
            "offsets": offsets.array().tolist(),
        }
        body = {"leases": [part], **settle_options(verb, how)}
        refused, _ = yield from self._settle(verb, self.topic, self.group, body)
        for refusal in refused:
            raise refusal_error(refusal)

    def settle_whole(self, leases: Leased, verb: str, **how: Any) -> Steps[None]:
        """In one request."""
        return settle_far_away(self._settle, leases, verb, **how)


def settle_with(settle: SettleCall, topic: TopicName, group: str, leases: Leased) -> Settle | None:
    """Leases as another request to the same topic and group may bring them along; else None."""
    parts: list[LeasePart] = []
    for lease, _ in leases:
        ours = isinstance(lease, RemoteLease) and lease._settle == settle
        if not ours or (lease.topic, lease.group) != (topic, group):
            return None
        parts.append(LeasePart(partition=lease.partition, lease=lease.nonce))
    return Settle(leases=parts) if parts else None


def settle_far_away(
    settle: SettleCall, leases: Leased, verb: str, *, repeated: bool = False, **how: Any
) -> Steps[None]:
    """All messages of one receive. `repeated`: it was asked before, and may have been done."""
    topic, group = leases[0][0].topic, leases[0][0].group
    options = settle_options(verb, how)
    parts: list[dict[str, Any]] = [
        {"partition": each.partition, "lease": each.nonce} for each, _ in leases
    ]
    body = {"leases": parts, **options}
    refused, repeated = yield from settle(verb, topic, group, body, repeated)
    # A lease that is gone may be gone because its messages are done: ask by message.
    gone = {(each.partition, each.lease) for each in refused if each.offset is None}
    parts = [
        {"partition": each.partition, "lease": each.nonce, "offsets": _offsets(pieces)}
        for each, pieces in leases
        if (each.partition, each.nonce) in gone
    ]
    if parts and repeated:  # by the first attempt, perhaps
        refused = [each for each in refused if each.offset is not None]
        still, _ = yield from settle(verb, topic, group, {"leases": parts, **options}, True)
        refused += still
    elif parts:
        done = yield from _first_if_done(
            lambda some: settle(verb, topic, group, {"leases": [some], **options}), parts
        )
        refused = refused if done is None else [done]
    for refusal in refused:
        raise refusal_error(refusal)


def _first_if_done(
    ask: Callable[[dict[str, Any]], Steps[tuple[list[Refusal], bool]]],
    parts: Sequence[dict[str, Any]],
) -> Steps[Refusal | None]:
    """What is said of the first of many messages, if all are done. Mostly they are not, and then
    the first few tell."""
    first: Refusal | None = None
    for part in parts:
        offsets = part["offsets"]
        for start in range(0, len(offsets), _ASK_MAX):
            some = {**part, "offsets": offsets[start : start + _ASK_MAX]}
            try:
                refused, _ = yield from ask(some)
            except RequestTooLarge:  # a server that takes very few
                return None
            if not refused or any(each.code != AlreadySettled.code for each in refused):
                return None
            first = first or refused[0]
    return first


def _offsets(pieces: Sequence[tuple[Batch, int]]) -> list[int]:
    return [offset for batch, _ in pieces for offset in batch.offset_numbers().tolist()]


def leased_far_away(
    settle: SettleCall, topic: TopicName, group: str, delivered: Sequence[Delivered]
) -> Leased:
    return [
        (RemoteLease(settle, topic, group, each.partition, each.nonce), each.pieces)
        for each in delivered
    ]


def settle_options(verb: str, how: dict[str, Any]) -> dict[str, Any]:
    """What goes with an ack, nack, reject or extend, as the server calls it."""
    options: dict[str, Any] = {}
    for name, value in how.items():
        if name == "delay_ns":
            options["delay"] = None if value is None else value / 1e9
        elif name == "visibility_ns":
            options["visibility"] = value / 1e9
        elif name == "retries":
            options[name] = value
        else:
            if not isinstance(value, str):
                raise InvalidInput(f"{name} must be text, not {type(value).__name__}")
            options["reason" if verb == "reject" else name] = value
    return options


def refusal_error(refusal: Refusal) -> DeliveryError:
    error = make_error(refusal.code, refusal.detail, {"offset": refusal.offset})
    assert isinstance(error, DeliveryError)
    return error
