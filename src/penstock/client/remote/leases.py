"""Leases of a broker far away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.broker.names import TopicName
from penstock.broker.partition import Delivered
from penstock.client.messages import Lease, Leased
from penstock.client.remote.operations import RemoteOperations, refusal_error, settle_options
from penstock.client.waiting import Steps
from penstock.delivery.offsets import Offsets


class RemoteLease(Lease):
    __slots__ = ("_operations",)

    def __init__(
        self,
        operations: RemoteOperations,
        topic: TopicName,
        group: str,
        partition: int,
        nonce: int,
    ) -> None:
        super().__init__(topic, group, partition, nonce)
        self._operations = operations

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
        refused = yield from self._operations.ask_settle(verb, self.topic, self.group, body)
        for refusal in refused:
            raise refusal_error(refusal)


def leased_far_away(
    operations: RemoteOperations, topic: TopicName, group: str, delivered: Sequence[Delivered]
) -> Leased:
    return [
        (RemoteLease(operations, topic, group, each.partition, each.nonce), each.pieces)
        for each in delivered
    ]
