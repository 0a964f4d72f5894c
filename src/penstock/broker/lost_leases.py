"""Settling messages whose lease was lost, for who asks for that: whoever holds them now loses them.

It is what SQS does on its standard queues, where the receipt of any delivery is good for a message.
Where keys are ordered a lost lease stays lost: the next message of the key may be under way.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from penstock.broker.settle import SettlePart
from penstock.broker.settlement import Settlement
from penstock.delivery.offsets import Offsets
from penstock.errors import DeliveryError, LeaseLost
from penstock.log.base import all_durable
from penstock.model.deliveries import Verb
from penstock.model.names import TopicName

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def even_if_lost(broker: Broker, verb: Verb, group: str, settle: SettlePart) -> SettlePart:
    """As `settle`, and then on those messages again whose lease was lost."""

    def settle_anyway(
        name: TopicName, partition: int, nonce: int, offsets: Offsets | None
    ) -> Settlement:
        settled = settle(name, partition, nonce, offsets)
        if not settled.refused:
            return settled
        lost = Offsets.of([each for each, why in settled.refused.items() if why is LeaseLost])
        if not lost.count or broker.settings(name).ordered_by_key:
            return settled
        target = broker.topic(name, create=False).partition(partition)
        refused: dict[int, type[DeliveryError]] = dict(settled.refused)
        durable: list[Future[None]] = [settled.durable]
        if verb == "ack":
            again = [(lost, target.ack_lost(group, lost))]
        else:  # what nobody holds stays refused
            holders = target.holders(group, lost).items()
            again = [(held, settle(name, partition, holder, held)) for holder, held in holders]
        for some, settlement in again:
            for offset in some:
                del refused[offset]
            refused |= settlement.refused
            durable.append(settlement.durable)
        return Settlement(refused, all_durable(durable))

    return settle_anyway
