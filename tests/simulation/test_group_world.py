"""A world for a consumer group: members, a network, a coordinator that crashes, and time.

Members run the real `Member` over a network that delays, loses and repeats calls; they hang, die
without a word, come back under their old name. The broker is killed or loses power, and folds the
coordinator anew from its events. After every step the world compares what members believe with what
the coordinator says, and both with a model of its own; now and then it calms down, and then all
must come to rest. Each `Violation` names the seed and the step.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count, repeat
from random import Random
from typing import NoReturn

from penstock.errors import DiskFull, GroupError, PenstockError, StaleCommit
from penstock.group.assignment import TopicPartition
from penstock.group.coordinator import Coordinator, Effects
from penstock.group.events import (
    Event,
    GenerationsReserved,
    OffsetsCommitted,
    StreamGroupState,
    TopicForgotten,
    decode,
    decode_snapshot,
    encode,
    encode_snapshot,
    fold,
)
from penstock.group.member import AssignmentChange, Member
from penstock.group.session import Standing

SECOND = 1_000_000_000
CALL_TIMEOUT_S = 2.0
LATE_S = 40.0  # how late a call can arrive
SETTLED_S = LATE_S + 70.0  # and the ghost that a late join raised has expired
NAMES = ["ann", "bob", "cem"]

Request = Callable[[Coordinator], tuple[Standing | None, Effects]]
Session = tuple[int, int]  # a client's number, and the generation that its join began


class Violation(AssertionError):
    """The group broke a promise."""


class Client:
    """A process with one member in it."""

    def __init__(self, number: int, member: Member, topics: set[str]) -> None:
        self.number = number
        self.member = member
        self.topics = topics
        self.assignor = "sticky"
        self.session_timeout_ms = 30_000
        self.alive = True
        self.hung_until_ns = 0
        self.woken = False
        self.joined_generation = 0
        self.commits: Iterator[int] | Iterator[None] = count(1)
        self.call: int | None = None  # the call it waits for; the answer to another is too late
        self.call_sent_ns = 0
        # When each held partition was taken up, and which topic of that name it belongs to.
        self.tokens: dict[TopicPartition, int] = {}
        self.births: dict[TopicPartition, int] = {}

    @property
    def name(self) -> str:
        return self.member.member_id or ""

    @property
    def session(self) -> Session:
        return self.number, self.joined_generation

    def drop(self) -> None:
        self.member.dropped()
        self.tokens.clear()
        self.call = None


class World:
    def __init__(
        self,
        seed: int,
        *,
        alike: bool = True,
        coordinator: type[Coordinator] = Coordinator,
        member: type[Member] = Member,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.alike = alike  # members are, so that balance can be told by counting
        self.coordinator_class, self.member_class = coordinator, member
        self.now_ns = self.steps = 0
        self.numbers = count()
        self.agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.calm, self.calm_since_ns = False, 0
        self.seen: Counter[str] = Counter()

        self.topics = {"t": 5, "u": 3}
        self.births = {"t": 0, "u": 0}  # a topic that is deleted and made again is another one
        self.clients: list[Client] = []
        self.takers: dict[TopicPartition, list[tuple[int, Session]]] = {}
        self.last_joins: dict[str, int] = {}  # by name: the generation that its last join began
        self.last_commits: dict[Session, int] = {}

        self.log: list[bytes] = []
        self.model: list[dict[TopicPartition, int]] = [{}]  # the offsets at each length of the log
        self.synced = 0
        self.snapshot = (0, encode_snapshot({}))
        self.up = True
        self.coordinator = coordinator("g", self.topics)
        self.life_generation = self.highest_generation = self.highest_reserved = 0

        for _ in range(3):
            self.start_client()
        self.after(1, self.mischief)

    # Time.

    def run(self, steps: int) -> None:
        while self.steps < steps:
            for _ in range(2000):
                self.step()
            self.rest()

    def step(self) -> None:
        deadline = self.coordinator.next_deadline() if self.up else None
        if deadline is not None and deadline <= self.agenda[0][0]:
            self.now_ns = max(self.now_ns, deadline)
            self.expire()
        else:
            self.now_ns, _, action = heapq.heappop(self.agenda)
            action()
        self.steps += 1
        self.check()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        at_ns = self.now_ns + int(seconds * SECOND)
        heapq.heappush(self.agenda, (at_ns, next(self.numbers), action))

    def chance(self, probability: float) -> bool:
        """Whether something goes wrong; in calm nothing does."""
        return not self.calm and self.random.random() < probability

    # Mischief.

    def mischief(self) -> None:
        if not self.calm:
            deeds = {
                self.start_client: 4,
                self.restart_client: 3,
                self.kill_client: 2,
                self.hang_client: 3,
                self.leave: 2,
                self.change_topics: 2,
                self.resubscribe: 1,
                self.crash: 1,
            }
            (deed,) = self.random.choices(list(deeds), list(deeds.values()))
            deed()
            self.seen[deed.__name__] += 1
        self.after(self.random.uniform(0.1, 4), self.mischief)

    def start_client(self, name: str | None = None) -> None:
        if len(self.clients) >= 7:
            return
        taken = {client.name for client in self.clients}
        name = name or self.random.choice([None, *(n for n in NAMES if n not in taken)])
        client = Client(next(self.numbers), self.member_class(name), {"t", "u"})
        if self.random.random() < 0.5:
            client.commits = repeat(None)
        if not self.alike:
            client.topics = self.some_topics()
            client.assignor = self.random.choice(["range", "sticky"])
            client.session_timeout_ms = self.random.choice([5_000, 60_000])
        self.clients.append(client)
        self.after(0, lambda: self.tick(client))

    def restart_client(self) -> None:
        """A process dies and another takes its place and name, with calls of the first underway."""
        if client := self.kill_client():
            self.start_client(client.name)

    def kill_client(self) -> Client | None:
        if not self.clients:
            return None
        client = self.clients.pop(self.random.randrange(len(self.clients)))
        client.alive = False
        return client

    def hang_client(self) -> None:
        if self.clients:
            hang_ns = int(self.random.uniform(1, 60) * SECOND)
            self.random.choice(self.clients).hung_until_ns = self.now_ns + hang_ns

    def leave(self) -> None:
        free = [c for c in self.clients if c.call is None and c.member.generation is not None]
        if free:
            client = self.random.choice(free)
            name, generation = client.name, client.member.generation
            assert generation is not None
            client.alive = False
            self.clients.remove(client)
            self.send(None, name, lambda group: (None, group.leave(name, generation)))

    def resubscribe(self) -> None:
        if self.clients and not self.alike:
            client = self.random.choice(self.clients)
            client.topics, client.woken = self.some_topics(), True

    def some_topics(self) -> set[str]:
        return set(self.random.choice(["t", "u", "tu"]))

    def change_topics(self) -> None:
        if not self.up:
            return
        topic = self.random.choice(["t", "u"])
        self.topics = dict(self.topics)
        if topic not in self.topics:
            self.topics[topic] = self.random.randint(1, 4)
            self.births[topic] = next(self.numbers)
        elif self.random.random() < 0.2:
            del self.topics[topic], self.births[topic]
        elif self.topics[topic] < 9:
            self.topics[topic] += 1
        with suppress(DiskFull):
            self.watch(lambda group: (None, group.topics_changed(self.topics)))
        if topic not in self.topics:
            self.append(self.coordinator.forget_topic(topic), sync=True)

    def crash(self) -> None:
        """The broker is killed, or the machine loses power and with it what was not synced."""
        if not self.up:
            return
        self.up = False
        if self.random.random() < 0.5:
            kept = self.random.randint(self.synced, len(self.log))
            del self.log[kept:], self.model[kept + 1 :]
            if self.snapshot[0] > kept:
                self.snapshot = (0, encode_snapshot({}))
        self.synced = len(self.log)
        self.after(self.random.uniform(0, 10), self.restart)

    def restart(self) -> None:
        at, snapshot = self.snapshot
        again = self.random.randint(0, at)  # some of what the snapshot holds is replayed
        states = fold(decode_snapshot(snapshot), map(decode, self.log[again:]))
        state = states.get("g", StreamGroupState())
        self.coordinator = self.coordinator_class("g", self.topics, state)
        self.life_generation = self.coordinator.generation
        self.require(self.life_generation >= self.highest_generation, "the generation went back")
        self.up = True

    # What a client does.

    def tick(self, client: Client) -> None:
        if client.alive:
            if client.hung_until_ns <= self.now_ns or self.calm:
                client.hung_until_ns = 0
                self.act(client)
            self.after(self.random.uniform(0.2, 1.6), lambda: self.tick(client))

    def act(self, client: Client) -> None:
        member = client.member
        if member.generation is not None and member.session_end_ns <= self.now_ns:
            client.drop()
        if client.call is not None:
            if self.now_ns - client.call_sent_ns < CALL_TIMEOUT_S * SECOND:
                return
            client.call = None
        if member.generation is None:
            self.join(client)
        elif confirm := member.to_confirm:
            self.call(client, lambda g, name, n: g.revoked(name, n, confirm, self.now_ns))
        elif client.woken or member.heartbeat_due_ns <= self.now_ns:
            client.woken = False
            topics = client.topics
            self.call(client, lambda g, name, n: g.heartbeat(name, n, self.now_ns, topics))
        elif member.owned and self.random.random() < 0.3:
            owned = sorted(member.owned)
            self.commit(client, self.random.sample(owned, self.random.randint(1, len(owned))))

    def join(self, client: Client) -> None:
        sent_ns, name, topics = self.now_ns, client.member.member_id, client.topics

        def request(group: Coordinator) -> tuple[Standing, Effects]:
            standing, effects = group.join(
                name,
                topics,
                self.now_ns,
                session_timeout_ms=client.session_timeout_ms,
                assignor=client.assignor,
            )
            self.last_joins[standing.member_id] = standing.generation
            return standing, effects

        def answered(standing: Standing) -> None:
            client.joined_generation = standing.generation
            self.take(client, client.member.joined(standing, sent_ns))

        self.send(client, client.name, request, answered)

    def call(
        self, client: Client, ask: Callable[[Coordinator, str, int], tuple[Standing, Effects]]
    ) -> None:
        sent_ns, name, generation = self.now_ns, client.name, client.member.generation
        assert generation is not None
        self.send(
            client,
            name,
            lambda group: ask(group, name, generation),
            lambda standing: self.take(client, client.member.heard(standing, sent_ns)),
        )

    def take(self, client: Client, change: AssignmentChange) -> None:
        for partition in sorted(change.added):
            token = client.tokens[partition] = next(self.numbers)
            client.births[partition] = self.births.get(partition.topic, -1)
            self.takers.setdefault(partition, []).append((token, client.session))
        for partition in sorted(change.lost):
            client.tokens.pop(partition, None)
        for partition in sorted(change.revoke):
            self.after(self.random.uniform(0, 6), partial(self.finish, client, partition))

    def finish(self, client: Client, partition: TopicPartition) -> None:
        """A client was told to give a partition back: it commits, mostly, and lets go."""
        if client.alive and partition in client.member.revoking:
            if client.call is None and self.random.random() < 0.7:
                self.commit(client, [partition])
            client.member.released(frozenset({partition}))
            client.tokens.pop(partition, None)

    def commit(self, client: Client, partitions: list[TopicPartition]) -> None:
        name, generation, session = client.name, client.member.generation, client.session
        assert generation is not None
        number = next(client.commits)
        offsets = {partition: next(self.numbers) for partition in partitions}
        tokens = {partition: client.tokens[partition] for partition in partitions}

        def request(group: Coordinator) -> tuple[None, Effects]:
            try:
                event = group.commit(name, generation, offsets, number=number)
            except GroupError as refused:
                self.seen[refused.code] += 1
                self.check_refusal(client, tokens, refused)
                raise
            self.append(event, sync=False)
            self.seen["committed"] += 1
            self.check_commit(session, number, tokens)
            return None, Effects()

        self.send(client, name, request)

    # The network, and the broker at its other end.

    def send(
        self,
        client: Client | None,
        caller: str,
        request: Request,
        answered: Callable[[Standing], None] = lambda standing: None,
    ) -> None:
        call = next(self.numbers)
        if client is not None:
            client.call, client.call_sent_ns = call, self.now_ns

        def receive(answer: Standing | PenstockError | None) -> None:
            if client is None or not client.alive or client.call != call:
                return
            if client.hung_until_ns > self.now_ns:
                return
            client.call = None
            if isinstance(answer, Standing):
                answered(answer)
            elif isinstance(answer, GroupError) and not isinstance(answer, StaleCommit):
                self.require(not self.settled(), f"refused in calm: {answer}")
                client.drop()

        def arrive() -> None:
            if not self.up:
                return
            answer: Standing | PenstockError | None
            try:
                answer = self.watch(request, caller)
            except PenstockError as exc:
                answer = exc
            if not self.chance(0.05):
                self.after(self.random.uniform(0, 0.05), lambda: receive(answer))

        for copy in range(2 if self.chance(0.15) else 1):
            if not self.chance(0.05):
                late = bool(copy) or self.chance(0.1)
                delay_s = self.random.choice([5, LATE_S]) if late else 0.05
                self.after(self.random.uniform(0, delay_s), arrive)

    def watch(self, request: Request, caller: str = "") -> Standing | None:
        """Serve a call as the broker does: append its events, wake members, answer."""
        group = self.coordinator
        generation = group.generation
        before = {name: (s.assigned, s.revoke) for name, s in group.members.items()}
        standing, effects = request(group)
        told = {*effects.wake, caller, standing.member_id if standing else ""}
        for name, session in group.members.items():
            self.require(
                name in told or before[name] == (session.assigned, session.revoke),
                f"{name} was not woken for its new partitions",
            )
        self.check_pauses({name: assigned for name, (assigned, _) in before.items()}, generation)
        for client in self.clients:
            client.woken |= client.name in effects.wake and not self.chance(0.2)
        for event in effects.events:
            self.append(event, sync=True)
        if standing is not None:
            self.highest_generation = max(self.highest_generation, standing.generation)
            self.require(
                self.highest_generation <= self.highest_reserved,
                f"generation {standing.generation} was handed out without a reservation",
            )
        return standing

    def expire(self) -> None:
        self.seen["expire"] += 1
        with suppress(DiskFull):
            self.watch(lambda group: (None, group.expire(self.now_ns)))
        deadline = self.coordinator.next_deadline()
        self.require(deadline is None or deadline > self.now_ns, "a silent member was not removed")

    def append(self, event: Event, sync: bool) -> None:
        # The topics' own log has the truth about a deleted topic; it is told until it is heard.
        if not isinstance(event, TopicForgotten) and self.chance(0.02):
            self.seen["disk full"] += 1
            raise DiskFull
        self.log.append(encode(event))
        self.synced = len(self.log) if sync else self.synced
        offsets = self.model[-1]
        match event:
            case OffsetsCommitted():
                offsets = offsets | {p: entry.offset for p, entry in event.offsets.items()}
            case TopicForgotten():
                offsets = {p: offset for p, offset in offsets.items() if p.topic != event.topic}
            case GenerationsReserved():
                self.highest_reserved = max(self.highest_reserved, event.up_to)
        self.model.append(offsets)
        self.coordinator.apply(event)
        if self.random.random() < 0.01:
            self.snapshot = len(self.log), encode_snapshot({"g": self.coordinator.state})

    # What must be true.

    def require(self, condition: bool, promise: str) -> None:
        if not condition:
            self.fail(promise)

    def fail(self, promise: str) -> NoReturn:
        raise Violation(f"seed {self.seed}, step {self.steps}: {promise}")

    def held_by(self, client: Client) -> frozenset[TopicPartition]:
        """What a client believes to own, as long as it may believe anything."""
        member = client.member
        if (
            not client.alive
            or member.generation is None
            or member.generation <= self.life_generation
            or member.session_end_ns <= self.now_ns
        ):
            return frozenset()
        held = member.owned | member.revoking
        return frozenset(p for p in held if client.births[p] == self.births.get(p.topic))

    def check(self) -> None:
        """No partition is with two, members own what they believe, offsets are as logged."""
        if not self.up:
            return
        group = self.coordinator
        holders: dict[TopicPartition, str] = {}
        for client in self.clients:
            for p in self.held_by(client):
                if p in holders:
                    self.fail(f"{p} is with {holders[p]} and {client.name}")
                claim = group.claims.get(p)
                if claim is None or claim.member_id != client.name:
                    self.fail(f"{client.name} reads {p}, which is claimed by {claim}")
                holders[p] = client.name
        for p, claim in group.claims.items():
            if p.partition >= self.topics.get(p.topic, 0):
                self.fail(f"{p} does not exist")
            if claim.member_id not in group.members or claim.since > group.generation:
                self.fail(f"{p} is claimed by {claim}")
        committed = {p: entry.offset for p, entry in group.committed.items()}
        if committed != self.model[-1]:
            self.fail(f"committed is {committed}, logged {self.model[-1]}")

    def check_pauses(self, before: dict[str, frozenset[TopicPartition]], generation: int) -> None:
        """Nobody pauses without a rebalance nor, where all are alike, below an equal share."""
        for name, session in self.coordinator.members.items():
            had = {p for p in before.get(name, ()) if p.partition < self.topics.get(p.topic, 0)}
            kept = len(had & session.assigned)
            if self.coordinator.generation == generation:
                self.require(kept == len(had), f"{name} paused without a rebalance")
            elif self.alike:
                share = sum(self.topics.values()) // len(self.coordinator.members)
                self.require(
                    kept >= min(len(had), share), f"{name} kept {kept} of {len(had)}, below {share}"
                )

    def check_commit(
        self, session: Session, number: int | None, tokens: dict[TopicPartition, int]
    ) -> None:
        for partition, token in tokens.items():
            for later, other in reversed(self.takers[partition]):
                if later <= token:
                    break
                self.require(other == session, f"a former owner of {partition} committed")
        if number is not None:
            self.require(number >= self.last_commits.get(session, 0), "a commit undid a newer one")
            self.last_commits[session] = number

    def check_refusal(
        self, client: Client, tokens: dict[TopicPartition, int], refused: GroupError
    ) -> None:
        owner = all(client.tokens.get(p) == token for p, token in tokens.items())
        owner = owner and self.held_by(client) >= tokens.keys()
        replaced = self.last_joins.get(client.name) != client.joined_generation
        self.require(
            not owner or replaced or isinstance(refused, StaleCommit),
            f"the commit of a live owner was refused: {refused}",
        )

    def settled(self) -> bool:
        return self.calm and self.now_ns > self.calm_since_ns + int(SETTLED_S * SECOND)

    def rest(self) -> None:
        """Stop all mischief and let time pass: then every partition is read, by one member."""
        self.calm, self.calm_since_ns = True, self.now_ns
        while not self.settled():
            self.step()
        for _ in range(100):
            self.step()
        group = self.coordinator
        names = sorted(client.name for client in self.clients)
        self.require(sorted(group.members) == names, f"members are {list(group.members)}")
        self.require(group.phase != "rebalancing", "the rebalance does not end")
        readable = [
            TopicPartition(topic, n)
            for topic, partitions in sorted(self.topics.items())
            for n in range(partitions)
            if any(topic in client.topics for client in self.clients)
        ]
        read = sorted(p for client in self.clients for p in client.member.owned)
        self.require(read == readable, f"only {read} are read, of {readable}")
        if self.alike and self.clients:
            loads = [len(client.member.owned) for client in self.clients]
            self.require(max(loads) - min(loads) <= 1, f"loads are {loads}")
        self.calm = False


def test_the_same_seed_makes_the_same_world() -> None:
    first, second, other = (World(seed) for seed in (1, 1, 2))
    for world in (first, second, other):
        world.run(steps=2000)

    assert (first.log, first.seen) == (second.log, second.seen)
    assert first.log != other.log
