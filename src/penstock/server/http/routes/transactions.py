"""Transactions: as JSON, or with their messages as Arrow streams."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from penstock.broker.api import Api
from penstock.model.transactions import NewTransaction, StagedTransaction, TransactionOutcome
from penstock.server.durable import durable
from penstock.server.http.arrow import decode_new
from penstock.server.http.endpoints import HttpRequest, Table
from penstock.server.http.json_items import too_many
from penstock.server.keys import Right
from penstock.wire.transactions import TRANSACTION_TYPE, decode_transaction

table = Table("transactions")


@table.add(
    "POST",
    "/transactions",
    right="describe",
    body=NewTransaction,
    items_in=2,
    other_bodies=(TRANSACTION_TYPE,),
    result=TransactionOutcome,
    status=201,
)
async def commit_transaction(call: HttpRequest) -> Any:
    """Publish messages, settle others and commit offsets: all of it or nothing. It can be sent
    again under its id, and is done once. The key has to allow to publish, where there are
    messages, and to consume, where any are settled or offsets are committed. The answer comes when
    all is as safe as the topics' fsync policies say."""
    outcome, told = await call.door.aside(_commit, call)
    await durable(told)
    return outcome


def _commit(call: HttpRequest) -> tuple[TransactionOutcome, Future[None]]:
    config = call.door.config
    if call.request.content_type() == TRANSACTION_TYPE:
        staged = decode_transaction(
            call.request.body,
            call.namespace,
            lambda body: decode_new(body, config.batch_messages_max, config.body_bytes_max),
        )
    else:
        staged = call.api.staged(call.body, call.namespace)
    return commit(call.api, staged, call.check, config.batch_messages_max)


def commit(
    api: Api,
    staged: StagedTransaction,
    check: Callable[[Right, str], None],
    items_max: int,
) -> tuple[TransactionOutcome, Future[None]]:
    """Of a client whose rights `check` knows: it raises Forbidden for those it has not."""
    if staged.messages or not (staged.settle or staged.offsets):
        check("publish", staged.namespace)
    if staged.settle or staged.offsets:
        check("consume", staged.namespace)
    receipts = sum(len(each.receipts) for each in staged.settle)
    receipts += sum(len(p.offsets or (0,)) for each in staged.settle for p in each.leases)
    if receipts > items_max:
        raise too_many(items_max)
    return api.transact(staged)
