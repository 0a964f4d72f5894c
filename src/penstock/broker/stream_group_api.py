"""The calls of the API that are about stream groups and their members."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from penstock.broker.api_part import ApiPart
from penstock.broker.members import Members
from penstock.broker.peek import offsets_at, within
from penstock.durations import parse_ms
from penstock.group.assignment import TopicPartition
from penstock.group.events import Committed
from penstock.group.session import Standing
from penstock.model import calls
from penstock.model.groups import (
    CommittedOffsets,
    MemberStanding,
    StreamGroup,
    StreamGroups,
    committed_of,
    committed_offsets,
    places,
    positions,
    refs,
)
from penstock.model.names import stream_group, topic_name


class StreamGroupApi(ApiPart):
    """Stream groups, as doors and their members see them."""

    _members: Members

    # Stream groups, from outside.

    def list_stream_groups(self, call: calls.ListStreamGroups) -> StreamGroups:
        return StreamGroups(groups=self._broker.streams.groups(call.namespace))

    def describe_stream_group(self, call: calls.DescribeStreamGroup) -> StreamGroup:
        return self._broker.streams.describe(_group(call))

    def delete_stream_group(self, call: calls.DeleteStreamGroup) -> None:
        self._broker.streams.delete(_group(call))

    def list_committed_offsets(self, call: calls.ListCommittedOffsets) -> CommittedOffsets:
        committed = self._broker.streams.committed(_group(call), must_exist=True)
        return CommittedOffsets(offsets=committed_offsets(committed))

    def reset_stream_group(self, call: calls.ResetStreamGroup) -> Future[None]:
        name = topic_name(call.topic, call.namespace)
        topic = self._broker.topic(name, create=False)
        offsets = {
            TopicPartition(str(name), number): within(topic.partition(number), offset)
            for number, offset in offsets_at(topic, call.to, call.partition).items()
        }
        return self._broker.streams.set_offsets(_group(call), offsets)

    def set_stream_offsets(self, call: calls.SetStreamOffsets) -> Future[None]:
        offsets, incarnations = {}, {}
        for topic, each in call.offsets.items():
            name = topic_name(topic, call.namespace)
            here = self._broker.topic(name, create=False)
            for number, offset in each.items():
                end = here.partition(number).log.end
                note = call.metadata.get(topic, {}).get(number, "")
                place = TopicPartition(str(name), number)
                offsets[place] = Committed(_at_most(offset, end), note)
            if topic in call.incarnations:
                incarnations[str(name)] = call.incarnations[topic]
        return self._broker.streams.set_offsets(_group(call), offsets, incarnations)

    # Stream groups, for members.

    def join_group(self, call: calls.JoinGroup) -> MemberStanding:
        group = _group(call)
        waker = self._members.waker(group)
        standing = self._broker.streams.join(
            group,
            call.member_id,
            [topic_name(topic, call.namespace) for topic in call.topics],
            session_timeout_ms=parse_ms(call.session_timeout, "session_timeout"),
            assignor=call.assignor,
            wake=waker,
        )
        waker.joined(standing.member_id, standing.generation)
        return self._standing(_group(call), standing)

    def heartbeat(self, call: calls.Heartbeat) -> MemberStanding:
        self._members.heard(_group(call), call.member_id)
        standing = self._broker.streams.heartbeat(_group(call), call.member_id, call.generation)
        return self._standing(_group(call), standing)

    def sync_group(self, call: calls.SyncGroup) -> MemberStanding:
        self._members.heard(_group(call), call.member_id)
        standing = self._broker.streams.revoked(
            _group(call), call.member_id, call.generation, places(call.revoked)
        )
        return self._standing(_group(call), standing)

    def leave_group(self, call: calls.LeaveGroup) -> None:
        self._broker.streams.leave(_group(call), call.member_id, call.generation)
        self._members.gone(_group(call), call.member_id)

    def commit_offsets(self, call: calls.CommitOffsets) -> Future[None]:
        offsets = committed_of(call.offsets, call.metadata)
        return self._broker.streams.commit(
            _group(call), call.member_id, call.generation, offsets, call.number
        )

    def on_wake(
        self, namespace: str, group: str, member_id: str, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Call back when a member of a stream group should heartbeat; returns how to stop that."""
        return self._members.on_wake(stream_group(group, namespace), member_id, callback)

    def _standing(self, group: str, standing: Standing) -> MemberStanding:
        committed = self._broker.streams.committed(group)
        return MemberStanding(
            member_id=standing.member_id,
            generation=standing.generation,
            assigned=refs(standing.assigned),
            revoke=refs(standing.revoke),
            rebalancing=standing.rebalancing,
            session_timeout_ms=standing.session_timeout_ms,
            heartbeat_interval_ms=standing.heartbeat_interval_ms,
            committed=positions(
                {at: committed[at].offset for at in standing.assigned if at in committed}
            ),
        )

    def _is_member(self, group: str, member_id: str) -> bool:
        return self._broker.streams.has_member(group, member_id)


def _at_most(offset: int, end: int) -> int:
    """What is no number stays as it is, to be refused with all others that are none."""
    return min(offset, end) if isinstance(offset, int) else offset


def _group(call: calls.StreamGroupCall[Any]) -> str:
    return stream_group(call.group, call.namespace)
