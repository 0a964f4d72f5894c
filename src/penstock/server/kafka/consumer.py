"""Consumer groups in which the broker assigns (KIP-848): stream groups, as those of our clients.

An epoch is a generation. A member says what it owns; what it is asked to give back and does not
name any more is given back. Answers name the assignment when it is not what was told before.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from penstock.errors import (
    GroupNotFound,
    InvalidInput,
    PenstockError,
    StaleGeneration,
    TopicNotFound,
    UnknownMember,
)
from penstock.model import calls
from penstock.model.groups import PartitionRef
from penstock.model.names import parse_topic
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.codes import Code, Refused, refusal_of
from penstock.server.kafka.messages import NOW, Answer
from penstock.server.kafka.metadata import NO_OPERATIONS

_JOIN, _LEAVE, _LEAVE_FOR_NOW = 0, -1, -2
_EPOCH_OF_NOBODY = 1
_SESSION_TIMEOUT = "45s"
_HEARTBEAT = timedelta(seconds=1)
_ASSIGNORS = {None: "sticky", "uniform": "sticky", "range": "range"}
_MEMBERS_MAX = 100_000


class Told(NamedTuple):
    """What the last answer to a member said, and what it wants to read."""

    topics: tuple[str, ...]
    present: tuple[str, ...]
    """Those of the topics that there were."""
    assignor: str
    assigned: frozenset[tuple[str, int]]


class ConsumerMembers:
    """What was told to whom; who is forgotten is told again."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, str, str], Told] = OrderedDict()

    def get(self, place: tuple[str, str, str]) -> Told | None:
        return self._told.get(place)

    def keep(self, place: tuple[str, str, str], told: Told) -> None:
        self._told[place] = told
        self._told.move_to_end(place)
        if len(self._told) > _MEMBERS_MAX:
            self._told.popitem(last=False)

    def forget(self, place: tuple[str, str, str]) -> None:
        self._told.pop(place, None)


async def consumer_group_heartbeat(call: KafkaCall) -> Answer:
    body = call.body
    try:
        if not call.may("consume"):
            raise Refused(Code.GROUP_AUTHORIZATION_FAILED)
        classic = call.broker.groups.find((call.namespace, body.group_id))
        if classic is not None and classic.members:
            raise Refused(Code.INCONSISTENT_GROUP_PROTOCOL, "its members use the classic protocol")
        return await call.door.member_aside(_heartbeat, call)
    except Refused as exc:
        return _refused(exc)
    except StaleGeneration as exc:
        return _refused(Refused(Code.FENCED_MEMBER_EPOCH, str(exc)))
    except GroupNotFound as exc:  # none of its members survived a restart
        return _refused(Refused(Code.UNKNOWN_MEMBER_ID, str(exc)))
    except PenstockError as exc:
        return _refused(refusal_of(exc))


def _refused(refused: Refused) -> Answer:
    return Answer(
        throttle_time=NOW,
        error_code=refused.code,
        error_message=refused.message,
        member_id=None,
        member_epoch=0,
        heartbeat_interval=NOW,
        assignment=None,
    )


def _heartbeat(call: KafkaCall) -> Answer:
    body = call.body
    place = call.namespace, body.group_id, body.member_id
    if body.member_epoch in (_LEAVE, _LEAVE_FOR_NOW):
        _leave(call, place)
        return _answer(body.member_id, body.member_epoch, None)
    told = call.broker.consumers.get(place)
    if getattr(body, "subscribed_topic_regex", None):
        raise Refused(Code.INVALID_REQUEST, "name the topics: patterns are not taken")
    topics, assignor = _wanted(body, told)
    present = _present(call, topics)
    if not present:
        return _wait(call, place, told, Told(topics, (), assignor, frozenset()))
    standing: Any
    if body.member_epoch == _JOIN or told is None or told.present != present:
        standing = _join(call, present, assignor)
    else:
        standing = _stay(call)
    assigned = frozenset((each.topic, each.partition) for each in standing.assigned)
    call.broker.consumers.keep(place, Told(topics, present, assignor, assigned))
    is_news = told is None or body.member_epoch == _JOIN or assigned != told.assigned
    return _answer(
        body.member_id,
        standing.generation,
        _named(call, standing.assigned) if is_news else None,
    )


def _wanted(body: Any, told: Told | None) -> tuple[tuple[str, ...], str]:
    """What a member wants to read, which it says when it joins and when that changes."""
    assignor = told.assignor if told is not None else "sticky"
    if body.server_assignor is not None or body.member_epoch == _JOIN:
        if body.server_assignor not in _ASSIGNORS:
            raise Refused(Code.UNSUPPORTED_ASSIGNOR, f"assignors: {', '.join(_named_assignors())}")
        assignor = _ASSIGNORS[body.server_assignor]
    if body.subscribed_topic_names is not None:
        return tuple(sorted(set(body.subscribed_topic_names))), assignor
    if told is None:
        raise UnknownMember(body.group_id, body.member_id)
    return told.topics, assignor


def _named_assignors() -> list[str]:
    return [name for name in _ASSIGNORS if name is not None]


def _present(call: KafkaCall, topics: tuple[str, ...]) -> tuple[str, ...]:
    """Those that there are; others are read once they are made."""
    found = []
    for topic in topics:
        try:
            call.broker.topic_ids.describe(call.topic(topic))
            found.append(topic)
        except (TopicNotFound, Refused):
            continue
    return tuple(found)


def _wait(call: KafkaCall, place: tuple[str, str, str], former: Told | None, told: Told) -> Answer:
    """There is nothing to read yet, or no longer: it is a member of nothing."""
    if former is not None and former.present:
        with suppress(PenstockError):
            _leave(call, place)
    call.broker.consumers.keep(place, told)
    epoch = max(call.body.member_epoch, _EPOCH_OF_NOBODY)
    return _answer(call.body.member_id, epoch, Answer(topic_partitions=()))


def _join(call: KafkaCall, topics: tuple[str, ...], assignor: str) -> Any:
    body = call.body
    if not body.member_id:
        raise Refused(Code.INVALID_REQUEST, "a member names itself")
    return call.api.ask(
        calls.JoinGroup(
            namespace=call.namespace,
            group=body.group_id,
            topics=list(topics),
            member_id=body.member_id,
            session_timeout=_SESSION_TIMEOUT,
            assignor=assignor,
        )
    )


def _stay(call: KafkaCall) -> Any:
    body = call.body
    who: Any = {
        "namespace": call.namespace,
        "group": body.group_id,
        "member_id": body.member_id,
    }
    standing: Any = call.api.ask(calls.Heartbeat(**who, generation=body.member_epoch))
    if standing.revoke and body.topic_partitions is not None:
        owned = _owned(call)
        gone = [each for each in standing.revoke if (each.topic, each.partition) not in owned]
        if gone:
            standing = call.api.ask(
                calls.SyncGroup(**who, generation=standing.generation, revoked=gone)
            )
    return standing


def _owned(call: KafkaCall) -> set[tuple[str, int]]:
    found: set[tuple[str, int]] = set()
    for topic in call.body.topic_partitions:
        name = call.broker.topic_ids.find(topic.topic_id, call.namespace)
        if name is not None:
            found |= {(str(name), number) for number in topic.partitions}
    return found


def _leave(call: KafkaCall, place: tuple[str, str, str]) -> None:
    call.broker.consumers.forget(place)
    _, group, member_id = place
    # It names no generation: that of now, which its heartbeat would tell.
    described: Any = call.api.ask(calls.DescribeStreamGroup(namespace=call.namespace, group=group))
    call.api.ask(
        calls.LeaveGroup(
            namespace=call.namespace,
            group=group,
            member_id=member_id,
            generation=described.generation,
        )
    )


def _named(call: KafkaCall, parts: list[PartitionRef]) -> Answer:
    """Partitions with the ids of their topics."""
    found: dict[UUID, list[int]] = {}
    for each in parts:
        id_, _ = call.broker.topic_ids.describe(parse_topic(each.topic))
        found.setdefault(id_, []).append(each.partition)
    return Answer(
        topic_partitions=[
            Answer(topic_id=id_, partitions=sorted(numbers)) for id_, numbers in found.items()
        ]
    )


def _answer(member_id: str, epoch: int, assignment: Answer | None) -> Answer:
    return Answer(
        throttle_time=NOW,
        error_code=Code.NONE,
        error_message=None,
        member_id=member_id,
        member_epoch=epoch,
        heartbeat_interval=_HEARTBEAT,
        assignment=assignment,
    )


async def consumer_group_describe(call: KafkaCall) -> Answer:
    """Only groups with members of this kind: a client asks for others as for classic ones."""
    return Answer(
        throttle_time=NOW,
        groups=[
            await call.door.member_aside(_described, call, group) for group in call.body.group_ids
        ],
    )


def _described(call: KafkaCall, group: str) -> Answer:
    code, said, state, epoch, members = Code.NONE, None, "Stable", 0, []
    try:
        if not call.may("describe"):
            raise Refused(Code.GROUP_AUTHORIZATION_FAILED)
        if not call.api.has_stream_members(call.namespace, group):
            raise Refused(Code.GROUP_ID_NOT_FOUND, f"group {group} has no members of this kind")
        seen: Any = call.api.ask(calls.DescribeStreamGroup(namespace=call.namespace, group=group))
        epoch = seen.generation
        state = "Stable" if seen.phase == "stable" else "Reconciling"
        members = [_member(call, name, held, epoch) for name, held in seen.members.items()]
    except Refused as exc:
        code, said, state = exc.code, exc.message, ""
    except InvalidInput as exc:
        code, said, state = Code.INVALID_GROUP_ID, str(exc), ""
    except PenstockError as exc:
        refused = refusal_of(exc)
        code, said, state = refused.code, refused.message, ""
    return Answer(
        error_code=code,
        error_message=said,
        group_id=group,
        group_state=state,
        group_epoch=epoch,
        assignment_epoch=epoch,
        assignor_name="uniform",
        members=members,
        authorized_operations=NO_OPERATIONS,
    )


def _member(call: KafkaCall, name: str, held: Any, epoch: int) -> Answer:
    topics: dict[str, list[int]] = {}
    for each in held:
        topics.setdefault(each.topic, []).append(each.partition)
    assignment = Answer(
        topic_partitions=[
            Answer(
                topic_id=call.broker.topic_ids.describe(parse_topic(topic))[0],
                topic_name=parse_topic(topic).topic,
                partitions=numbers,
            )
            for topic, numbers in topics.items()
        ]
    )
    return Answer(
        member_id=name,
        instance_id=None,
        rack_id=None,
        member_epoch=epoch,
        client_id="",
        client_host="",
        subscribed_topic_names=sorted(parse_topic(topic).topic for topic in topics),
        subscribed_topic_regex=None,
        assignment=assignment,
        target_assignment=assignment,
        member_type=1,
    )
