"""Queue mode: receive, and settle by ack, nack, reject and extend."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from penstock.model.deliveries import (
    Delivered,
    Extend,
    Nack,
    Receive,
    Rejection,
    Settle,
    Settled,
    Settling,
    Verb,
    poll_seconds,
)
from penstock.model.names import TopicName
from penstock.model.problem import refusal_error
from penstock.model.receipts import Receipt
from penstock.model.values import Seconds
from penstock.server.durable import durable
from penstock.server.http.answers import Answer, json_answer
from penstock.server.http.endpoints import HttpRequest, Table
from penstock.server.http.json_items import too_many
from penstock.wire.columns import (
    ARROW_TYPE,
    COMPACT_TYPE,
    PIECES_HEADER,
    encode_compact,
    encode_delivered,
)
from penstock.wire.json_forms import ReceivedMessages, received_view

table = Table("queues")

# What a call may take on the event loop; more is done beside it.
_LOOP_MESSAGES = 1000
_LOOP_BYTES = 64 << 10  # of the body: about a thousand receipts


@table.add(
    "POST",
    "/topics/{topic}/groups/{group}/receive",
    right="consume",
    body=Receive,
    body_optional=True,
    items_in=2,
    result=ReceivedMessages,
    result_types=(ARROW_TYPE,),
)
def receive(call: HttpRequest) -> Any:
    """Messages that are ready, under a lease; waits for the first if there are none.

    With `ack`, other messages are acked first: one request for both.
    """
    body: Receive = call.body
    wait_s = poll_seconds(body.wait)
    wanted = (
        call.topic,
        call.group,
        body.max_messages,
        body.visibility,
        body.consumer,
        body.partition,
    )
    if body.max_messages > _LOOP_MESSAGES or _goes_aside(call):
        return _receive_aside(call, wanted, wait_s)
    if body.start == "latest":
        call.api.begin_at_end(call.topic, call.group)
    if body.ack is None:
        return _receive(call, wanted, wait_s)
    acked = _settling(call, "ack", body.ack)
    if all(future.done() for future in acked.durable):
        _check_settled(acked)
        return _receive(call, wanted, wait_s)
    return _receive_when_settled(call, acked, wanted, wait_s)


async def _receive_when_settled(
    call: HttpRequest, acked: Settling, wanted: _Wanted, wait_s: float
) -> Answer:
    await _durable(acked)
    _check_settled(acked)
    outcome = _receive(call, wanted, wait_s)
    answer: Answer = await outcome if isinstance(outcome, asyncio.Future) else outcome
    return answer


async def _receive_aside(call: HttpRequest, wanted: _Wanted, wait_s: float) -> Answer:
    """Beside the event loop: it takes long, or would wait for a call that does."""
    name, group, messages_max, *rest = wanted

    def take() -> Answer | None:
        if call.body.start == "latest":
            call.api.begin_at_end(name, group)
        if call.body.ack is not None:
            _check_settled(_settling(call, "ack", call.body.ack))
        delivered = call.api.receive(*wanted)
        if delivered or not wait_s or call.door.stopping:
            return _received(call, name, group, delivered)
        return None

    answer = await call.door.long_calls.run(name, call.door.within_budget(take))
    if answer is None:  # what comes while it waits is handed out on the loop: not much at once
        few: Any = (name, group, min(messages_max, _LOOP_MESSAGES), *rest)
        answer = await _poll(call, few, wait_s)
    return answer


def _receive(call: HttpRequest, wanted: _Wanted, wait_s: float) -> Any:
    delivered = call.api.receive(*wanted)
    if delivered or not wait_s or call.door.stopping:
        return _received(call, wanted[0], wanted[1], delivered)
    return _poll(call, wanted, wait_s)


def _poll(call: HttpRequest, wanted: _Wanted, wait_s: float) -> asyncio.Future[Any]:
    name, group, *_, partition = wanted

    def take() -> list[Delivered] | None:
        if call.door.long_calls.is_busy(name):
            return None  # when that is over, the poll is asked again
        return call.api.receive(*wanted) or None

    poll = call.door.polls.wait(
        [name],
        (group, partition),
        call.while_good(take),
        lambda delivered: _received(call, name, group, delivered or []),
        wait_s,
    )
    return poll.future


@table.add(
    "POST",
    "/topics/{topic}/groups/{group}/ack",
    right="consume",
    body=Settle,
    items_in=1,
    result=Settled,
)
def ack(call: HttpRequest) -> Any:
    """Messages are done."""
    return _settle(call, "ack")


@table.add(
    "POST",
    "/topics/{topic}/groups/{group}/nack",
    right="consume",
    body=Nack,
    items_in=1,
    result=Settled,
)
def nack(call: HttpRequest) -> Any:
    """Give messages back, to be tried again after a delay."""
    # Aside: after the last retry it writes, and syncs, a dead letter.
    return call.door.long_calls.run(call.topic, _settle_now, call, "nack")


@table.add(
    "POST",
    "/topics/{topic}/groups/{group}/reject",
    right="consume",
    body=Rejection,
    items_in=1,
    result=Settled,
)
def reject(call: HttpRequest) -> Any:
    """Give messages up: straight to the dead letters."""
    return call.door.long_calls.run(call.topic, _settle_now, call, "reject")


@table.add(
    "POST",
    "/topics/{topic}/groups/{group}/extend",
    right="consume",
    body=Extend,
    items_in=1,
    result=Settled,
)
def extend(call: HttpRequest) -> Any:
    """Hold messages for longer."""
    return _settle(call, "extend")


def _received(call: HttpRequest, name: TopicName, group: str, delivered: list[Delivered]) -> Answer:
    if call.request.accepts(COMPACT_TYPE):
        compact = encode_compact(delivered)
        if compact is not None:
            body, pieces = compact
            return Answer(200, ARROW_TYPE, body, ((PIECES_HEADER, pieces.decode()),))
    if call.request.accepts(ARROW_TYPE):
        return Answer(200, ARROW_TYPE, encode_delivered(delivered))
    topic = str(name)
    messages = [
        received_view(
            message,
            each.partition,
            count,
            str(Receipt(topic, each.partition, message.offset, count, each.nonce)),
        )
        for each in delivered
        for batch, count in each.pieces
        for message in batch.messages()
    ]
    return json_answer(ReceivedMessages(messages=messages))


_ALL_SETTLED = json_answer(Settled(refused=[]))

_Wanted: TypeAlias = tuple[TopicName, str, int, Seconds | None, str, int | None]
"""The arguments of `Api.receive`."""


def _goes_aside(call: HttpRequest) -> bool:
    """Whether the body is long, or any call about the topic would take long now."""
    return len(call.request.body) > _LOOP_BYTES or call.door.long_calls.takes_long(call.topic)


def _settle(call: HttpRequest, verb: Verb) -> Any:
    if _goes_aside(call):
        return call.door.long_calls.run(call.topic, _settle_now, call, verb)
    settling = _settling(call, verb, call.body)
    for future in settling.durable:
        if not future.done():
            return _when_settled(settling)
    return _settled(settling)


def _settle_now(call: HttpRequest, verb: Verb) -> Settled | Answer:
    """On a thread of its own, where waiting is no harm."""
    return _settled(_settling(call, verb, call.body))


async def _when_settled(settling: Settling) -> Settled | Answer:
    await _durable(settling)
    return _settled(settling)


async def _durable(settling: Settling) -> None:
    for future in settling.durable:
        await durable(future)


def _settling(call: HttpRequest, verb: Verb, named: Settle) -> Settling:
    limit = call.door.config.batch_messages_max
    in_leases = [1 if each.offsets is None else len(each.offsets) for each in named.leases]
    if len(named.receipts) + sum(in_leases) > limit:
        raise too_many(limit)
    return call.api.settle(verb, call.topic, call.group, named)


def _check_settled(settling: Settling) -> None:
    """Raise what was refused first."""
    for future in settling.durable:
        future.result()
    for refusal in settling.refused:
        raise refusal_error(refusal)


def _settled(settling: Settling) -> Settled | Answer:
    for future in settling.durable:
        future.result()
    return Settled(refused=settling.refused) if settling.refused else _ALL_SETTLED
