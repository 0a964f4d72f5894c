"""Queue mode: receive, and settle by ack, nack, reject and extend; groups and their positions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

from penstock.broker.names import TopicName, parse_topic
from penstock.broker.settings import WAIT_MS_MAX
from penstock.broker.structs import Delivered
from penstock.broker.structs import Settled as BrokerSettled
from penstock.delivery.offsets import Offsets
from penstock.delivery.receipts import Receipt
from penstock.durations import parse_ns
from penstock.errors import (
    DeliveryError,
    InvalidInput,
    InvalidReceipt,
    PartitionNotFound,
    TopicNotFound,
)
from penstock.log.base import DONE
from penstock.server.durable import durable
from penstock.server.http.answers import Answer, json_answer
from penstock.server.http.counting import too_many
from penstock.server.http.endpoints import Call, Table
from penstock.server.http.routes.topics import positions
from penstock.wire.columns import (
    ARROW_TYPE,
    COMPACT_TYPE,
    PIECES_HEADER,
    encode_compact,
    encode_delivered,
)
from penstock.wire.messages import (
    Extend,
    Nack,
    Receive,
    ReceivedMessages,
    Refusal,
    Reject,
    Settle,
    Settled,
    received_view,
)
from penstock.wire.topics import Found, Groups, Seek

table = Table("queues")

# What a call may take on the event loop; more is done beside it.
_LOOP_MESSAGES = 1000
_LOOP_BYTES = 64 << 10  # of the body: about a thousand receipts


@table.add("GET", "/topics/{topic}/groups", right="describe", result=Groups)
def list_groups(call: Call) -> Groups:
    """The groups that read a topic as a queue."""
    return Groups(groups=call.broker.groups(call.topic))


@table.add("DELETE", "/topics/{topic}/groups/{group}", right="manage", result=Found)
async def delete_group(call: Call) -> Found:
    """Forget what a group has done; the next receive of that name begins with the oldest."""
    name = call.topic
    found = await call.door.long_calls.run(name, call.broker.delete_group, name, call.group)
    return Found(found=found)


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
def receive(call: Call) -> Any:
    """Messages that are ready, under a lease; waits for the first if there are none.

    With `ack`, other messages are acked first: one request for both.
    """
    body: Receive = call.body
    wait_s = wait_seconds(body.wait)
    visibility_ns = None if body.visibility is None else parse_ns(body.visibility, "visibility")
    wanted = (
        call.topic,
        call.group,
        body.max_messages,
        visibility_ns,
        body.consumer,
        body.partition,
        call.door.config.body_bytes_max,
    )
    if body.max_messages > _LOOP_MESSAGES or _goes_aside(call):
        return _receive_aside(call, wanted, wait_s)
    if body.ack is None:
        return _receive(call, wanted, wait_s)
    acked = _settled(call, call.broker.ack, _parts(call, body.ack))
    if all(part.is_durable() for part in acked):
        _check_settled(acked)
        return _receive(call, wanted, wait_s)
    return _receive_when_settled(call, acked, wanted, wait_s)


async def _receive_when_settled(
    call: Call, acked: Sequence[_Part], wanted: _Wanted, wait_s: float
) -> Answer:
    await _durable(acked)
    _check_settled(acked)
    outcome = _receive(call, wanted, wait_s)
    answer: Answer = await outcome if isinstance(outcome, asyncio.Future) else outcome
    return answer


async def _receive_aside(call: Call, wanted: _Wanted, wait_s: float) -> Answer:
    """Beside the event loop: it takes long, or would wait for a call that does."""
    name, group, messages_max, *rest = wanted

    def take() -> Answer | None:
        if call.body.ack is not None:
            _check_settled(_settled(call, call.broker.ack, _parts(call, call.body.ack)))
        delivered = call.broker.receive(*wanted)
        if delivered or not wait_s or call.door.stopping:
            return _received(call, name, group, delivered)
        return None

    answer = await call.door.long_calls.run(name, call.door.within_budget(take))
    if answer is None:  # what comes while it waits is handed out on the loop: not much at once
        few: Any = (name, group, min(messages_max, _LOOP_MESSAGES), *rest)
        answer = await _poll(call, few, wait_s)
    return answer


def _receive(call: Call, wanted: _Wanted, wait_s: float) -> Any:
    delivered = call.broker.receive(*wanted)
    if delivered or not wait_s or call.door.stopping:
        return _received(call, wanted[0], wanted[1], delivered)
    return _poll(call, wanted, wait_s)


def _poll(call: Call, wanted: _Wanted, wait_s: float) -> asyncio.Future[Any]:
    name, group, *_, partition, _ = wanted

    def take() -> list[Delivered] | None:
        if call.door.long_calls.is_busy(name):
            return None  # when that is over, the poll is asked again
        return call.broker.receive(*wanted) or None

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
def ack(call: Call) -> Any:
    """Messages are done."""
    return _settle(call, call.broker.ack)


@table.add(
    "POST",
    "/topics/{topic}/groups/{group}/nack",
    right="consume",
    body=Nack,
    items_in=1,
    result=Settled,
)
def nack(call: Call) -> Any:
    """Give messages back, to be tried again after a delay."""
    body: Nack = call.body
    delay_ns = None if body.delay is None else parse_ns(body.delay, "delay")
    give_back = partial(call.broker.nack, delay_ns=delay_ns, error=body.error, retries=body.retries)
    # Aside: after the last retry it writes, and syncs, a dead letter.
    return call.door.long_calls.run(call.topic, _settle_now, call, give_back)


@table.add(
    "POST",
    "/topics/{topic}/groups/{group}/reject",
    right="consume",
    body=Reject,
    items_in=1,
    result=Settled,
)
def reject(call: Call) -> Any:
    """Give messages up: straight to the dead letters."""
    give_up = partial(call.broker.reject, error=call.body.reason)
    return call.door.long_calls.run(call.topic, _settle_now, call, give_up)


@table.add(
    "POST",
    "/topics/{topic}/groups/{group}/extend",
    right="consume",
    body=Extend,
    items_in=1,
    result=Settled,
)
def extend(call: Call) -> Any:
    """Hold messages for longer."""
    visibility_ns = parse_ns(call.body.visibility, "visibility")
    return _settle(call, partial(call.broker.extend, visibility_ns=visibility_ns))


@table.add("POST", "/topics/{topic}/groups/{group}/seek", right="consume", body=Seek)
async def seek(call: Call) -> None:
    """Let a group start again at a position; receipts that are out become void."""
    body: Seek = call.body
    offsets = dict(positions(call, call.topic, body.to, body.partition))
    await call.door.long_calls.run(call.topic, call.broker.seek, call.topic, call.group, offsets)


def _goes_aside(call: Call) -> bool:
    """Whether the body is long, or a call that takes long is at work on the topic."""
    return len(call.request.body) > _LOOP_BYTES or call.door.long_calls.is_busy(call.topic)


def wait_seconds(wait: str | int | float) -> float:
    if not wait:
        return 0.0
    wait_ns = parse_ns(wait, "wait")
    if wait_ns > WAIT_MS_MAX * 1_000_000:
        raise InvalidInput(f"wait is {wait!r}; a poll waits 30 seconds at the most")
    return wait_ns / 1e9


def _received(call: Call, name: TopicName, group: str, delivered: list[Delivered]) -> Answer:
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

_Wanted: TypeAlias = tuple[TopicName, str, int, int | None, str, int | None, int]
"""The arguments of `Broker.receive`."""
SettleCall = Callable[[TopicName, int, str, int, Offsets | None], BrokerSettled]


def _settle(call: Call, settle: SettleCall) -> Any:
    if _goes_aside(call):
        return call.door.long_calls.run(call.topic, _settle_now, call, settle)
    parts = _settled(call, settle, _parts(call, call.body))
    for part in parts:
        if not part.is_durable():
            return _when_settled(parts)
    return _refusals(parts)


def _settle_now(call: Call, settle: SettleCall) -> Settled | Answer:
    """On a thread of its own, where waiting is no harm."""
    return _refusals(_settled(call, settle, _parts(call, call.body)))


async def _when_settled(parts: Sequence[_Part]) -> Settled | Answer:
    await _durable(parts)
    return _refusals(parts)


async def _durable(parts: Sequence[_Part]) -> None:
    for part in parts:
        await durable(part.durable)


class _Part:
    """Messages of one lease, the receipts by which they were named, and what became of them."""

    __slots__ = ("durable", "lost", "nonce", "offsets", "partition", "receipts", "refused")

    def __init__(self, partition: int, nonce: int, offsets: list[int] | None) -> None:
        self.partition = partition
        self.nonce = nonce
        self.offsets = offsets
        self.receipts: dict[int, str] = {}
        self.durable: Future[None] = DONE
        self.refused: dict[int, type[DeliveryError]] = {}
        self.lost: DeliveryError | None = None

    def is_durable(self) -> bool:
        return self.durable is DONE or self.durable.done()

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


def _settled(call: Call, settle: SettleCall, parts: list[_Part]) -> list[_Part]:
    """On each partition, also if it is too late on another one."""
    name, group = call.topic, call.group
    for part in parts:
        offsets = None if part.offsets is None else Offsets.of(part.offsets)
        try:
            settled = settle(name, part.partition, group, part.nonce, offsets)
            part.durable, part.refused = settled.durable, settled.refused
        except DeliveryError as exc:
            part.lost = exc
        except (TopicNotFound, PartitionNotFound):
            if not part.receipts:
                raise
            part.refused = dict.fromkeys(part.receipts, InvalidReceipt)
    return parts


def _check_settled(parts: Sequence[_Part]) -> None:
    """Raise what was refused first."""
    for part in parts:
        if part.durable is not DONE:
            part.durable.result()
        if part.lost is not None:
            raise part.lost
        for offset, kind in part.refused.items():
            raise kind(offset)  # type: ignore[arg-type]


def _parts(call: Call, named: Settle) -> list[_Part]:
    name, limit = call.topic, call.door.config.batch_messages_max
    in_leases = [1 if each.offsets is None else len(each.offsets) for each in named.leases]
    if len(named.receipts) + sum(in_leases) > limit:
        raise too_many(limit)
    parts = [_Part(each.partition, each.lease, each.offsets) for each in named.leases]
    leases: dict[tuple[int, int], _Part] = {}
    for text in named.receipts:
        receipt = Receipt.parse(text)
        if parse_topic(receipt.topic) != name:
            raise InvalidInput(f"receipt {text!r} is of topic {receipt.topic}, not of {name}")
        place = receipt.partition, receipt.nonce
        part = leases.get(place)
        if part is None:
            part = leases[place] = _Part(*place, [])
        assert part.offsets is not None
        part.offsets.append(receipt.offset)
        part.receipts[receipt.offset] = text
    return [*parts, *leases.values()]


def _refusals(parts: Sequence[_Part]) -> Settled | Answer:
    refused: list[Refusal] = []
    for part in parts:
        if part.durable is not DONE:
            part.durable.result()
        if part.lost is not None or part.refused:
            refused += part.refusals()
    return Settled(refused=refused) if refused else _ALL_SETTLED
