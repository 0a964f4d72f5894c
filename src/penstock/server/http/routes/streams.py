"""Stream mode: what members call, how they read, and what operators ask of groups."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from concurrent.futures import Future as ThreadFuture
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.broker.names import TopicName, parse_topic, topic_name
from penstock.durations import parse_ms
from penstock.errors import GroupNotFound, OffsetOutOfRange
from penstock.group.assignment import TopicPartition
from penstock.group.session import Standing
from penstock.record.batch import Batch
from penstock.record.schema import BITS
from penstock.server.durable import durable
from penstock.server.http.answers import Answer, json_answer
from penstock.server.http.endpoints import Call, Table
from penstock.server.http.routes.queues import wait_seconds
from penstock.server.http.routes.topics import positions
from penstock.wire.columns import ARROW_TYPE, encode_read
from penstock.wire.groups import (
    Commit,
    Fetch,
    Fetched,
    FetchedPart,
    Join,
    MemberCall,
    Offsets,
    Position,
    Reset,
    StandingView,
    StreamGroups,
    StreamGroupView,
    Sync,
    group_view,
    offsets_of,
    places,
    refs,
)
from penstock.wire.groups import positions as wire_positions
from penstock.wire.messages import view

table = Table("streams")

# What a fetch may read on the event loop; more is read beside it.
_LOOP_BYTES = 1 << 20
_LOOP_JSON_BYTES = 64 << 10
_LOOP_POSITIONS = 100


@table.add("GET", "/stream-groups", right="describe", result=StreamGroups)
def list_stream_groups(call: Call) -> StreamGroups:
    """The groups that read as streams; with a namespace in the path, those that read its topics."""
    groups = call.broker.streams.groups()
    if "namespace" in call.parameters:
        groups = [group for group in groups if call.namespace in _namespaces(call, group)]
    elif call.key is not None and call.key.namespace is not None:
        groups = [group for group in groups if _namespaces(call, group) <= {call.key.namespace}]
    return StreamGroups(groups=groups)


@table.add("GET", "/stream-groups/{group}", right="describe", result=StreamGroupView)
def describe_stream_group(call: Call) -> StreamGroupView:
    """Members and their partitions, what is committed, and the lag on each partition."""
    _check_group(call, "describe")
    return group_view(call.broker.streams.describe(call.parameters["group"]))


@table.add("DELETE", "/stream-groups/{group}", right="manage")
async def delete_stream_group(call: Call) -> None:
    """Forget what a group has committed. Only while it has no members."""
    _check_group(call, "manage")
    await call.door.aside(call.broker.streams.delete, call.parameters["group"])


@table.add("GET", "/stream-groups/{group}/offsets", right="describe", result=Offsets)
def committed_offsets(call: Call) -> Offsets:
    """Where a group goes on, on each partition where it has committed."""
    _check_group(call, "describe")
    committed = call.broker.streams.describe(call.parameters["group"]).committed
    return Offsets(offsets=wire_positions(committed))


@table.add("POST", "/stream-groups/{group}/reset", right="manage", body=Reset)
async def reset_stream_group(call: Call) -> None:
    """Let a group start elsewhere. Only while it has no members; it need not exist yet."""
    body: Reset = call.body
    name = topic_name(body.topic, call.namespace)
    offsets = {}
    topic = call.broker.topic(name, create=False)
    for number, offset in positions(call, name, body.to, body.partition):
        log = topic.partition(number).log
        offsets[TopicPartition(str(name), number)] = min(max(offset, log.start), log.end)
    group = call.group
    await durable(await call.door.aside(call.broker.streams.set_offsets, group, offsets))


@table.add("POST", "/stream-groups/{group}/join", right="consume", body=Join, result=StandingView)
async def join(call: Call) -> StandingView:
    """Enter a group, or enter it again under the member's own name."""
    body: Join = call.body
    group = call.group
    names = [topic_name(topic, call.namespace) for topic in body.topics]
    waker = call.door.members.waker(group)
    standing = await call.door.member_aside(
        lambda: call.broker.streams.join(
            group,
            body.member_id,
            names,
            session_timeout_ms=parse_ms(body.session_timeout, "session_timeout"),
            assignor=body.assignor,
            wake=waker,
        )
    )
    waker.joined(standing.member_id, standing.generation)
    return _standing(call, standing)


@table.add(
    "POST",
    "/stream-groups/{group}/heartbeat",
    right="consume",
    body=MemberCall,
    result=StandingView,
)
async def heartbeat(call: Call) -> StandingView:
    """Stay in the group, and hear what to read and what to give back."""
    body: MemberCall = call.body
    group = _check_group(call, "consume")
    call.door.members.heard(group, body.member_id)
    return _standing(
        call,
        await call.door.member_aside(
            call.broker.streams.heartbeat, group, body.member_id, body.generation
        ),
    )


@table.add("POST", "/stream-groups/{group}/sync", right="consume", body=Sync, result=StandingView)
async def sync(call: Call) -> StandingView:
    """Give back partitions that were asked for; also a heartbeat."""
    body: Sync = call.body
    group = _check_group(call, "consume")
    call.door.members.heard(group, body.member_id)
    return _standing(
        call,
        await call.door.member_aside(
            call.broker.streams.revoked,
            group,
            body.member_id,
            body.generation,
            places(body.revoked),
        ),
    )


@table.add("POST", "/stream-groups/{group}/leave", right="consume", body=MemberCall)
async def leave(call: Call) -> None:
    """Go; others get the partitions at once."""
    body: MemberCall = call.body
    group = _check_group(call, "consume")
    await call.door.member_aside(call.broker.streams.leave, group, body.member_id, body.generation)
    call.door.members.gone(group, body.member_id)


@table.add("POST", "/stream-groups/{group}/commit", right="consume", body=Commit)
async def commit(call: Call) -> None:
    """Set positions, all or none, on partitions that the member holds."""
    body: Commit = call.body
    group = _check_group(call, "consume")
    stored: ThreadFuture[None] = await call.door.member_aside(
        call.broker.streams.commit,
        group,
        body.member_id,
        body.generation,
        offsets_of(body.offsets),
        body.number,
    )
    await durable(stored)


@table.add(
    "POST",
    "/fetch",
    right="look",
    body=Fetch,
    result=Fetched,
    result_types=(ARROW_TYPE,),
)
def fetch(call: Call) -> Any:
    """Read several partitions on from where the reader is; waits for the first message if there
    are none. Messages that have expired are left out."""
    body: Fetch = call.body
    wait_s = wait_seconds(body.wait)
    max_bytes = min(body.max_bytes, call.door.config.body_bytes_max)
    wanted = []
    for position in body.positions:
        name = parse_topic(position.topic)
        call.check("look", name.namespace)
        wanted.append((name, position))
    member = (body.group, body.member_id) if body.group and body.member_id else None
    members = call.door.members

    def is_woken() -> bool:
        return member is not None and members.is_woken(*member, body.generation)

    def read() -> list[_Part] | None:
        parts = _read(call, wanted, max_bytes)
        return parts if any(part.moved for part in parts) else None

    def answer(parts: list[_Part] | None) -> Answer:
        return _fetched(call, _read(call, wanted, 0) if parts is None else parts, is_woken())

    def is_news() -> bool | None:
        return any(_is_news(call, name, position) for name, position in wanted) or None

    def poll(ready: Callable[[], Any], answer: Callable[[Any], Any]) -> Future[Any]:
        names = list(dict.fromkeys(name for name, _ in wanted))
        poll = call.door.polls.wait(names, object(), ready, answer, wait_s)
        if member is not None:
            members.attend(*member, poll)
        return poll.future

    async def fetch_aside() -> Answer:
        """Beside the event loop: it would take long."""
        if wait_s and not is_news() and not is_woken() and not call.door.stopping:
            await poll(is_news, lambda found: found)
            call.check_still_good()
        return await call.door.read_aside(lambda: answer(read()))

    on_loop_bytes = _LOOP_BYTES if call.request.accepts(ARROW_TYPE) else _LOOP_JSON_BYTES
    if max_bytes > on_loop_bytes or len(wanted) > _LOOP_POSITIONS:
        return fetch_aside()
    parts = read()
    if parts is not None or is_woken() or not wait_s or call.door.stopping:
        return answer(parts)
    return poll(call.while_good(read), answer)


class _Part(NamedTuple):
    """What was read of one partition."""

    position: Position
    batches: list[Batch]
    next_offset: int
    start: int
    end: int
    out_of_range: bool

    @property
    def moved(self) -> bool:
        return self.out_of_range or self.next_offset > self.position.offset


def _is_news(call: Call, name: TopicName, position: Position) -> bool:
    """Whether a read would bring something: messages, or that there is no such offset."""
    log = call.broker.topic(name, create=False).partition(position.partition).log
    return position.offset != log.end


def _read(call: Call, wanted: Sequence[tuple[TopicName, Position]], bytes_left: int) -> list[_Part]:
    now_us = call.broker.clock.wall_ns() // 1000
    parts = []
    for name, position in wanted:
        log = call.broker.topic(name, create=False).partition(position.partition).log
        offset, batches, out_of_range = position.offset, [], False
        next_offset = offset
        if bytes_left > 0:
            try:
                read = log.read(offset, bytes_left)
            except OffsetOutOfRange:
                out_of_range = True
            else:
                next_offset = read.next_offset
                batches = [_alive(batch, now_us) for batch in read]
                bytes_left -= sum(batch.nbytes for batch in batches)
        parts.append(_Part(position, batches, next_offset, log.start, log.end, out_of_range))
    return parts


def _alive(batch: Batch, now_us: int) -> Batch:
    """Without what has expired."""
    if not batch.columns & BITS["expires_at"]:
        return batch
    ends = np.asarray(batch.expires_at.cast("int64").fill_null(1 << 62))
    return batch if (ends > now_us).all() else batch.filter(ends > now_us)


def _fetched(call: Call, parts: Sequence[_Part], woken: bool) -> Answer:
    as_arrow = call.request.accepts(ARROW_TYPE)
    fetched = Fetched(
        parts=[
            FetchedPart(
                topic=part.position.topic,
                partition=part.position.partition,
                next_offset=part.next_offset,
                start=part.start,
                end=part.end,
                out_of_range=part.out_of_range,
                rows=sum(map(len, part.batches)),
                messages=[]
                if as_arrow
                else [view(message) for batch in part.batches for message in batch.messages()],
            )
            for part in parts
        ],
        woken=woken,
    )
    if not as_arrow:
        return json_answer(fetched)
    batches = [batch for part in parts for batch in part.batches if len(batch)]
    return Answer(200, ARROW_TYPE, encode_read(batches, msgspec.json.encode(fetched)))


def _standing(call: Call, standing: Standing) -> StandingView:
    committed = call.broker.streams.committed(call.parameters["group"])
    return StandingView(
        member_id=standing.member_id,
        generation=standing.generation,
        assigned=refs(standing.assigned),
        revoke=refs(standing.revoke),
        rebalancing=standing.rebalancing,
        session_timeout_ms=standing.session_timeout_ms,
        heartbeat_interval_ms=standing.heartbeat_interval_ms,
        committed=wire_positions(
            {place: committed[place].offset for place in standing.assigned if place in committed}
        ),
    )


def _check_group(call: Call, right: Any) -> str:
    """A key of one namespace has no business with a group that reads topics of another."""
    group = call.parameters["group"]
    if call.key is not None and call.key.namespace is not None:
        for namespace in _namespaces(call, group):
            call.check(right, namespace)
    return group


def _namespaces(call: Call, group: str) -> set[str]:
    try:
        described = call.broker.streams.describe(group)
    except GroupNotFound:
        return set()
    topics = {place.topic for place in (*described.committed, *described.lag)}
    return {parse_topic(topic).namespace for topic in topics}
