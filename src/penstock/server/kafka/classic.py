"""One consumer group in which the clients assign: the group protocol of Kafka before KIP-848.

Pure: time comes in as monotonic nanoseconds. Join and sync are answered later, when the others have
come: their caller gives a token, and each call returns the answers that are due, by token. Offsets
are no part of it; `may_commit` says who may set them.

A group is *empty*, *preparing a rebalance* (every member is to join again), *completing* it (the
leader is to bring the assignment) or *stable*. Nothing is remembered over a restart: members have
ids that nobody guesses, so that calls from before are refused, and join again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from penstock.server.kafka.codes import Code

MEMBERS_MAX = 1000
SESSION_TIMEOUT_MS_MAX = 30 * 60_000

_MS = 1_000_000

State = Literal["Empty", "PreparingRebalance", "CompletingRebalance", "Stable"]


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants to join, and how it can assign."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and what the client says for each, the one it likes best first."""


class Joined(NamedTuple):
    code: Code
    member_id: str = ""
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    members: Sequence[tuple[str, str | None, bytes]] = ()
    """For the leader: id, instance and what it said, of each."""


class Synced(NamedTuple):
    code: Code
    assignment: bytes = b""


Answers = list[tuple[int, Joined | Synced]]


class ClassicMember(msgspec.Struct):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ns: int
    rebalance_timeout_ns: int
    protocols: tuple[tuple[str, bytes], ...]
    deadline_ns: int = 0
    joining: int | None = None
    syncing: int | None = None
    assignment: bytes = b""

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None


class ClassicGroup:
    def __init__(self) -> None:
        self.state: State = "Empty"
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, ClassicMember] = {}
        self._pending: dict[str, int] = {}  # ids that were given out, and until when
        self._instances: dict[str, str] = {}
        self._rebalance_deadline_ns = 0

    @property
    def is_forgettable(self) -> bool:
        """Whether nobody would notice if it were made anew."""
        return not self.members and not self._pending

    # What members call.

    def join(
        self, request: JoinRequest, token: int, now_ns: int, new_id: str, *, needs_id: bool
    ) -> Answers:
        """Enter the group, or answer its call to a rebalance. `new_id` is for who has none;
        `needs_id`: such a client is told its id first, and is to come again with it."""
        refused = self._refusal(request)
        if refused is not None:
            return [(token, Joined(refused, request.member_id))]
        known = self._instances.get(request.instance_id or "")
        if not request.member_id:
            if known is not None:
                return self._replace(self.members[known], request, token, now_ns, new_id)
            if needs_id and request.instance_id is None:
                self._pending[new_id] = now_ns + request.session_timeout_ms * _MS
                return [(token, Joined(Code.MEMBER_ID_REQUIRED, new_id))]
            return self._add(new_id, request, token, now_ns)
        if request.member_id in self._pending:
            del self._pending[request.member_id]
            return self._add(request.member_id, request, token, now_ns)
        code = self._stranger(request.member_id, request.instance_id)
        if code is not None:
            return [(token, Joined(code, request.member_id))]
        return self._join_again(self.members[request.member_id], request, token, now_ns)

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],
        token: int,
        now_ns: int,
    ) -> Answers:
        """Learn what to read; the leader says it, for all."""
        code = self._stranger(member_id, instance_id) or self._outdated(generation)
        if code is not None:
            return [(token, Synced(code))]
        member = self.members[member_id]
        member.deadline_ns = now_ns + member.session_timeout_ns
        if self.state == "PreparingRebalance":
            return [(token, Synced(Code.REBALANCE_IN_PROGRESS))]
        if self.state == "Stable":
            return [(token, Synced(Code.NONE, member.assignment))]
        answers = self._let_go_sync(member)  # of a call that was given up
        member.syncing = token
        if member_id == self.leader:
            self.state = "Stable"
            for each in self.members.values():
                each.assignment = assignments.get(each.member_id, b"")
                if each.syncing is not None:
                    answers.append((each.syncing, Synced(Code.NONE, each.assignment)))
                    each.syncing = None
                    each.deadline_ns = now_ns + each.session_timeout_ns
        return answers

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ns: int
    ) -> Code:
        code = self._stranger(member_id, instance_id) or self._outdated(generation)
        if code is not None:
            return code
        member = self.members[member_id]
        member.deadline_ns = now_ns + member.session_timeout_ns
        if self.state == "PreparingRebalance":
            return Code.REBALANCE_IN_PROGRESS
        return Code.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ns: int) -> tuple[Code, Answers]:
        if instance_id is not None and not member_id:  # an operator removes a static member
            member_id = self._instances.get(instance_id, "")
        if self._pending.pop(member_id, None) is not None:
            return Code.NONE, self._complete_if_all_joined(now_ns)
        code = self._stranger(member_id, instance_id)
        if code is not None:
            return code, []
        return Code.NONE, self._remove([self.members[member_id]], now_ns)

    def may_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ns: int
    ) -> Code:
        """Whether somebody may set positions; who is no member may while there are none."""
        if generation < 0 and not member_id:
            return Code.NONE if not self.members else Code.UNKNOWN_MEMBER_ID
        code = self._stranger(member_id, instance_id) or self._outdated(generation)
        if code is not None:
            return code
        if self.state == "CompletingRebalance":
            return Code.REBALANCE_IN_PROGRESS
        member = self.members[member_id]
        member.deadline_ns = now_ns + member.session_timeout_ns
        return Code.NONE

    # What its owner calls.

    def gave_up(self, token: int, now_ns: int) -> None:
        """Nobody waits for an answer any more: the client hung up. Its session goes on."""
        for member in self.members.values():
            if token in (member.joining, member.syncing):
                member.joining = member.syncing = None
                member.deadline_ns = now_ns + member.session_timeout_ns

    def expire(self, now_ns: int) -> Answers:
        """Let those go that were silent too long, and do not wait for them."""
        expired = [id_ for id_, deadline_ns in self._pending.items() if deadline_ns <= now_ns]
        for id_ in expired:
            del self._pending[id_]
        silent = [
            member
            for member in self.members.values()
            if not member.is_waiting and member.deadline_ns <= now_ns
        ]
        answers = self._remove(silent, now_ns) if silent else []
        if self.state == "PreparingRebalance" and self._rebalance_deadline_ns <= now_ns:
            return answers + self._complete(now_ns)
        return answers + (self._complete_if_all_joined(now_ns) if expired else [])

    def next_deadline(self) -> int | None:
        deadlines = [m.deadline_ns for m in self.members.values() if not m.is_waiting]
        deadlines += self._pending.values()
        if self.state == "PreparingRebalance":
            deadlines.append(self._rebalance_deadline_ns)
        return min(deadlines, default=None)

    # The machine.

    def _refusal(self, request: JoinRequest) -> Code | None:
        if not 0 < request.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            return Code.INVALID_SESSION_TIMEOUT
        others = [m for m in self.members.values() if m.member_id != request.member_id]
        others = [m for m in others if m.instance_id != request.instance_id or not m.instance_id]
        if not request.protocol_type or not request.protocols:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if others:
            names = {name for name, _ in request.protocols}
            if request.protocol_type != self.protocol_type or not names & _common(others):
                return Code.INCONSISTENT_GROUP_PROTOCOL
        is_new = request.member_id not in self.members and request.member_id not in self._pending
        if is_new and len(self.members) + len(self._pending) >= MEMBERS_MAX:
            return Code.GROUP_MAX_SIZE_REACHED
        return None

    def _stranger(self, member_id: str, instance_id: str | None) -> Code | None:
        """Why a call cannot be that of a member; None if it is one."""
        if instance_id is not None:
            known = self._instances.get(instance_id)
            if known is not None and known != member_id:
                return Code.FENCED_INSTANCE_ID
        member = self.members.get(member_id)
        if member is None or (instance_id is not None and member.instance_id != instance_id):
            return Code.UNKNOWN_MEMBER_ID
        return None

    def _outdated(self, generation: int) -> Code | None:
        return None if generation == self.generation else Code.ILLEGAL_GENERATION

    def _add(self, member_id: str, request: JoinRequest, token: int, now_ns: int) -> Answers:
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ns=request.session_timeout_ms * _MS,
            rebalance_timeout_ns=_rebalance_timeout_ns(request),
            protocols=request.protocols,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = member
        if request.instance_id is not None:
            self._instances[request.instance_id] = member_id
        member.joining = token
        return self._prepare(now_ns)

    def _replace(
        self, former: ClassicMember, request: JoinRequest, token: int, now_ns: int, new_id: str
    ) -> Answers:
        """A static member was started again: it goes on as it was, under another id."""
        answers: Answers = []
        if former.joining is not None:
            answers.append((former.joining, Joined(Code.FENCED_INSTANCE_ID, former.member_id)))
        if former.syncing is not None:
            answers.append((former.syncing, Synced(Code.FENCED_INSTANCE_ID)))
        old_id, old_leader = former.member_id, self.leader
        is_unchanged = former.protocols == request.protocols
        former.member_id, former.joining, former.syncing = new_id, None, None
        self.members = {member.member_id: member for member in self.members.values()}
        assert request.instance_id is not None
        self._instances[request.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        self._update(former, request, now_ns)
        if self.state == "Stable" and is_unchanged:
            # It is told the leader of before, even if that was itself: nothing is to be assigned.
            told = Joined(Code.NONE, new_id, self.generation, self.protocol, old_leader)
            return [*answers, (token, told)]
        former.joining = token
        return answers + self._prepare(now_ns)

    def _join_again(
        self, member: ClassicMember, request: JoinRequest, token: int, now_ns: int
    ) -> Answers:
        is_unchanged = member.protocols == request.protocols
        self._update(member, request, now_ns)
        answers: Answers = []
        if member.joining is not None:  # by a call that was given up
            answers.append((member.joining, Joined(Code.UNKNOWN_MEMBER_ID, member.member_id)))
        if is_unchanged and (
            self.state == "CompletingRebalance"
            or (self.state == "Stable" and member.member_id != self.leader)
        ):
            return [*answers, (token, self._joined(member))]  # the answer of before was lost
        member.joining = token
        return answers + self._prepare(now_ns)

    def _update(self, member: ClassicMember, request: JoinRequest, now_ns: int) -> None:
        member.protocols = request.protocols
        member.client_id, member.client_host = request.client_id, request.client_host
        member.session_timeout_ns = request.session_timeout_ms * _MS
        member.rebalance_timeout_ns = _rebalance_timeout_ns(request)
        member.deadline_ns = now_ns + member.session_timeout_ns

    def _prepare(self, now_ns: int) -> Answers:
        """Call every member to join again, unless that is so already."""
        answers: Answers = []
        if self.state != "PreparingRebalance":
            for member in self.members.values():
                answers += self._let_go_sync(member)
                member.assignment = b""
            self.state = "PreparingRebalance"
            self._rebalance_deadline_ns = now_ns + max(
                (member.rebalance_timeout_ns for member in self.members.values()), default=0
            )
        return answers + self._complete_if_all_joined(now_ns)

    def _let_go_sync(self, member: ClassicMember) -> Answers:
        if member.syncing is None:
            return []
        token, member.syncing = member.syncing, None
        return [(token, Synced(Code.REBALANCE_IN_PROGRESS))]

    def _complete_if_all_joined(self, now_ns: int) -> Answers:
        if self.state != "PreparingRebalance" or self._pending:
            return []
        if any(member.joining is None for member in self.members.values()):
            return []
        return self._complete(now_ns)

    def _complete(self, now_ns: int) -> Answers:
        """Begin a generation of those who joined; static members may still come."""
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._forget(member)
        joined = [member for member in self.members.values() if member.joining is not None]
        if not joined:
            if not self.members:
                self._empty()
            else:  # static ones that are restarting: as long as their sessions last
                self._rebalance_deadline_ns = max(m.deadline_ns for m in self.members.values())
            return []
        self.generation += 1
        self.state = "CompletingRebalance"
        if self.leader not in {member.member_id for member in joined}:
            self.leader = joined[0].member_id
        self.protocol = self._elected()
        answers: Answers = []
        for member in joined:
            assert member.joining is not None
            answers.append((member.joining, self._joined(member)))
            member.joining = None
            member.deadline_ns = now_ns + member.session_timeout_ns
        return answers

    def _joined(self, member: ClassicMember) -> Joined:
        members: Iterable[ClassicMember] = ()
        if member.member_id == self.leader:
            members = self.members.values()
        return Joined(
            Code.NONE,
            member.member_id,
            self.generation,
            self.protocol,
            self.leader,
            [(m.member_id, m.instance_id, dict(m.protocols)[self.protocol]) for m in members],
        )

    def _elected(self) -> str:
        """Of the protocols that all have, the one that most like best."""
        common = _common(self.members.values())
        votes = Counter(
            next(name for name, _ in member.protocols if name in common)
            for member in self.members.values()
        )
        return max(votes, key=lambda name: votes[name])

    def _remove(self, gone: Iterable[ClassicMember], now_ns: int) -> Answers:
        answers: Answers = []
        for member in gone:
            if member.joining is not None:
                unknown = Joined(Code.UNKNOWN_MEMBER_ID, member.member_id)
                answers.append((member.joining, unknown))
            if member.syncing is not None:
                answers.append((member.syncing, Synced(Code.UNKNOWN_MEMBER_ID)))
            self._forget(member)
        if not self.members and not self._pending:
            self.generation += 1
            self._empty()
            return answers
        return answers + self._prepare(now_ns)

    def _forget(self, member: ClassicMember) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None:
            self._instances.pop(member.instance_id, None)

    def _empty(self) -> None:
        self.state, self.protocol, self.leader = "Empty", "", ""


def _common(members: Iterable[ClassicMember]) -> set[str]:
    """The protocols that all of them have."""
    names = [{name for name, _ in member.protocols} for member in members]
    return set.intersection(*names) if names else set()


def _rebalance_timeout_ns(request: JoinRequest) -> int:
    """How long the group waits for it to join again; clients of before that existed say nothing."""
    given_ms = request.rebalance_timeout_ms
    return (given_ms if given_ms > 0 else request.session_timeout_ms) * _MS
