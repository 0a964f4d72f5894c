"""The coordinator of one group: who is a member, who owns which partition, what is committed.

Pure: time comes in as monotonic nanoseconds, and what the broker has to do goes out as `Effects`.
The caller makes one call at a time (a lock per group), appends the events that a call returns to
the log of the groups, and then gives each to `apply`. Without `apply` an event counts for nothing,
so a failed append leaves offsets as they were and the call can be made again.

Ownership. A rebalance computes the target: who should own each partition. A claim says who does.
A free partition is claimed for its target at once. One that has to move stays with its owner, who
is asked to revoke it, and is free when the owner gives it back, leaves, or is silent for a session.
So a partition never has two owners, and one that does not move is never paused.

Generations. Each rebalance begins one. A claim counts from the generation in which it was made: the
owner of a partition commits through any number of later rebalances without a break, while what a
former owner, or the former life of a member, sends too late is refused.

Crashes. Members and claims are gone and members join again; offsets are as the events say, and
generations go on above all that were ever handed out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Literal, NamedTuple

import msgspec

from penstock.errors import (
    GroupNotEmpty,
    PartitionNotOwned,
    StaleCommit,
    StaleGeneration,
    UnknownMember,
)
from penstock.group.assignment import ASSIGNORS, TopicPartition
from penstock.group.events import (
    Committed,
    Event,
    GenerationsReserved,
    GroupDeleted,
    OffsetsCommitted,
    StreamGroupState,
    TopicForgotten,
)
from penstock.group.offsets import checked
from penstock.group.session import SESSION_TIMEOUT_MS, MemberSession, Standing, topics_of

GENERATIONS_RESERVED = 1000


class Effects(msgspec.Struct, frozen=True):
    """What the broker does after a call: append and apply the events, then wake the members."""

    events: tuple[Event, ...] = ()
    wake: frozenset[str] = frozenset()  # members whose next heartbeat brings something new


class Claim(NamedTuple):
    """A partition belongs to a member, and has since a generation."""

    member_id: str
    since: int


class Coordinator:
    def __init__(
        self, group: str, topics: Mapping[str, int], state: StreamGroupState | None = None
    ) -> None:
        """`topics`: the number of partitions of each; `state`: the fold of the group's events."""
        self.group = group
        self._topics = dict(topics)
        self._state = state or StreamGroupState()
        self._generation = self._state.generations_reserved
        self._sessions: dict[str, MemberSession] = {}
        self._target: dict[TopicPartition, str] = {}
        self._claims: dict[TopicPartition, Claim] = {}

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def state(self) -> StreamGroupState:
        """What the applied events fold to: for snapshots, not to be changed."""
        return self._state

    @property
    def committed(self) -> Mapping[TopicPartition, Committed]:
        return self._state.offsets

    @property
    def claims(self) -> Mapping[TopicPartition, Claim]:
        return self._claims

    @property
    def members(self) -> Mapping[str, MemberSession]:
        return self._sessions

    @property
    def phase(self) -> Literal["empty", "stable", "rebalancing"]:
        if not self._sessions:
            return "empty"
        return "rebalancing" if any(s.revoke for s in self._sessions.values()) else "stable"

    # Membership: what members call.

    def join(
        self,
        member_id: str | None,
        subscriptions: Iterable[str],
        now_ns: int,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        assignor: str = "sticky",
    ) -> tuple[Standing, Effects]:
        """Enter the group, under a new name (None) or the member's own.

        A name stands for one process. Who joins under the name of a member replaces it: it takes
        over what the other held, and the other's calls are refused from then on. So a member that
        restarts has its partitions back at once.
        """
        if member_id is None:
            names = (f"member-{n}" for n in count(self._generation + 1))
            member_id = next(name for name in names if name not in self._sessions)
        session = MemberSession(
            member_id=member_id,
            subscriptions=topics_of(subscriptions),
            assignor=assignor,
            session_timeout_ms=session_timeout_ms,
            since=self._generation + 1,
        )
        if former := self._sessions.get(member_id):
            # It may still read, not knowing: its partitions must not move on before its time.
            session.deadline_ns = former.deadline_ns
        session.renew(now_ns)
        self._sessions[member_id] = session
        for partition, claim in self._claims.items():
            if claim.member_id == member_id:
                self._claims[partition] = Claim(member_id, session.since)
        effects = self._rebalance(caller=member_id)
        return self._standing(session), effects

    def heartbeat(
        self,
        member_id: str,
        generation: int,
        now_ns: int,
        subscriptions: Iterable[str] | None = None,
    ) -> tuple[Standing, Effects]:
        """Stay in the group; the answer says what to read and what to give back.

        A member that wants other topics than it joined with says so in each heartbeat. They are
        taken up from the present generation only: an earlier one may be a late copy.
        """
        session = self._session(member_id, generation)
        topics = session.subscriptions if subscriptions is None else topics_of(subscriptions)
        session.renew(now_ns)
        effects = Effects()
        if topics != session.subscriptions and generation == self._generation:
            session.subscriptions = topics
            effects = self._rebalance(caller=member_id)
        return self._standing(session), effects

    def revoked(
        self, member_id: str, generation: int, partitions: Iterable[TopicPartition], now_ns: int
    ) -> tuple[Standing, Effects]:
        """Give back partitions that a standing of `generation` asked for; also a heartbeat.

        A word from another generation, or for a partition that was not asked for, counts for
        nothing: it may be a late copy, and the member may read the partition again by now. The
        standing returned still asks for what is due.
        """
        session = self._session(member_id, generation)
        session.renew(now_ns)
        if generation == self._generation:
            for partition in session.revoke.intersection(partitions):
                del self._claims[partition]
        wake = self._settle() - {member_id}
        return self._standing(session), Effects(wake=wake)

    def leave(self, member_id: str, generation: int) -> Effects:
        """Go, holding nothing any more; others get the partitions at once."""
        self._session(member_id, generation)
        return self._remove([member_id])

    def disband(self) -> Effects:
        """Let all members go, as `expire` does with silent ones."""
        return self._remove(list(self._sessions)) if self._sessions else Effects()

    # Housekeeping: what the broker calls by itself.

    def next_deadline(self) -> int | None:
        """When `expire` next has something to do, unless a member is heard of before."""
        return min((s.deadline_ns for s in self._sessions.values()), default=None)

    def expire(self, now_ns: int) -> Effects:
        """Remove members that were silent for a session. They are woken too, to learn of it."""
        silent = [m for m, session in self._sessions.items() if session.deadline_ns <= now_ns]
        return self._remove(silent) if silent else Effects()

    def topics_changed(self, topics: Mapping[str, int]) -> Effects:
        """Topics were created or deleted, or have more partitions. `topics` names all there are.

        A topic that is deleted and made again is told twice, without it and with it.
        """
        before, self._topics = self._topics, dict(topics)
        concerned = {partition.topic for partition in self._claims}
        concerned.update(*(session.subscriptions for session in self._sessions.values()))
        if any(before.get(topic) != topics.get(topic) for topic in concerned):
            return self._rebalance()
        return Effects()

    # Offsets: each returns an event, which counts when it is applied.

    def commit(
        self,
        member_id: str,
        generation: int,
        offsets: Mapping[TopicPartition, int | Committed],
        *,
        number: int | None = None,
    ) -> OffsetsCommitted:
        """Set positions, all or none, on partitions that the member holds.

        This includes those that it is asked to revoke, until it has given them back. A member
        whose calls can overtake one another numbers its commits upwards, so that a late one does
        not undo a newer one; moving back on purpose is a newer one too.
        """
        session = self._session(member_id, generation)
        entries = checked(offsets)
        for partition in entries:
            claim = self._claims.get(partition)
            if claim is None or claim.member_id != member_id:
                raise PartitionNotOwned(self.group, member_id, str(partition))
            if generation < claim.since:
                raise StaleGeneration(self.group, generation, claim.since, str(partition))
        if number is not None:
            if number < session.last_commit:
                raise StaleCommit
            session.last_commit = number
        return OffsetsCommitted(self.group, entries)

    def set_offsets(self, offsets: Mapping[TopicPartition, int | Committed]) -> OffsetsCommitted:
        """Set positions from outside, as an operator does; only while the group has no members."""
        self._refuse_members()
        return OffsetsCommitted(self.group, checked(offsets))

    def truncated(self, ends: Mapping[TopicPartition, int]) -> OffsetsCommitted | None:
        """Draw back positions past the end of a log that lost its tail in a power cut.

        To be called at start-up before anything is published: the lost offsets will be given to
        new messages, which the group would otherwise skip.
        """
        beyond = {
            partition: Committed(ends[partition], entry.metadata)
            for partition, entry in self.committed.items()
            if partition in ends and entry.offset > ends[partition]
        }
        return OffsetsCommitted(self.group, beyond) if beyond else None

    def forget_topic(self, topic: str) -> TopicForgotten:
        """A topic was deleted (tell `topics_changed` first): drop its positions."""
        return TopicForgotten(self.group, topic)

    def delete(self) -> GroupDeleted:
        """End the group; only while it has no members."""
        self._refuse_members()
        return GroupDeleted(self.group)

    def apply(self, event: Event) -> None:
        """Believe an event, now that it is in the log."""
        self._state.apply(event)

    # The machine.

    def _rebalance(self, caller: str | None = None) -> Effects:
        """Begin a generation: compute the target anew and hand out what is free."""
        self._generation += 1
        self._claims = {p: c for p, c in self._claims.items() if self._exists(p)}
        owners = {partition: claim.member_id for partition, claim in self._claims.items()}
        subscriptions = {m: session.subscriptions for m, session in self._sessions.items()}
        assign = ASSIGNORS[self._assignor()]
        self._target = assign(subscriptions, self._topics, owners)
        return Effects(self._reserve(), self._settle() - {caller})

    def _settle(self) -> frozenset[str]:
        """Claim free partitions for their targets; returns the members whose holdings changed."""
        for partition, member_id in self._target.items():
            if partition not in self._claims:
                self._claims[partition] = Claim(member_id, self._generation)
        assigned: dict[str, set[TopicPartition]] = {m: set() for m in self._sessions}
        revoke: dict[str, set[TopicPartition]] = {m: set() for m in self._sessions}
        for partition, claim in self._claims.items():
            stays = self._target.get(partition) == claim.member_id
            (assigned if stays else revoke)[claim.member_id].add(partition)
        changed = set()
        for member_id, session in self._sessions.items():
            holds = frozenset(assigned[member_id]), frozenset(revoke[member_id])
            if holds != (session.assigned, session.revoke):
                session.assigned, session.revoke = holds
                changed.add(member_id)
        return frozenset(changed)

    def _remove(self, gone: list[str]) -> Effects:
        for member_id in gone:
            del self._sessions[member_id]
        self._claims = {p: c for p, c in self._claims.items() if c.member_id in self._sessions}
        effects = self._rebalance()
        return Effects(effects.events, effects.wake.union(gone))

    def _reserve(self) -> tuple[Event, ...]:
        """Half a block ahead, and again until it is applied, so that failed appends do no harm."""
        if self._generation + GENERATIONS_RESERVED // 2 <= self._state.generations_reserved:
            return ()
        return (GenerationsReserved(self.group, self._generation + GENERATIONS_RESERVED),)

    def _session(self, member_id: str, generation: int) -> MemberSession:
        session = self._sessions.get(member_id)
        if session is None:
            raise UnknownMember(self.group, member_id)
        if not session.since <= generation <= self._generation:
            raise StaleGeneration(self.group, generation, session.since, f"member {member_id}")
        return session

    def _standing(self, session: MemberSession) -> Standing:
        return session.standing(self._generation, rebalancing=self.phase == "rebalancing")

    def _assignor(self) -> str:
        """What most members ask for, so that a group can change it one member at a time."""
        votes = Counter(session.assignor for session in self._sessions.values())
        return max(votes, key=lambda name: (votes[name], name), default="sticky")

    def _exists(self, partition: TopicPartition) -> bool:
        return partition.partition < self._topics.get(partition.topic, 0)

    def _refuse_members(self) -> None:
        if self._sessions:
            raise GroupNotEmpty(self.group, len(self._sessions))
