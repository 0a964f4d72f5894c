"""Members of share groups and their sessions: who reads what, and under which leases. Pure.

Nothing of it survives a restart: members join again, and what they held comes back when its leases
run out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from penstock.model.names import TopicName
from penstock.server.kafka.codes import Code, Refused

SESSION_TIMEOUT_NS = 45 * 1_000_000_000
GROUPS_MAX = 10_000
MEMBERS_MAX = 1000
SESSIONS_MAX = 10_000
HELD_MAX = 5000
"""Messages that one session may hold."""

Place = tuple[str, str]


class SharePart(NamedTuple):
    name: TopicName
    partition: int


class ShareMember(msgspec.Struct):
    topics: tuple[str, ...]
    epoch: int
    deadline_ns: int
    parts: tuple[SharePart, ...] = ()


class ShareGroup(msgspec.Struct):
    epoch: int = 0
    members: dict[str, ShareMember] = {}


class ShareGroups:
    """All of them. Calls come from several threads, each for another member."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Place, ShareGroup] = OrderedDict()
        self.sessions = ShareSessions()

    def find(self, place: Place, now_ns: int) -> ShareGroup | None:
        group = self._groups.get(place)
        if group is None:
            return None
        for member_id, member in list(group.members.items()):
            if member.deadline_ns <= now_ns:
                group.members.pop(member_id, None)
        if not group.members:
            self._groups.pop(place, None)
            return None
        return group

    def names(self, namespace: str, now_ns: int) -> list[str]:
        """Of the groups that have members."""
        places = [place for place in list(self._groups) if place[0] == namespace]
        return [place[1] for place in places if self.find(place, now_ns) is not None]

    def heard(
        self,
        place: Place,
        member_id: str,
        epoch: int,
        topics: tuple[str, ...] | None,
        now_ns: int,
    ) -> ShareMember:
        """A member joins (epoch 0) or goes on. Raises Refused."""
        if not member_id:
            raise Refused(Code.INVALID_REQUEST, "a member names itself")
        group = self.find(place, now_ns)
        member = None if group is None else group.members.get(member_id)
        if epoch == 0:
            if topics is None:
                raise Refused(Code.INVALID_REQUEST, "who joins names its topics")
            if group is None:
                if len(self._groups) >= GROUPS_MAX:
                    raise Refused(Code.COORDINATOR_NOT_AVAILABLE)
                group = self._groups.setdefault(place, ShareGroup())
            if member is None and len(group.members) >= MEMBERS_MAX:
                raise Refused(Code.GROUP_MAX_SIZE_REACHED)
            group.epoch += 1
            member = group.members[member_id] = ShareMember(topics, group.epoch, 0)
        elif member is None:
            raise Refused(Code.UNKNOWN_MEMBER_ID)
        elif epoch > member.epoch:
            raise Refused(Code.FENCED_MEMBER_EPOCH)
        elif topics is not None:
            member.topics = topics
        member.deadline_ns = now_ns + SESSION_TIMEOUT_NS
        return member

    def assign(self, member: ShareMember, parts: tuple[SharePart, ...]) -> bool:
        """What a member may read; whether that is news."""
        if parts == member.parts:
            return False
        member.parts = parts
        member.epoch += 1
        return True

    def leave(self, place: Place, member_id: str) -> None:
        group = self._groups.get(place)
        if group is not None:
            group.members.pop(member_id, None)
            if not group.members:
                self._groups.pop(place, None)


class ShareSession:
    """What one member fetches, and what it holds: by offset the lease under which it does."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = 1
        self.parts: list[SharePart] = []
        self._turn = 0
        self._leases: dict[SharePart, dict[int, int]] = {}

    def went_on(self) -> None:
        self.epoch = 1 if self.epoch == (1 << 31) - 1 else self.epoch + 1

    def in_turn(self) -> list[SharePart]:
        """Its partitions, beginning with another one each time."""
        self._turn = self._turn + 1 if self._turn + 1 < len(self.parts) else 0
        return self.parts[self._turn :] + self.parts[: self._turn]

    def hold(self, part: SharePart, offsets: Iterable[int], nonce: int) -> None:
        self._leases.setdefault(part, {}).update(dict.fromkeys(offsets, nonce))

    def let_go(self, part: SharePart, offsets: Sequence[int]) -> tuple[dict[int, list[int]], bool]:
        """The offsets by the leases under which they are held, which end here; and whether some
        are not held."""
        held = self._leases.get(part, {})
        found: dict[int, list[int]] = {}
        unknown = False
        for offset in offsets:
            nonce = held.pop(offset, None)
            if nonce is None:
                unknown = True
            else:
                found.setdefault(nonce, []).append(offset)
        return found, unknown

    def held(self) -> list[SharePart]:
        return [part for part, leases in self._leases.items() if leases]

    def offsets(self, part: SharePart) -> list[int]:
        return list(self._leases.get(part, ()))

    def room(self) -> int:
        """How many more messages it may hold. What was held too long is forgotten first: the
        leases of before have run out, or nobody would fetch on."""
        total = sum(map(len, self._leases.values()))
        if total >= HELD_MAX:
            self._leases.clear()
            return HELD_MAX
        return HELD_MAX - total


class ShareSessions:
    """By namespace, group and member. The one that was silent longest gives way."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[str, str, str], ShareSession] = OrderedDict()

    def begin(self, place: tuple[str, str, str]) -> ShareSession:
        session = self._sessions[place] = ShareSession(place[2])
        self._sessions.move_to_end(place)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session

    def get(self, place: tuple[str, str, str]) -> ShareSession | None:
        session = self._sessions.get(place)
        if session is not None:
            self._sessions.move_to_end(place)
        return session

    def end(self, place: tuple[str, str, str]) -> None:
        self._sessions.pop(place, None)
