"""Messages and leases, producers and transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors.base import PenstockError


class DeliveryError(PenstockError):
    """A message cannot be settled."""

    code = "delivery_error"


class LeaseLost(DeliveryError):
    """The consumer no longer holds the message: its lease ran out, or it gave the message back."""

    code = "lease_lost"

    def __init__(self, offset: int | None = None) -> None:
        self.offset = offset
        what = "" if offset is None else f" on message {offset}"
        super().__init__(
            f"the lease{what} is over: it ran out, or the message was given back. Nothing was "
            "changed; the next consumer that receives the message works on it. "
            "Longer work needs a longer visibility, or extend() in time."
        )


class AlreadySettled(DeliveryError):
    """The message is done: acked, among the dead letters, or purged."""

    code = "already_settled"

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(
            f"message {offset} is already done: acked, among the dead letters, or purged. "
            "Nothing was changed."
        )


class InvalidReceipt(DeliveryError, ValueError):
    """A receipt that was never handed out, or that a seek or the end of its topic made invalid."""

    code = "invalid_receipt"

    def __init__(self, receipt: object) -> None:
        super().__init__(
            f"{receipt!r:.200} is not a valid receipt: it was never handed out, its topic was "
            "deleted, or the group was set to another offset since. A receipt is "
            "topic:partition:offset:delivery_count:nonce, as it came with the message."
        )


class ProducerError(PenstockError):
    """A producer's batch cannot be taken."""

    code = "producer_error"


class ProducerFenced(ProducerError):
    """A newer producer has taken over this producer id."""

    code = "producer_fenced"

    def __init__(self, producer_id: int | str, epoch: int, current: int) -> None:
        self.producer_id, self.epoch, self.current = producer_id, epoch, current
        super().__init__(
            f"producer {producer_id} of epoch {epoch} was replaced by epoch {current}; "
            "nothing of the batch was stored. Only the newer one may go on."
        )


class OutOfOrderSequence(ProducerError):
    """A batch of an idempotent producer came before the one that precedes it."""

    code = "out_of_order_sequence"

    def __init__(self, producer_id: int, sequence: int, expected: int) -> None:
        self.producer_id, self.sequence, self.expected = producer_id, sequence, expected
        super().__init__(
            f"producer {producer_id} sent sequence {sequence} where {expected} comes next; "
            "nothing of the batch was stored. Send what is missing, or start a new epoch at 0."
        )


@dataclass(frozen=True)
class RefusedItem:
    """Something in a transaction that cannot be done, and so nothing of it was."""

    item: str
    """Which: `messages[0]`, `settle[2]`, `offsets[0]`, counted from 0; `messages`: all of
    them together."""
    code: str
    detail: str


class TransactionRefused(PenstockError):
    """Something in a transaction cannot be done, so nothing of it was done."""

    code = "transaction_refused"

    def __init__(self, reasons: Sequence[RefusedItem]) -> None:
        self.reasons = list(reasons)
        first = self.reasons[0]
        more = f", and {len(self.reasons) - 1} more" if len(self.reasons) > 1 else ""
        super().__init__(
            f"nothing of the transaction was done: {first.item}: {first.detail} ({first.code})"
            f"{more}. `reasons` has all of them."
        )


class TransactionForgotten(PenstockError):
    """The id of a transaction is older than all that are remembered: it may have been done."""

    code = "transaction_forgotten"

    def __init__(self, id_: str) -> None:
        self.id = id_
        super().__init__(
            f"whether transaction {id_:.100} was done is not known any more: too many came after "
            "it. Look whether it was, or begin another one"
        )


class TransactionNotFound(PenstockError):
    """There is no transaction of this id, or it is too long ago."""

    code = "transaction_not_found"

    def __init__(self, id_: str) -> None:
        self.id = id_
        super().__init__(
            f"no transaction {id_!r:.100} is known: it was not committed, or too long ago"
        )
