"""Leases of a broker far away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from penstock.broker.names import TopicName
from penstock.broker.structs import Delivered
from penstock.client.messages import Lease, Leased
from penstock.client.waiting import Steps
from penstock.delivery.offsets import Offsets
from penstock.errors import DeliveryError, InvalidInput
from penstock.wire.messages import Refusal
from penstock.wire.problem import make_error

Settle: TypeAlias = Callable[[str, TopicName, str, dict[str, Any]], Steps[list[Refusal]]]
"""Settles messages of a topic and group in some way; gives those that could not be."""


class RemoteLease(Lease):
    __slots__ = ("_settle",)

    def __init__(
        self,
        settle: Settle,
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
        return self._ask(verb, [part], how)

    def settle_whole(self, others: Sequence[RemoteLease], verb: str, **how: Any) -> Steps[None]:
        """In one request."""
        parts = [{"partition": each.partition, "lease": each.nonce} for each in (self, *others)]
        return self._ask(verb, parts, how)

    def _ask(self, verb: str, parts: list[dict[str, Any]], how: dict[str, Any]) -> Steps[None]:
        body = {"leases": parts, **settle_options(verb, how)}
        refused = yield from self._settle(verb, self.topic, self.group, body)
        for refusal in refused:
            raise refusal_error(refusal)


def leased_far_away(
    settle: Settle, topic: TopicName, group: str, delivered: Sequence[Delivered]
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
        else:
            if not isinstance(value, str):
                raise InvalidInput(f"{name} must be text, not {type(value).__name__}")
            options["reason" if verb == "reject" else name] = value
    return options


def refusal_error(refusal: Refusal) -> DeliveryError:
    error = make_error(refusal.code, refusal.detail, {"offset": refusal.offset})
    assert isinstance(error, DeliveryError)
    return error
