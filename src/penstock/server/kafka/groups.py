"""Requests of consumer groups: members, positions, and groups seen from outside."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from penstock.errors import (
    GroupNotFound,
    InvalidInput,
    PartitionNotOwned,
    PenstockError,
    StaleGeneration,
)
from penstock.group.offsets import METADATA_BYTES_MAX
from penstock.model import calls
from penstock.model.groups import CommittedOffset, PartitionOffset
from penstock.model.names import group_name, parse_topic
from penstock.server.durable import durable
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.classic import ClassicGroup, JoinRequest
from penstock.server.kafka.codes import Code, Refused, refusal_of
from penstock.server.kafka.coordinator import Place
from penstock.server.kafka.messages import NOW, Answer
from penstock.server.kafka.metadata import NO_OPERATIONS

_GROUP, _TRANSACTION = 0, 1
_MS = timedelta(milliseconds=1)
_NAMED_MEMBERS_FROM = 4  # the version of JoinGroup from which clients come twice, the first time
_SEVERAL_GROUPS_FROM = 8  # the version of OffsetFetch that asks for several
_SEVERAL_LEAVE_FROM = 3  # and that of LeaveGroup that may name several members
_MEMBER_BYTES_MAX = 1 << 20  # of what a member says of itself


def find_coordinator(call: KafkaCall) -> Answer:
    code, said = Code.NONE, None
    if getattr(call.body, "key_type", _GROUP) not in (_GROUP, _TRANSACTION):
        code, said = Code.INVALID_REQUEST, "only groups and transactions have coordinators"
    at = call.broker.address_for(call.session)
    return Answer(
        throttle_time=NOW,
        error_code=code,
        error_message=said,
        node_id=at.id if code is Code.NONE else -1,
        host=at.host if code is Code.NONE else "",
        port=at.port if code is Code.NONE else -1,
    )


# Members.


async def join_group(call: KafkaCall) -> Answer:
    body = call.body
    session_ms = _ms(body.session_timeout)
    request = JoinRequest(
        member_id=body.member_id,
        instance_id=_instance(body),
        client_id=call.client_id,
        client_host=f"/{call.session.address}",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=_ms(getattr(body, "rebalance_timeout", body.session_timeout)),
        protocol_type=body.protocol_type,
        protocols=tuple((each.name, each.metadata) for each in body.protocols),
    )
    if not call.may("consume"):
        return _joined(Code.GROUP_AUTHORIZATION_FAILED, body.member_id)
    if sum(len(metadata) for _, metadata in request.protocols) > _MEMBER_BYTES_MAX:
        return _joined(Code.INVALID_REQUEST, body.member_id)
    joined = await call.broker.groups.join(
        _place(call, body.group_id), request, needs_id=call.version >= _NAMED_MEMBERS_FROM
    )
    return Answer(
        throttle_time=NOW,
        error_code=joined.code,
        generation_id=joined.generation,
        protocol_name=joined.protocol,
        leader=joined.leader,
        member_id=joined.member_id,
        members=[
            Answer(member_id=id_, group_instance_id=instance, metadata=metadata)
            for id_, instance, metadata in joined.members
        ],
    )


def _joined(code: Code, member_id: str) -> Answer:
    return Answer(
        throttle_time=NOW,
        error_code=code,
        generation_id=-1,
        protocol_name="",
        leader="",
        member_id=member_id,
        members=(),
    )


async def sync_group(call: KafkaCall) -> Answer:
    body = call.body
    synced = await call.broker.groups.sync(
        _place(call, body.group_id),
        body.member_id,
        _instance(body),
        body.generation_id,
        {each.member_id: each.assignment for each in body.assignments},
    )
    return Answer(throttle_time=NOW, error_code=synced.code, assignment=synced.assignment)


def heartbeat(call: KafkaCall) -> Answer:
    body = call.body
    code = call.broker.groups.heartbeat(
        _place(call, body.group_id), body.member_id, _instance(body), body.generation_id
    )
    return Answer(throttle_time=NOW, error_code=code)


def leave_group(call: KafkaCall) -> Answer:
    body = call.body
    leaving = (
        [(body.member_id, None)]
        if call.version < _SEVERAL_LEAVE_FROM
        else [(each.member_id, each.group_instance_id) for each in body.members]
    )
    place = _place(call, body.group_id)
    left = [
        (member_id, instance, call.broker.groups.leave(place, member_id, instance))
        for member_id, instance in leaving
    ]
    code = left[0][2] if call.version < _SEVERAL_LEAVE_FROM else Code.NONE
    return Answer(
        throttle_time=NOW,
        error_code=code,
        members=[
            Answer(member_id=member_id, group_instance_id=instance, error_code=each)
            for member_id, instance, each in left
        ],
    )


# Positions.


async def offset_commit(call: KafkaCall) -> Answer:
    body = call.body
    code = _may_commit(call)
    checked = [
        (topic.name, part, code if code is not Code.NONE else _commit_refusal(call, topic, part))
        for topic in body.topics
        for part in topic.partitions
    ]
    taken = [(topic, part) for topic, part, refused in checked if refused is Code.NONE]
    if taken:
        code = await _set_offsets(call, body.group_id, taken)
    topics: dict[str, list[Answer]] = {topic.name: [] for topic in body.topics}
    for topic, part, refused in checked:
        told = code if refused is Code.NONE else refused
        topics[topic].append(Answer(partition_index=part.partition_index, error_code=told))
    return Answer(
        throttle_time=NOW,
        topics=[Answer(name=name, partitions=parts) for name, parts in topics.items()],
    )


def _may_commit(call: KafkaCall) -> Code:
    body = call.body
    if not call.may("consume"):
        return Code.GROUP_AUTHORIZATION_FAILED
    if _is_consumer(call):
        return Code.NONE  # its epoch is looked at with the positions
    return call.broker.groups.may_commit(
        _place(call, body.group_id),
        body.member_id,
        _instance(body),
        body.generation_id_or_member_epoch,
    )


def _is_consumer(call: KafkaCall) -> bool:
    """Whether it is a member of a group in which the broker assigns."""
    body = call.body
    return bool(body.member_id) and call.api.has_stream_members(call.namespace, body.group_id)


def _commit_refusal(call: KafkaCall, topic: Any, part: Any) -> Code:
    try:
        name = call.topic(topic.name)
        described: Any = call.api.ask(
            calls.DescribeTopic(topic=name.topic, namespace=name.namespace)
        )
    except Refused as exc:
        return exc.code
    except PenstockError as exc:
        return refusal_of(exc).code
    if not 0 <= part.partition_index < described.settings.partitions:
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    if part.committed_offset < 0:
        return Code.OFFSET_OUT_OF_RANGE
    if len((part.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
        return Code.OFFSET_METADATA_TOO_LARGE
    return Code.NONE


async def _set_offsets(call: KafkaCall, group: str, taken: Sequence[tuple[str, Any]]) -> Code:
    asked = _as_member(call, taken) if _is_consumer(call) else _as_stranger(call, taken)
    try:
        stored = await call.door.member_aside(call.api.ask, asked)
        if isinstance(stored, Future):
            await durable(stored)
    except (StaleGeneration, PartitionNotOwned):
        return Code.STALE_MEMBER_EPOCH
    except InvalidInput:
        return Code.INVALID_GROUP_ID
    except PenstockError as exc:
        return refusal_of(exc).code
    return Code.NONE


def _as_member(call: KafkaCall, taken: Sequence[tuple[str, Any]]) -> calls.CommitOffsets:
    return calls.CommitOffsets(
        namespace=call.namespace,
        group=call.body.group_id,
        member_id=call.body.member_id,
        generation=call.body.generation_id_or_member_epoch,
        offsets=[
            PartitionOffset(str(call.topic(topic)), part.partition_index, part.committed_offset)
            for topic, part in taken
        ],
        metadata=[part.committed_metadata or "" for _, part in taken],
    )


def _as_stranger(call: KafkaCall, taken: Sequence[tuple[str, Any]]) -> calls.SetStreamOffsets:
    """Of a group without members of the broker's."""
    offsets: dict[str, dict[int, int]] = {}
    metadata: dict[str, dict[int, str]] = {}
    for topic, part in taken:
        offsets.setdefault(topic, {})[part.partition_index] = part.committed_offset
        if part.committed_metadata:
            metadata.setdefault(topic, {})[part.partition_index] = part.committed_metadata
    return calls.SetStreamOffsets(
        namespace=call.namespace, group=call.body.group_id, offsets=offsets, metadata=metadata
    )


async def offset_fetch(call: KafkaCall) -> Answer:
    body = call.body
    if call.version >= _SEVERAL_GROUPS_FROM:
        groups = [await _committed(call, each.group_id, each.topics) for each in body.groups]
        return Answer(throttle_time=NOW, groups=groups)
    return await _committed(call, body.group_id, body.topics)


async def _committed(call: KafkaCall, group: str, asked_topics: Any) -> Answer:
    committed: dict[tuple[str, int], CommittedOffset] = {}
    code = Code.NONE if call.may("describe") else Code.GROUP_AUTHORIZATION_FAILED
    if code is Code.NONE:
        asked = calls.ListCommittedOffsets(namespace=call.namespace, group=group)
        try:
            found: Any = await call.door.member_aside(call.api.ask, asked)
            committed = {
                (parse_topic(each.topic).topic, each.partition): each for each in found.offsets
            }
        except GroupNotFound:
            pass
        except InvalidInput:
            code = Code.INVALID_GROUP_ID
        except PenstockError as exc:
            code = refusal_of(exc).code
    topics: dict[str, list[Answer]] = {}
    wanted = (
        sorted(committed)
        if asked_topics is None
        else [(topic.name, index) for topic in asked_topics for index in topic.partition_indexes]
    )
    for topic, index in wanted:
        at = committed.get((topic, index))
        topics.setdefault(topic, []).append(
            Answer(
                partition_index=index,
                committed_offset=-1 if at is None else at.offset,
                committed_leader_epoch=-1,
                metadata="" if at is None else at.metadata,
                error_code=code,
            )
        )
    return Answer(
        throttle_time=NOW,
        error_code=code,
        group_id=group,
        topics=[Answer(name=name, partitions=parts) for name, parts in topics.items()],
    )


# Groups from outside.


async def describe_groups(call: KafkaCall) -> Answer:
    return Answer(
        throttle_time=NOW,
        groups=[await _described(call, group) for group in call.body.groups],
    )


async def _described(call: KafkaCall, group: str) -> Answer:
    if not call.may("describe"):
        return _group(group, "", code=Code.GROUP_AUTHORIZATION_FAILED)
    classic = call.broker.groups.find((call.namespace, group))
    if classic is not None:
        return _group(
            group,
            classic.state,
            protocol_type=classic.protocol_type,
            protocol=classic.protocol,
            members=_members(classic),
        )
    asked = calls.ListCommittedOffsets(namespace=call.namespace, group=group)
    try:
        await call.door.member_aside(call.api.ask, asked)
    except (GroupNotFound, InvalidInput):
        return _group(group, "Dead")
    except PenstockError as exc:
        return _group(group, "", code=refusal_of(exc).code)
    native = call.api.has_stream_members(call.namespace, group)
    return _group(group, "Stable" if native else "Empty", protocol_type="consumer")


def _group(
    group: str,
    state: str,
    *,
    code: Code = Code.NONE,
    protocol_type: str = "",
    protocol: str = "",
    members: list[Answer] | None = None,
) -> Answer:
    return Answer(
        error_code=code,
        group_id=group,
        group_state=state,
        protocol_type=protocol_type,
        protocol_data=protocol,
        members=members or [],
        authorized_operations=NO_OPERATIONS,
    )


def _members(group: ClassicGroup) -> list[Answer]:
    return [
        Answer(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=dict(member.protocols).get(group.protocol, b""),
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]


async def delete_groups(call: KafkaCall) -> Answer:
    return Answer(
        throttle_time=NOW,
        results=[
            Answer(group_id=group, error_code=await _delete(call, group))
            for group in call.body.groups_names
        ],
    )


async def _delete(call: KafkaCall, group: str) -> Code:
    if not call.may("manage"):
        return Code.GROUP_AUTHORIZATION_FAILED
    classic = call.broker.groups.find((call.namespace, group))
    if classic is not None and classic.members:
        return Code.NON_EMPTY_GROUP
    asked = calls.DeleteStreamGroup(namespace=call.namespace, group=group)
    try:
        group_name(group)
        await call.door.member_aside(call.api.ask, asked)
    except InvalidInput:
        return Code.INVALID_GROUP_ID
    except PenstockError as exc:
        return refusal_of(exc).code
    return Code.NONE


def _place(call: KafkaCall, group: str) -> Place:
    return call.namespace, group


def _instance(body: Any) -> str | None:
    instance: str | None = getattr(body, "group_instance_id", None)
    return instance


def _ms(given: Any) -> int:
    return int(given / _MS)
