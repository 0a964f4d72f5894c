"""The services of `penstock.v1`: they translate to the API and back, and decide nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.broker.api import METHODS
from penstock.errors import InvalidInput, NotFound, NotInCluster, PenstockError, Unavailable
from penstock.model.calls import ROUTES, Call
from penstock.model.deliveries import Delivered, Settling, poll_seconds
from penstock.model.groups import Fetched, PartitionOffset
from penstock.model.names import DEFAULT_NAMESPACE, TopicName, group_name, parse_topic
from penstock.model.published import CallId
from penstock.model.transactions import NewTransaction, TransactionOutcome
from penstock.record.batch import Batch
from penstock.server.durable import durable
from penstock.server.gate import check_right
from penstock.server.grpc.descriptors import message
from penstock.server.grpc.forms import (
    decode_fields,
    hand_out,
    message_of,
    new_messages,
    optional,
    plain_batch,
    refusal_of,
    run_of,
    run_of_one,
    seconds_of,
    settle_of,
    topic_of,
)
from penstock.server.grpc.problems import problem_message, told
from penstock.server.http.arrow import decode_new
from penstock.server.http.json_items import has_more_items, too_many
from penstock.server.http.routes.calls import answer_form, runner, with_tuples
from penstock.server.http.routes.transactions import commit
from penstock.server.keys import Key, Right

if TYPE_CHECKING:
    from penstock.broker.api import Api
    from penstock.server.door import Door, Placement

_LOOP_MESSAGES = 1000
LOOP_BYTES = 64 << 10
"""Longer requests are worked on beside the event loop."""
_UNDER_WAY_MAX = 32
"""Batches of a stream that are stored, and not yet durable."""


class CommitTransaction(NewTransaction, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The route of HTTP that carries messages and is one question all the same."""

    namespace: str = DEFAULT_NAMESPACE


_CALLS: dict[str, Any] = {METHODS[kind]: kind for kind in ROUTES} | {
    "commit_transaction": CommitTransaction
}

_PublishResponse = message("PublishResponse")
_ReceiveResponse = message("ReceiveResponse")
_SettleResponse = message("SettleResponse")
_FetchResponse = message("FetchResponse")
_FetchedPart = message("FetchedPart")
_AskResponse = message("AskResponse")


class GrpcCall:
    """One call, of a client that was let in."""

    def __init__(self, door: Door, key: Key | None, context: Any) -> None:
        self.door = door
        self.key = key
        self.context = context
        self.request_bytes = 0
        """How long the request is, of a stream the last one that came."""
        self.placement: Placement | None = None
        """Of the node that carries it out, in a cluster."""
        self.topic: TopicName = TopicName("default", "")
        """Of a question about one topic; for those that hold its groups up."""

    @property
    def api(self) -> Api:
        return self.door.api

    def allow(self, right: Right, namespace: str | None, *, settles: bool = False) -> None:
        self._check_is_here(namespace)
        self.door.gate.check_still_good(self.key)
        self.door.gate.allow(self.key, right, namespace)
        self.door.connections.use(self, right, namespace, settles=settles)

    def _check_is_here(self, namespace: str | None) -> None:
        """Raises NotInCluster for what another shard has than that of the first message."""
        placement = self.placement
        if placement is None or namespace is None or placement.door_of(namespace) is self.door:
            return
        if not self.door.stopping:
            raise NotInCluster("one call is about namespaces that one node has; use several")
        raise Unavailable("the namespace goes to another node; call again")

    async def write(self, answer: Any) -> None:
        """Say something once all that it was decided on is as safe as it has to be."""
        await self.door.committed()
        await self.context.write(answer)

    def wait_s(self, asked: Any) -> float:
        """How long a poll may wait, within the deadline of the call."""
        wait_s = poll_seconds(seconds_of(asked, "wait") or 0)
        left = self.context.time_remaining()
        return wait_s if left is None else max(0.0, min(wait_s, left - 0.1))


class _Stored:
    """The answer to a publish, and what has to be durable before that is said."""

    def __init__(self, runs: list[Any], futures: Sequence[Future[None]]) -> None:
        self.answer = _PublishResponse(runs=runs)
        self.futures = futures

    async def durable(self) -> None:
        for future in self.futures:
            await durable(future)


async def publish(call: GrpcCall, asked: Any) -> Any:
    stored = await _store(call, asked)
    await stored.durable()
    stored.answer.seq = asked.seq
    return stored.answer


async def publish_stream(call: GrpcCall, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Batches are stored as they come; each is answered when it is durable, in order."""
    waiting: asyncio.Queue[Any] = asyncio.Queue(_UNDER_WAY_MAX)

    async def read() -> None:
        try:
            async for asked in requests:
                try:
                    await waiting.put((asked.seq, await _store(call, asked)))
                except (PenstockError, OSError) as exc:
                    await waiting.put((asked.seq, told(exc)))
        finally:
            await waiting.put(None)

    reading = asyncio.create_task(read())
    try:
        while (item := await waiting.get()) is not None:
            seq, stored = item
            try:
                if isinstance(stored, PenstockError):
                    raise stored
                await stored.durable()
                stored.answer.seq = seq
                yield stored.answer
            except (PenstockError, OSError) as exc:
                yield _PublishResponse(seq=seq, problem=problem_message(told(exc)))
        await reading
    finally:
        reading.cancel()


async def _store(call: GrpcCall, asked: Any) -> _Stored:
    name = topic_of(asked)
    call.allow("publish", name.namespace)
    await call.door.opened([name])
    config = call.door.config
    call_id = CallId.parse(asked.call) if asked.call else None
    if asked.WhichOneof("payload") == "arrow":
        batch, ids = await call.door.aside(
            decode_new, asked.arrow, config.batch_messages_max, config.body_bytes_max
        )
        if len(batch) > _LOOP_MESSAGES or batch.payload_bytes > LOOP_BYTES:
            return await call.door.aside(_publish, call, name, batch, call_id, ids)
        return _publish(call, name, batch, call_id, ids)
    messages = asked.list.messages
    if len(messages) > config.batch_messages_max:
        raise too_many(config.batch_messages_max)
    if len(messages) > _LOOP_MESSAGES or call.request_bytes > LOOP_BYTES:
        return await call.door.aside(_publish_list, call, name, asked.list, call_id)
    plain = plain_batch(asked.list)
    if plain is not None:
        return _publish(call, name, plain, call_id, None)
    return await call.door.aside(_publish_each, call, name, messages, call_id)


def _publish_list(call: GrpcCall, name: TopicName, given: Any, call_id: CallId | None) -> _Stored:
    plain = plain_batch(given)
    if plain is not None:
        return _publish(call, name, plain, call_id, None)
    return _publish_each(call, name, given.messages, call_id)


def _publish_each(
    call: GrpcCall, name: TopicName, messages: Any, call_id: CallId | None
) -> _Stored:
    if call_id is not None:
        raise InvalidInput(
            "messages that each say where and when they go have no call id; give them dedup ids"
        )
    stored, futures = call.api.publish_each(name, new_messages(messages))
    return _Stored([run_of_one(row, one) for row, one in enumerate(stored)], futures)


def _publish(
    call: GrpcCall, name: TopicName, batch: Batch, call_id: CallId | None, ids: Any
) -> _Stored:
    placed = call.api.publish(name, batch, dedup_ids=ids, call=None if ids else call_id)
    return _Stored([run_of(each) for each in placed], [each.durable for each in placed])


async def receive(call: GrpcCall, asked: Any) -> Any:
    name, group = topic_of(asked), group_name(asked.group)
    call.allow("consume", name.namespace)
    wanted = asked.max_messages or 10
    visibility, partition = seconds_of(asked, "visibility"), optional(asked, "partition")
    door, wait_s = call.door, call.wait_s(asked)

    def take(most: int) -> list[Delivered] | None:
        if not door.gate.may_go_on(call.key):
            return None
        return call.api.receive(name, group, most, visibility, asked.consumer, partition) or None

    def take_if_free() -> list[Delivered] | None:
        return None if door.long_calls.is_busy(name) else take(min(wanted, _LOOP_MESSAGES))

    found: list[Delivered] | None
    if wanted > _LOOP_MESSAGES or door.long_calls.takes_long(name):
        found = await door.long_calls.run(name, door.within_budget(take), wanted)
    else:
        found = take(wanted)
    if found is None and wait_s and not door.stopping:
        poll = door.polls.wait([name], (group, partition), take_if_free, lambda got: got, wait_s)
        found = await poll.future
    answer = _ReceiveResponse()
    hand_out(answer, name, found or [], asked)
    return answer


async def settle(call: GrpcCall, asked: Any) -> Any:
    name, group = topic_of(asked), group_name(asked.group)
    return _SettleResponse(refused=await settled(call, name, group, asked))


async def settled(call: GrpcCall, name: TopicName, group: str, asked: Any) -> list[Any]:
    """Those that could not be settled, once the others are so for good."""
    settling = begin_settling(call, name, group, asked)
    if not isinstance(settling, Settling):
        settling = await settling
    for future in settling.durable:
        await durable(future)
    return [refusal_of(each) for each in settling.refused]


def begin_settling(
    call: GrpcCall, name: TopicName, group: str, asked: Any
) -> Settling | Coroutine[Any, Any, Settling]:
    """What takes long is still to be awaited."""
    call.allow("consume", name.namespace, settles=True)
    verb, named = settle_of(asked)
    limit = call.door.config.batch_messages_max
    if len(named.receipts) + sum(len(each.offsets or (0,)) for each in named.leases) > limit:
        raise too_many(limit)
    api, door = call.api, call.door
    is_long = len(named.receipts) > _LOOP_MESSAGES or door.long_calls.takes_long(name)
    if verb in ("nack", "reject") or is_long:
        return door.long_calls.run(name, api.settle, verb, name, group, named)
    return api.settle(verb, name, group, named)


async def fetch(call: GrpcCall, asked: Any) -> Any:
    positions = [PartitionOffset(at.topic, at.partition, at.offset) for at in asked.positions]
    names = list(dict.fromkeys(parse_topic(each.topic) for each in positions))
    for name in names:
        call.allow("look", name.namespace)
    namespace, wait_s = asked.namespace or "default", call.wait_s(asked)
    is_member = bool(asked.group and asked.member_id)
    if is_member:
        call.allow("consume", namespace)
    await call.door.opened(names)

    def read(max_bytes: int) -> Fetched:
        return call.api.fetch(
            positions,
            max_bytes,
            namespace=namespace,
            group=asked.group or None,
            member_id=asked.member_id or None,
            generation=asked.generation,
        )

    def is_news() -> bool | None:
        if not call.door.gate.may_go_on(call.key):
            return None
        found = read(0)  # where the logs are, without their messages
        return found.woken or found.is_elsewhere(positions) or None

    if names and wait_s and not is_news() and not call.door.stopping:
        poll = call.door.polls.wait(names, object(), is_news, lambda found: found, wait_s)
        if is_member:
            poll.end_when(call.api, namespace, asked.group, asked.member_id)
        await poll.future
    return await call.door.read_aside(lambda: _fetched(read(asked.max_bytes or 1 << 20)))


def _fetched(found: Fetched) -> Any:
    parts = [
        _FetchedPart(
            topic=part.topic,
            partition=part.partition,
            messages=[message_of(each) for batch in part.batches for each in batch.messages()],
            next_offset=part.next_offset,
            start=part.start,
            end=part.end,
            out_of_range=part.out_of_range,
        )
        for part in found.parts
    ]
    return _FetchResponse(parts=parts, woken=found.woken)


async def question_of(asked: Any, call: GrpcCall) -> Call[Any] | CommitTransaction:
    """About the namespace of the key, if it names none."""
    kind = _CALLS.get(asked.call)
    if kind is None:
        raise NotFound(f"there is no call {asked.call!r:.100}; /openapi.json lists them")
    question: Call[Any] | CommitTransaction
    if call.request_bytes > LOOP_BYTES:
        items_max = call.door.config.batch_messages_max
        question = await call.door.aside(_decode_long_fields, asked.fields, kind, items_max)
    else:
        question = decode_fields(asked.fields, kind)
    if question.namespace is None and call.key is not None:
        question = msgspec.structs.replace(question, namespace=call.key.namespace)
    return question


def _decode_long_fields(text: str, kind: Any, items_max: int) -> Any:
    body = text.encode()
    if any(has_more_items(body, items_max, objects_around) for objects_around in (1, 2)):
        raise too_many(items_max)
    return decode_fields(text, kind)


async def ask(call: GrpcCall, asked: Any) -> Any:
    question = await question_of(asked, call)
    if isinstance(question, CommitTransaction):
        return await _commit(call, question)
    kind, namespace = type(question), question.namespace
    call.allow(ROUTES[kind].right, namespace)
    body = ROUTES[kind].body
    if body is not None:
        question = msgspec.structs.replace(question, **{body: with_tuples(getattr(question, body))})
    if isinstance(topic := getattr(question, "topic", None), str):
        call.topic = TopicName(namespace or "default", topic)
    answer = await runner(kind, ROUTES[kind])(call, question)
    if isinstance(answer, Future):
        await durable(answer)
        answer = None
    if answer is None:
        return _AskResponse()
    form = await call.door.aside(answer_form, kind, answer, call.door)
    return _AskResponse(answer=msgspec.json.encode(form).decode())


async def _commit(call: GrpcCall, asked: CommitTransaction) -> Any:
    call.allow("describe", asked.namespace)
    outcome, told = await call.door.aside(_commit_aside, call, asked)
    await durable(told)
    return _AskResponse(answer=msgspec.json.encode(outcome).decode())


def _commit_aside(
    call: GrpcCall, asked: CommitTransaction
) -> tuple[TransactionOutcome, Future[None]]:
    staged = call.api.staged(asked, asked.namespace)
    items_max = call.door.config.batch_messages_max
    return commit(call.api, staged, partial(check_right, call.key), items_max)
