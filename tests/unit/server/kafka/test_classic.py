"""The group protocol in which clients assign: scenarios, and random lives by seeds."""

from __future__ import annotations

import random
from itertools import count

import pytest

from penstock.server.kafka.classic import (
    Answers,
    ClassicGroup,
    Joined,
    JoinRequest,
    Synced,
)
from penstock.server.kafka.codes import Code

S = 1_000_000_000
SESSION_MS = 10_000


def request(member_id: str = "", **fields: object) -> JoinRequest:
    given = {
        "member_id": member_id,
        "instance_id": None,
        "client_id": "c",
        "client_host": "/h",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 5_000,
        "protocol_type": "consumer",
        "protocols": (("range", b"r"), ("sticky", b"s")),
    }
    return JoinRequest(**(given | fields))  # type: ignore[arg-type]


class Group:
    """A group whose answers are kept by token."""

    def __init__(self) -> None:
        self.group = ClassicGroup()
        self.now_ns = 0
        self.answers: dict[int, Joined | Synced] = {}
        self._tokens = count(1)

    def take(self, answers: Answers) -> None:
        for token, answer in answers:
            assert token not in self.answers, "answered twice"
            self.answers[token] = answer

    def join(self, given: JoinRequest, new_id: str = "", *, needs_id: bool = False) -> int:
        token = next(self._tokens)
        self.take(self.group.join(given, token, self.now_ns, new_id, needs_id=needs_id))
        return token

    def sync(self, member_id: str, generation: int, **assignments: bytes) -> int:
        token = next(self._tokens)
        self.take(self.group.sync(member_id, None, generation, assignments, token, self.now_ns))
        return token

    def pass_(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)
        self.take(self.group.expire(self.now_ns))

    def beat(self, member_id: str, generation: int) -> Code:
        return self.group.heartbeat(member_id, None, generation, self.now_ns)


@pytest.fixture
def pair() -> Group:
    """Two members, a leads, in generation 2."""
    group = Group()
    group.join(request(), "a")
    group.sync("a", 1, a=b"all")
    waiting = group.join(request(), "b")
    assert waiting not in group.answers
    assert group.beat("a", 1) is Code.REBALANCE_IN_PROGRESS
    group.join(request("a"))
    group.sync("b", 2)
    group.sync("a", 2, a=b"0", b=b"1")
    assert group.group.state == "Stable"
    return group


def test_the_first_member_leads_and_assigns() -> None:
    group = Group()
    joined = group.answers[group.join(request(), "a")]
    assert joined == Joined(Code.NONE, "a", 1, "range", "a", [("a", None, b"r")])
    assert group.answers[group.sync("a", 1, a=b"mine")] == Synced(Code.NONE, b"mine")
    assert group.beat("a", 1) is Code.NONE


def test_all_join_again_when_one_more_comes(pair: Group) -> None:
    assert {id_: m.assignment for id_, m in pair.group.members.items()} == {"a": b"0", "b": b"1"}
    assert pair.beat("a", 1) is Code.ILLEGAL_GENERATION
    assert pair.beat("b", 2) is Code.NONE


def test_a_follower_waits_for_its_assignment() -> None:
    group = Group()
    group.join(request(), "a")
    group.join(request(), "b")
    group.join(request("a"))
    follower = group.sync("b", 2)
    assert follower not in group.answers
    group.sync("a", 2, b=b"for b")
    assert group.answers[follower] == Synced(Code.NONE, b"for b")


def test_who_is_silent_loses_its_place(pair: Group) -> None:
    pair.pass_(6)
    assert pair.beat("a", 2) is Code.NONE
    pair.pass_(6)
    assert pair.beat("b", 2) is Code.UNKNOWN_MEMBER_ID
    assert pair.beat("a", 2) is Code.REBALANCE_IN_PROGRESS
    joined = pair.answers[pair.join(request("a"))]
    assert isinstance(joined, Joined)
    assert [id_ for id_, _, _ in joined.members] == ["a"]


def test_nobody_waits_longer_than_the_rebalance_timeout(pair: Group) -> None:
    waiting = pair.join(request(), "c")
    pair.pass_(4)
    pair.beat("a", 2)
    pair.beat("b", 2)
    assert waiting not in pair.answers
    pair.pass_(2)
    joined = pair.answers[waiting]
    assert isinstance(joined, Joined)
    assert (joined.generation, joined.leader) == (3, "c")
    assert [*pair.group.members] == ["c"]


def test_a_leader_that_dies_before_it_assigns_is_replaced() -> None:
    group = Group()
    group.join(request(), "a")
    group.join(request(), "b")
    group.join(request("a"))
    waiting = group.sync("b", 2)
    group.pass_(11)  # nothing from a, which was to bring the assignment
    assert group.answers[waiting] == Synced(Code.REBALANCE_IN_PROGRESS)
    joined = group.answers[group.join(request("b"))]
    assert isinstance(joined, Joined)
    assert joined.leader == "b"


def test_who_leaves_is_not_waited_for(pair: Group) -> None:
    code, answers = pair.group.leave("b", None, pair.now_ns)
    pair.take(answers)
    assert code is Code.NONE
    assert pair.beat("a", 2) is Code.REBALANCE_IN_PROGRESS
    assert pair.group.leave("b", None, pair.now_ns)[0] is Code.UNKNOWN_MEMBER_ID


def test_a_new_client_is_told_its_id_first() -> None:
    group = Group()
    told = group.answers[group.join(request(), "id-1", needs_id=True)]
    assert told == Joined(Code.MEMBER_ID_REQUIRED, "id-1")
    assert not group.group.members
    assert group.answers[group.join(request("id-1"))][0] is Code.NONE
    assert group.answers[group.join(request("guessed"))][0] is Code.UNKNOWN_MEMBER_ID


def test_an_id_that_is_never_used_holds_up_nobody_for_long() -> None:
    group = Group()
    group.join(request(), "lost", needs_id=True)
    waiting = group.join(request(), "a")
    assert waiting not in group.answers
    group.pass_(11)
    assert group.answers[waiting][0] is Code.NONE


def test_a_static_member_comes_back_without_a_rebalance(pair: Group) -> None:
    group = Group()
    group.join(request(instance_id="one"), "a1")
    group.sync("a1", 1, a1=b"all")
    again = group.answers[group.join(request(instance_id="one"), "a2")]
    assert again == Joined(Code.NONE, "a2", 1, "range", "a1")
    assert group.group.state == "Stable"
    assert group.answers[group.sync("a2", 1)] == Synced(Code.NONE, b"all")
    assert group.group.heartbeat("a1", "one", 1, 0) is Code.FENCED_INSTANCE_ID
    assert group.group.may_commit("a1", "one", 1, 0) is Code.FENCED_INSTANCE_ID


def test_only_members_of_the_generation_commit(pair: Group) -> None:
    may = pair.group.may_commit
    assert may("a", None, 2, 0) is Code.NONE
    assert may("a", None, 1, 0) is Code.ILLEGAL_GENERATION
    assert may("x", None, 2, 0) is Code.UNKNOWN_MEMBER_ID
    assert may("", None, -1, 0) is Code.UNKNOWN_MEMBER_ID
    assert ClassicGroup().may_commit("", None, -1, 0) is Code.NONE
    pair.join(request(), "c")
    assert may("a", None, 2, 0) is Code.NONE  # it may still commit what it has done
    pair.join(request("a"))
    pair.join(request("b"))
    assert may("a", None, 3, 0) is Code.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"protocol_type": "connect"}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("other", b""),)}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_timeout_ms": 0}, Code.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1 << 30}, Code.INVALID_SESSION_TIMEOUT),
    ],
)
def test_who_does_not_fit_in_is_refused(pair: Group, given: dict[str, object], code: Code) -> None:
    assert pair.answers[pair.join(request(**given), "c")][0] is code
    assert pair.group.state == "Stable"


def test_a_call_that_was_given_up_keeps_its_members_session(pair: Group) -> None:
    waiting = pair.join(request(), "c")
    pair.group.gave_up(waiting, pair.now_ns)
    pair.pass_(3)
    assert "c" in pair.group.members
    pair.pass_(8)
    assert "c" not in pair.group.members


@pytest.mark.parametrize("seed", range(150))
def test_random_lives(seed: int) -> None:
    """Clients that come, hang up, are silent and come back. Whatever they do: every call is
    answered once, no two have the same generation's assignment of another, a stable group has all
    its members' assignments, and in the end whoever is left is stable."""
    rng = random.Random(seed)
    world = Group()
    ids = count(1)
    clients: list[RandomClient] = [RandomClient(world, rng, ids) for _ in range(4)]
    for _ in range(300):
        rng.choice(clients).act()
        if rng.random() < 0.2:
            world.pass_(rng.choice([0.1, 1, 4, 12]))
        check(world)
    for _ in range(60):  # from here on all do what they should
        for client in clients:
            client.behave()
        world.pass_(0.5)
        check(world)
    assert world.group.state == "Stable", seed
    held = [client.assignment for client in clients]
    assert all(held), seed
    assert len({*held}) == len(clients), seed


def check(world: Group) -> None:
    group = world.group
    if group.state == "Stable":
        assert group.leader in group.members
        assert group.protocol
        assert not any(member.is_waiting for member in group.members.values())
    if group.state == "Empty":
        assert not group.members
    assert group.generation >= 0
    if group.members:
        assert group.next_deadline() is not None or all(
            member.is_waiting for member in group.members.values()
        )


class RandomClient:
    def __init__(self, world: Group, rng: random.Random, ids: count[int]) -> None:
        self.world = world
        self.rng = rng
        self.ids = ids
        self.member_id = ""
        self.generation = -1
        self.assignment = b""
        self.joining: int | None = None
        self.syncing: int | None = None

    def act(self) -> None:
        what = self.rng.random()
        if what < 0.75:
            self.behave()
        elif what < 0.85:  # it hangs up
            for token in (self.joining, self.syncing):
                if token is not None and token not in self.world.answers:
                    self.world.group.gave_up(token, self.world.now_ns)
            self.joining = self.syncing = None
        elif what < 0.92:  # it is started again, and knows nothing of before
            self.member_id, self.generation, self.assignment = "", -1, b""
            self.joining = self.syncing = None
        elif self.member_id:
            _, answers = self.world.group.leave(self.member_id, None, self.world.now_ns)
            self.world.take(answers)
            self.member_id, self.assignment = "", b""
            self.joining = self.syncing = None

    def behave(self) -> None:
        """The next thing that a client does."""
        if self.joining is not None:
            answer = self.world.answers.get(self.joining)
            if isinstance(answer, Joined):
                self.joining = None
                self._joined(answer)
            return
        if self.syncing is not None:
            answer = self.world.answers.get(self.syncing)
            if isinstance(answer, Synced):
                self.syncing = None
                self.assignment = answer.assignment
                if answer.code is not Code.NONE:
                    self._join(answer.code)
            return
        if self.generation < 0:
            self._join(Code.NONE)
            return
        code = self.world.beat(self.member_id, self.generation)
        if code is not Code.NONE:
            self._join(code)

    def _join(self, code: Code) -> None:
        if code is Code.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.assignment = b""
        self.generation = -1
        self.joining = self.world.join(
            request(self.member_id), f"m{next(self.ids)}", needs_id=self.rng.random() < 0.5
        )

    def _joined(self, answer: Joined) -> None:
        if answer.code is not Code.NONE:
            self.member_id = answer.member_id if answer.code is Code.MEMBER_ID_REQUIRED else ""
            return
        self.member_id, self.generation = answer.member_id, answer.generation
        shares = {}
        if answer.leader == answer.member_id and answer.members:
            shares = {id_: b"%d" % n for n, (id_, _, _) in enumerate(answer.members, 1)}
        self.syncing = self.world.sync(self.member_id, self.generation, **shares)
