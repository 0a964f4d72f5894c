"""Requests of share groups (KIP-932): queue groups, with priorities, retries and dead letters.

Every member may read every partition. What a fetch acquires is leased: accept is an ack, release a
nack without a delay, reject a reject. Messages are chosen by lane and sent in the order of offsets,
as the protocol wants them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError, TopicNotFound
from penstock.model.deliveries import Delivered, LeasePart, Nack, Rejection, Settle, Verb
from penstock.model.names import TopicName, group_name
from penstock.record.batch import Batch
from penstock.server.durable import durable
from penstock.server.kafka import records_out
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.codes import Code, Refused, refusal_of
from penstock.server.kafka.messages import NOW, Answer
from penstock.server.kafka.metadata import NO_OPERATIONS
from penstock.server.kafka.share_members import ShareGroup, ShareMember, SharePart, ShareSession

_JOIN, _LEAVE = 0, -1
_FIRST, _FINAL = 0, -1
_HEARTBEAT = timedelta(seconds=2)
_GAP, _ACCEPT, _RELEASE, _REJECT = range(4)
_RECORDS_MAX = 1000
_WAIT_S_MAX = 30.0


# Members.


async def share_group_heartbeat(call: KafkaCall) -> Answer:
    body = call.body
    try:
        if not call.may("consume"):
            raise Refused(Code.GROUP_AUTHORIZATION_FAILED)
        return await call.door.member_aside(_heartbeat, call)
    except Refused as exc:
        return _beat(exc.code, exc.message, body.member_id, 0, None)
    except PenstockError as exc:
        refused = refusal_of(exc)
        return _beat(refused.code, refused.message, body.member_id, 0, None)


def _heartbeat(call: KafkaCall) -> Answer:
    body = call.body
    groups = call.broker.shares
    place = call.namespace, group_name(body.group_id)
    if body.member_epoch == _LEAVE:
        groups.leave(place, body.member_id)
        return _beat(Code.NONE, None, body.member_id, _LEAVE, None)
    now_ns = call.api.clock.monotonic_ns()
    topics = body.subscribed_topic_names
    member = groups.heard(
        place,
        body.member_id,
        body.member_epoch,
        None if topics is None else tuple(sorted(set(topics))),
        now_ns,
    )
    parts = _parts(call, member)
    if body.member_epoch == _JOIN:
        for name in {part.name for part in parts}:
            call.api.begin_at_end(name, body.group_id)
    is_news = groups.assign(member, parts) or body.member_epoch == _JOIN
    return _beat(
        Code.NONE,
        None,
        body.member_id,
        member.epoch,
        _assignment(call, member.parts) if is_news else None,
    )


def _parts(call: KafkaCall, member: ShareMember) -> tuple[SharePart, ...]:
    """All partitions of the topics that there are."""
    found: list[SharePart] = []
    for topic in member.topics:
        try:
            name = call.topic(topic)
            _, described = call.broker.topic_ids.describe(name)
        except (TopicNotFound, Refused):
            continue
        found += [SharePart(name, number) for number in range(described.settings.partitions)]
    return tuple(found)


def _assignment(call: KafkaCall, parts: Sequence[SharePart]) -> Answer:
    topics: dict[TopicName, list[int]] = {}
    for part in parts:
        topics.setdefault(part.name, []).append(part.partition)
    return Answer(
        topic_partitions=[
            Answer(
                topic_id=call.broker.topic_ids.describe(name)[0],
                topic_name=name.topic,
                partitions=numbers,
            )
            for name, numbers in topics.items()
        ]
    )


def _beat(
    code: Code, said: str | None, member_id: str, epoch: int, assignment: Answer | None
) -> Answer:
    return Answer(
        throttle_time=NOW,
        error_code=code,
        error_message=said,
        member_id=member_id,
        member_epoch=epoch,
        heartbeat_interval=_HEARTBEAT,
        assignment=assignment,
    )


async def share_group_describe(call: KafkaCall) -> Answer:
    return Answer(
        throttle_time=NOW,
        groups=[
            await call.door.member_aside(_described, call, group) for group in call.body.group_ids
        ],
    )


def _described(call: KafkaCall, group: str) -> Answer:
    code, said = Code.NONE, None
    found: ShareGroup | None = None
    if not call.may("describe"):
        code = Code.GROUP_AUTHORIZATION_FAILED
    else:
        found = call.broker.shares.find((call.namespace, group), call.api.clock.monotonic_ns())
        if found is None:
            code, said = Code.GROUP_ID_NOT_FOUND, f"share group {group} has no members"
    members = {} if found is None else found.members
    return Answer(
        error_code=code,
        error_message=said,
        group_id=group,
        group_state="" if found is None else "Stable",
        group_epoch=0 if found is None else found.epoch,
        assignment_epoch=0 if found is None else found.epoch,
        assignor_name="simple",
        members=[
            Answer(
                member_id=member_id,
                rack_id=None,
                member_epoch=member.epoch,
                client_id="",
                client_host="",
                subscribed_topic_names=member.topics,
                assignment=_assignment(call, member.parts),
            )
            for member_id, member in members.items()
        ],
        authorized_operations=NO_OPERATIONS,
    )


# Fetches and acknowledgements.


class _Acquired(NamedTuple):
    part: SharePart
    code: Code
    records: bytes = b""
    runs: Sequence[tuple[int, int, int]] = ()


async def share_fetch(call: KafkaCall) -> Answer:
    body = call.body
    try:
        session, is_final = _session(call)
        refused = await _acknowledge(call, session)
        if is_final:
            await _release(call, session)
            return _fetched(call, [], refused)
        session.parts = _wanted(call, session)
    except Refused as exc:
        return _fetched(call, [], {}, exc)
    acquired = await _acquire(call, session)
    wait_s = min(body.max_wait.total_seconds(), _WAIT_S_MAX)
    if not acquired and not refused and wait_s > 0 and not call.door.stopping:
        acquired = await _poll(call, session, wait_s)
    return _fetched(call, acquired, refused)


async def share_acknowledge(call: KafkaCall) -> Answer:
    try:
        session, is_final = _session(call)
        refused = await _acknowledge(call, session)
        if is_final:
            await _release(call, session)
    except Refused as exc:
        return _acknowledged(call, {}, exc)
    return _acknowledged(call, refused)


def _session(call: KafkaCall) -> tuple[ShareSession, bool]:
    """The session that a request belongs to, and whether it is its last."""
    body = call.body
    if not call.may("consume"):
        raise Refused(Code.GROUP_AUTHORIZATION_FAILED)
    place = call.namespace, body.group_id or "", body.member_id or ""
    epoch = body.share_session_epoch
    sessions = call.broker.shares.sessions
    if epoch == _FIRST:
        return sessions.begin(place), False
    session = sessions.get(place)
    if session is None:
        raise Refused(Code.SHARE_SESSION_NOT_FOUND)
    if epoch == _FINAL:
        sessions.end(place)
        return session, True
    if epoch != session.epoch:
        raise Refused(Code.INVALID_SHARE_SESSION_EPOCH)
    session.went_on()
    return session, False


def _wanted(call: KafkaCall, session: ShareSession) -> list[SharePart]:
    """The partitions of the session, after what the request adds and takes away."""
    parts = dict.fromkeys(session.parts)
    for topic in call.body.topics:
        name = call.broker.topic_ids.find(topic.topic_id, call.namespace)
        if name is not None:
            parts |= dict.fromkeys(SharePart(name, p.partition_index) for p in topic.partitions)
    for topic in call.body.forgotten_topics_data:
        name = call.broker.topic_ids.find(topic.topic_id, call.namespace)
        for number in topic.partitions:
            if name is not None:
                parts.pop(SharePart(name, number), None)
    return list(parts)


async def _acknowledge(call: KafkaCall, session: ShareSession) -> dict[SharePart, Code]:
    """Settle what a request names; what could not be is told by partition."""
    found: dict[SharePart, Code] = {}
    for topic in call.body.topics:
        name = call.broker.topic_ids.find(topic.topic_id, call.namespace)
        for partition in topic.partitions:
            if name is None or not partition.acknowledgement_batches:
                continue
            part = SharePart(name, partition.partition_index)
            by_type: dict[int, list[int]] = {}
            for batch in partition.acknowledgement_batches:
                for kind, offset in _typed(batch):
                    by_type.setdefault(kind, []).append(offset)
            for kind, offsets in by_type.items():
                if kind in (_ACCEPT, _RELEASE, _REJECT):
                    code = await _settle(call, session, part, kind, offsets)
                    if code is not Code.NONE:
                        found[part] = code
                elif kind != _GAP:
                    found[part] = Code.INVALID_REQUEST
    return found


def _typed(batch: Any) -> list[tuple[int, int]]:
    """The kind of acknowledgement of each offset of a batch."""
    count = batch.last_offset - batch.first_offset + 1
    types = batch.acknowledge_types
    if not 0 < count <= _RECORDS_MAX * 10 or len(types) not in (1, count):
        raise Refused(Code.INVALID_REQUEST, "a batch of acknowledgements does not fit its offsets")
    kinds = list(types) * count if len(types) == 1 else list(types)
    return list(zip(kinds, range(batch.first_offset, batch.last_offset + 1), strict=True))


async def _settle(
    call: KafkaCall, session: ShareSession, part: SharePart, kind: int, offsets: Sequence[int]
) -> Code:
    leases, unknown = session.let_go(part, offsets)
    if not leases:
        return Code.INVALID_RECORD_STATE
    named = [
        LeasePart(partition=part.partition, lease=nonce, offsets=some)
        for nonce, some in leases.items()
    ]
    verb: Verb = "ack"
    how = Settle(leases=named)
    if kind == _RELEASE:
        verb, how = "nack", Nack(leases=named, delay="0s")
    elif kind == _REJECT:
        verb, how = "reject", Rejection(leases=named, reason="rejected by a share consumer")
    group = call.body.group_id

    def settle() -> Any:
        return call.api.settle(verb, part.name, group, how)

    try:
        # What may sync a dead letter does not hold up the event loop.
        settled = await call.door.long_calls.run(part.name, settle)
        for future in settled.durable:
            await durable(future)
    except PenstockError as exc:
        return refusal_of(exc).code
    return Code.INVALID_RECORD_STATE if settled.refused or unknown else Code.NONE


async def _release(call: KafkaCall, session: ShareSession) -> None:
    """The session ends: what it holds may be handed out again at once."""
    for part in session.held():
        await _settle(call, session, part, _RELEASE, session.offsets(part))


async def _acquire(call: KafkaCall, session: ShareSession) -> list[_Acquired]:
    if any(call.door.long_calls.takes_long(part.name) for part in session.parts):
        return await call.door.aside(_acquire_now, call, session)
    return _acquire_now(call, session)


def _acquire_now(call: KafkaCall, session: ShareSession) -> list[_Acquired]:
    left = max(1, min(getattr(call.body, "max_records", 0) or _RECORDS_MAX, _RECORDS_MAX))
    found = []
    for part in session.in_turn():
        room = min(left, session.room())
        if room <= 0:
            break
        try:
            delivered = call.api.receive(
                part.name,
                call.body.group_id,
                room,
                consumer=session.member_id[:256],
                partition=part.partition,
            )
        except PenstockError as exc:
            found.append(_Acquired(part, refusal_of(exc).code))
            continue
        for each in delivered:
            left -= each.count
            found.append(_held(session, part, each))
    return found


def _held(session: ShareSession, part: SharePart, delivered: Delivered) -> _Acquired:
    """What was handed out, in the order of offsets, with how often each was delivered."""
    batch = Batch.concat([piece for piece, _ in delivered.pieces])
    counts = np.concatenate([np.full(len(piece), n) for piece, n in delivered.pieces])
    offsets = batch.offset_numbers()
    if (np.diff(offsets) < 0).any():
        order = np.argsort(offsets)
        batch, counts, offsets = batch.take(order), counts[order], offsets[order]
    session.hold(part, offsets.tolist(), delivered.nonce)
    # Runs of neighbours that were delivered as often as each other.
    cuts = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(counts) != 0)) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(offsets)]
    runs = [
        (int(offsets[a]), int(offsets[b - 1]), min(int(counts[a]), (1 << 15) - 1))
        for a, b in zip(starts, ends, strict=True)
    ]
    records = b"".join(records_out.encode([batch], int(offsets[-1]) + 1))
    return _Acquired(part, Code.NONE, records, runs)


async def _poll(call: KafkaCall, session: ShareSession, wait_s: float) -> list[_Acquired]:
    names = list({part.name for part in session.parts})
    busy: Callable[[TopicName], bool] = call.door.long_calls.is_busy

    def ready() -> list[_Acquired] | None:
        if not call.door.gate.may_go_on(call.session.key):
            return None
        if any(map(busy, names)):
            return None  # its end is news
        return _acquire_now(call, session) or None

    poll = call.door.polls.wait(names, object(), ready, lambda found: found or [], wait_s)
    found: list[_Acquired] = await poll.future
    return found


def _fetched(
    call: KafkaCall,
    acquired: Sequence[_Acquired],
    refused: dict[SharePart, Code],
    error: Refused | None = None,
) -> Answer:
    parts = {each.part: each for each in acquired}
    parts |= {part: _Acquired(part, Code.NONE) for part in refused if part not in parts}
    return Answer(
        throttle_time=NOW,
        error_code=Code.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        acquisition_lock_timeout=_lock_timeout(call, parts),
        responses=_by_topic(
            call,
            {
                part: Answer(
                    partition_index=part.partition,
                    error_code=each.code,
                    error_message=None,
                    acknowledge_error_code=refused.get(part, Code.NONE),
                    acknowledge_error_message=None,
                    current_leader=Answer(leader_id=0, leader_epoch=-1),
                    records=each.records,
                    acquired_records=[
                        Answer(first_offset=first, last_offset=last, delivery_count=count)
                        for first, last, count in each.runs
                    ],
                )
                for part, each in parts.items()
            },
        ),
        node_endpoints=(),
    )


def _acknowledged(
    call: KafkaCall, refused: dict[SharePart, Code], error: Refused | None = None
) -> Answer:
    named: dict[SharePart, Code] = {}
    for topic in call.body.topics:
        name = call.broker.topic_ids.find(topic.topic_id, call.namespace)
        if name is not None and error is None:
            for each in topic.partitions:
                part = SharePart(name, each.partition_index)
                named[part] = refused.get(part, Code.NONE)
    return Answer(
        throttle_time=NOW,
        error_code=Code.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        responses=_by_topic(
            call,
            {
                part: Answer(
                    partition_index=part.partition,
                    error_code=code,
                    error_message=None,
                    current_leader=Answer(leader_id=0, leader_epoch=-1),
                )
                for part, code in named.items()
            },
        ),
        node_endpoints=(),
    )


def _by_topic(call: KafkaCall, parts: dict[SharePart, Answer]) -> list[Answer]:
    topics: dict[TopicName, list[Answer]] = {}
    for part, answer in parts.items():
        topics.setdefault(part.name, []).append(answer)
    return [
        Answer(topic_id=call.broker.topic_ids.describe(name)[0], partitions=answers)
        for name, answers in topics.items()
    ]


def _lock_timeout(call: KafkaCall, parts: dict[SharePart, _Acquired]) -> timedelta:
    """How long what was acquired is the client's: the shortest visibility of its topics."""
    lengths = []
    for name in {part.name for part in parts}:
        described: Any = call.broker.topic_ids.describe(name)[1]
        lengths.append(described.settings.visibility_ms)
    return timedelta(milliseconds=min(lengths, default=30_000))
