"""Transactions and the producers that make them. Committing one carries messages, and is no
call of these."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.model.calls.base import Call, route
from penstock.model.transactions import ProducerEpoch, TransactionOutcome, TransactionPage
from penstock.model.values import Whole


@route("GET", "/transactions", "look", TransactionPage, tag="transactions")
class ListTransactions(Call[TransactionPage], frozen=True, kw_only=True):
    """Transactions of a namespace, the newest first: those of the last 24 hours, and the last that
    were refused since the broker began."""

    before: Whole | None = None
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


@route("GET", "/transactions/{id}", "look", TransactionOutcome, tag="transactions")
class DescribeTransaction(Call[TransactionOutcome], frozen=True, kw_only=True):
    """What became of a transaction."""

    id: str


@route(
    "POST",
    "/transactions/producers/{producer}",
    "publish",
    ProducerEpoch,
    tag="transactions",
    repeatable=True,
)
class BeginProducer(Call[ProducerEpoch], frozen=True, kw_only=True):
    """Take over a producer's name. Its former holder is fenced: a transaction with an earlier epoch
    is refused."""

    producer: str
