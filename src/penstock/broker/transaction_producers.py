"""Named producers of transactions: each name has one holder, and earlier ones are fenced."""

from __future__ import annotations

from penstock.errors import InvalidInput, ProducerFenced
from penstock.model.transactions import StagedTransaction

PRODUCERS_MAX = 10_000
_NAME_CHARACTERS_MAX = 256


def check_producer_name(name: str) -> None:
    if not 0 < len(name) <= _NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidInput(
            f"the name of a producer has 1 to {_NAME_CHARACTERS_MAX} printable characters"
        )


class TransactionProducers:
    """The epoch of each name. A fold of the journal, and under its lock; an epoch is given once."""

    def __init__(self) -> None:
        self.epoch = 0
        """The highest that was given."""
        self.epochs: dict[str, int] = {}
        """By `namespace/name`, that which was taken longest ago first."""

    def began(self, held: str, epoch: int) -> None:
        """A name has a new holder."""
        self.epoch = epoch
        self.epochs.pop(held, None)
        self.epochs[held] = epoch
        if len(self.epochs) > PRODUCERS_MAX:
            # Its holder is told that it was replaced: an epoch never comes again.
            del self.epochs[next(iter(self.epochs))]

    def restore(self, epoch: int, epochs: dict[str, int]) -> None:
        """Take over what a checkpoint says."""
        self.epoch = max(self.epoch, epoch)
        self.epochs = dict(epochs)

    def check(self, staged: StagedTransaction) -> None:
        """Raises ProducerFenced if the transaction's producer does not hold its name any more."""
        if staged.producer is None:
            return
        current = self.epochs.get(f"{staged.namespace}/{staged.producer}")
        if current != staged.epoch:
            raise ProducerFenced(staged.producer, staged.epoch, current or self.epoch)
