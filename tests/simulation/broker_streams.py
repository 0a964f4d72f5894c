"""What stream groups do in a broker's life: join, heartbeat, commit, leave, die."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from penstock.errors import GroupError
from penstock.group.assignment import TopicPartition
from penstock.group.session import Standing
from tests.simulation.broker_model import Promise, require
from tests.simulation.broker_publish import RETURNED
from tests.simulation.broker_queue import QueueActs

STREAM_GROUPS = ("s1", "s2")
SESSION_MS = 60_000
GROUPS_INTERVAL_NS = 1_000_000_000

Positions = dict[str, dict[TopicPartition, int]]


@dataclass
class MemberModel:
    """A member as it sees itself."""

    group: str
    id: str
    generation: int
    session_end_ns: int
    held: set[TopicPartition] = field(default_factory=set)
    revoke: set[TopicPartition] = field(default_factory=set)
    gone: bool = False
    """It left, was replaced, or the broker it spoke to is no more."""

    def alive(self, now_ns: int) -> bool:
        return not self.gone and now_ns < self.session_end_ns


class StreamActs(QueueActs):
    members: list[MemberModel]
    positions: Positions
    commits: list[tuple[Promise, Positions]]
    """All that was committed after each commit, oldest first; the first is what recovered."""
    committing: Positions | None = None
    """What a commit that is under way would make of it."""

    def join(self) -> None:
        rng = self.rng
        group = rng.choice(STREAM_GROUPS)
        former = [m for m in self.members if m.group == group and not m.alive(self.now_ns)]
        member_id = rng.choice(former).id if former and rng.random() < 0.5 else None
        there = [name for name in self.topics if not name.is_dead_letters]
        names = rng.sample(there, rng.randint(1, len(there)))
        self.note(f"join {group} as {member_id} for {[str(name) for name in names]}")
        standing = self.broker.streams.join(
            group, member_id, names, session_timeout_ms=SESSION_MS, assignor="sticky"
        )
        for each in self.members:
            if (each.group, each.id) == (group, standing.member_id):
                require(each.generation < standing.generation, "a generation came again")
                each.gone = True
        member = MemberModel(group, standing.member_id, standing.generation, 0)
        self.members.append(member)
        self._heard(member, standing)
        self.counts["joined"] += 1

    def heartbeat(self) -> None:
        member = self._some_member()
        if member is None:
            return
        self.note(f"{member.id} of {member.group} heartbeats")
        if not member.alive(self.now_ns):
            self._too_late(member, lambda: self._beat(member))
            return
        self._heard(member, self._beat(member))

    def _beat(self, member: MemberModel) -> Standing:
        streams = self.broker.streams
        if member.revoke:
            return streams.revoked(member.group, member.id, member.generation, member.revoke)
        return streams.heartbeat(member.group, member.id, member.generation)

    def _heard(self, member: MemberModel, standing: Standing) -> None:
        require(standing.generation >= member.generation, "generations go back")
        member.generation = standing.generation
        member.session_end_ns = self.now_ns + SESSION_MS * 1_000_000
        member.held = {*standing.assigned, *standing.revoke}
        member.revoke = set(standing.revoke)
        for other in self.members:
            if other is not member and other.group == member.group and other.alive(self.now_ns):
                both = set(standing.assigned) & other.held
                require(not both, f"{both} belongs to {member} and to {other}")

    def commit_offsets(self) -> None:
        member = self._some_member()
        if member is None or not member.held:
            return
        chosen = self.rng.sample(sorted(member.held), self.rng.randint(1, len(member.held)))
        offsets = {place: self._some_offset(place) for place in chosen}
        self.note(f"{member.id} of {member.group} commits {offsets}")
        if not member.alive(self.now_ns):
            self._too_late(member, lambda: self._commit(member, offsets))
            return
        after = self._with(member.group, offsets)
        self.committing = after
        durable = self._commit(member, offsets)
        self.committing = None
        self.positions = after
        topics = {str(topic.name): topic for topic in self.topics.values()}
        strict = any(topics[place.topic].settings.fsync == "always" for place in offsets)
        policy = "always" if strict else "interval"
        self.commits.append((Promise(policy, GROUPS_INTERVAL_NS, self.now_ns, durable), after))
        self.counts["committed"] += 1

    def _commit(self, member: MemberModel, offsets: dict[TopicPartition, int]) -> Future[None]:
        return self.broker.streams.commit(member.group, member.id, member.generation, offsets)

    def leave(self) -> None:
        member = self._some_member()
        if member is None:
            return
        self.note(f"{member.id} leaves {member.group}")
        if not member.alive(self.now_ns):
            self._too_late(
                member,
                lambda: self.broker.streams.leave(member.group, member.id, member.generation),
            )
            return
        member.gone = True
        self.broker.streams.leave(member.group, member.id, member.generation)
        self.counts["left"] += 1

    def _too_late(self, member: MemberModel, call: Callable[[], object]) -> None:
        """Who is no member any more, or whose name another has now, is told so."""
        try:
            call()
        except GroupError:
            self.counts["stale member refused"] += 1
            return
        require(False, f"a call of {member} was accepted, whose time is over")

    def check_positions(self) -> None:
        for group in STREAM_GROUPS:
            found = {p: c.offset for p, c in self.broker.streams.committed(group).items()}
            expected = self.positions.get(group, {})
            require(found == expected, f"{group} has committed {expected}; found {found}")

    def _with(self, group: str, offsets: dict[TopicPartition, int]) -> Positions:
        return {**self.positions, group: {**self.positions.get(group, {}), **offsets}}

    def _some_member(self) -> MemberModel | None:
        alive = [member for member in self.members if member.alive(self.now_ns)]
        some = alive if alive and self.rng.random() < 0.8 else self.members[-8:]
        return self.rng.choice(some) if some else None

    def _some_offset(self, place: TopicPartition) -> int:
        topics = {str(topic.name): topic for topic in self.topics.values()}
        model = topics[place.topic].partitions[place.partition]
        return self.rng.randint(model.start, model.end)

    def forget_topic(self, name: str, *, returned: bool) -> None:
        """A topic is deleted, and nobody may ever start in the next one of that name where they
        were in this one. If a crash came first, nothing was promised."""
        self.positions = {
            group: {p: offset for p, offset in offsets.items() if p.topic != name}
            for group, offsets in self.positions.items()
        }
        if returned:
            self.commits.append((Promise("always", 0, self.now_ns, RETURNED), self.positions))
        for member in self.members:
            member.held = {p for p in member.held if p.topic != name}
            member.revoke = {p for p in member.revoke if p.topic != name}

    # After a crash.

    def recover_positions(self, *, power_cut: bool, synced_ns: int, within: bool) -> None:
        """Some state of the commits came back: the last after a kill, a promised one or later
        after a power cut, no further than the logs go."""
        ends = {
            TopicPartition(str(topic.name), p.number): p.end
            for topic in self.topics.values()
            for p in topic.partitions
        }
        possible = [self.committing] if within and self.committing is not None else []
        for promise, positions in reversed(self.commits):
            possible.append(positions)
            if not power_cut or promise.kept(synced_ns):
                break
        found = {
            group: {p: c.offset for p, c in self.broker.streams.committed(group).items()}
            for group in STREAM_GROUPS
        }
        for positions in possible:
            seen = {
                group: {
                    p: min(offset, ends[p])
                    for p, offset in positions.get(group, {}).items()
                    if p in ends
                }
                for group in STREAM_GROUPS
            }
            if seen == found:
                break
        else:
            require(False, f"committed {possible}; after the crash {found}")
        self.committing = None
        self.positions = {group: offsets for group, offsets in found.items() if offsets}
        self.commits = [(Promise("interval", 0, 0), self.positions)]
        for member in self.members:
            member.gone = True
