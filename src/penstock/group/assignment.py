"""Who should own which partition: plain functions from what there is to what should be.

An assignor gets the members with the topics that they subscribe to, the topics with their number
of partitions, and the owners so far. It returns an owner for every partition that has a subscriber.
The same input gives the same output, whatever the order of its dicts and sets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


Subscriptions = Mapping[str, AbstractSet[str]]  # member id -> topics
Topics = Mapping[str, int]  # topic -> number of partitions
Assignment = Mapping[TopicPartition, str]  # partition -> member id; so nothing is owned twice
Assignor = Callable[[Subscriptions, Topics, Assignment], dict[TopicPartition, str]]


def assign_range(
    subscriptions: Subscriptions, topics: Topics, previous: Assignment
) -> dict[TopicPartition, str]:
    """Cut each topic into runs, one per subscriber in order of name; the first get one more.

    Topics with equal partition counts and subscribers are cut alike, so that partition n of both
    is with the same member and they can be joined by key. `previous` plays no part.
    """
    assignment = {}
    for topic, audience in _audiences(subscriptions, topics):
        share, extra = divmod(topics[topic], len(audience))
        owners = (m for rank, m in enumerate(audience) for _ in range(share + (rank < extra)))
        for partition, owner in enumerate(owners):
            assignment[TopicPartition(topic, partition)] = owner
    return assignment


def assign_sticky(
    subscriptions: Subscriptions, topics: Topics, previous: Assignment
) -> dict[TopicPartition, str]:
    """The most even assignment there is and, of those, one that moves the fewest partitions.

    Members with the same topics differ by at most one partition; where subscriptions differ, no
    chain of moves would make the loads more even.

    Partitions start where they were, new ones with the least loaded, and then one after another is
    shifted from a fuller member to an emptier one, along the cheapest chain of members. This is a
    minimum-cost flow with convex costs: without a chain that pays, the assignment is optimal.
    """
    loads = _Loads(subscriptions)
    orphans = []
    for topic, audience in _audiences(subscriptions, topics):
        for partition in range(topics[topic]):
            owner = previous.get(TopicPartition(topic, partition))
            if owner in audience:
                loads.give(owner, _Kind(audience, owner), TopicPartition(topic, partition))
            else:
                orphans.append((TopicPartition(topic, partition), audience))
    for orphan, audience in orphans:
        loads.give(min(audience, key=loads.load.__getitem__), _Kind(audience, None), orphan)
    while loads.shift():
        pass
    return {partition: member for member, partition in loads.owned()}


ASSIGNORS: Mapping[str, Assignor] = {"range": assign_range, "sticky": assign_sticky}


def _audiences(
    subscriptions: Subscriptions, topics: Topics
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each topic that somebody subscribes to, with its subscribers, both in order of name."""
    for topic in sorted(topics):
        audience = tuple(sorted(m for m, wanted in subscriptions.items() if topic in wanted))
        if audience:
            yield topic, audience


class _Kind(NamedTuple):
    """Partitions that can stand in for one another: who may own them, and who did."""

    audience: tuple[str, ...]
    home: str | None

    def moves(self, giver: str, taker: str) -> int:
        """What passing one on adds to the number of partitions away from home."""
        return (self.home == giver) - (self.home == taker)


class _Loads:
    """Partitions on their way to balance, and the search for the next shift."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self.load = dict.fromkeys(sorted(subscriptions), 0)
        self._held: dict[str, dict[_Kind, list[TopicPartition]]] = {
            member: defaultdict(list) for member in self.load
        }

    def give(self, member: str, kind: _Kind, partition: TopicPartition) -> None:
        self._held[member][kind].append(partition)
        self.load[member] += 1

    def owned(self) -> Iterator[tuple[str, TopicPartition]]:
        for member, kinds in self._held.items():
            for partitions in kinds.values():
                for partition in partitions:
                    yield member, partition

    def shift(self) -> bool:
        """Take one partition from a fuller member to an emptier one, by way of others if need be.

        False when no shift makes the loads more even, or leaves them and undoes a move. Evenness
        is the sum of squared loads; it outweighs any number of moves.
        """
        weight = 1 + sum(self.load.values())
        cost, via = self._cheapest_chains(weight)
        price = {member: cost[member] + weight * (load + 1) for member, load in self.load.items()}
        taker = min(price, key=price.__getitem__, default=None)
        if taker is None or price[taker] >= 0:
            return False
        while taker in via:
            giver, kind = via[taker]
            self.give(taker, kind, self._take(giver, kind))
            taker = giver
        return True

    def _take(self, member: str, kind: _Kind) -> TopicPartition:
        partition = self._held[member][kind].pop()
        if not self._held[member][kind]:
            del self._held[member][kind]
        self.load[member] -= 1
        return partition

    def _cheapest_chains(self, weight: int) -> tuple[dict[str, int], dict[str, tuple[str, _Kind]]]:
        """Bellman-Ford from all members at once: what it costs to have one more at each.

        A chain starts by relieving a member, which pays by its load. There is no endless loop:
        shifts along cheapest chains never leave a circle of moves that would pay by itself.
        """
        cost = {member: -weight * load for member, load in self.load.items()}
        via: dict[str, tuple[str, _Kind]] = {}
        news = set(self.load)
        while news:
            givers, news = sorted(news), set()
            for giver in givers:
                for kind in self._held[giver]:
                    for taker in kind.audience:
                        through = cost[giver] + kind.moves(giver, taker)
                        if through < cost[taker]:
                            cost[taker], via[taker] = through, (giver, kind)
                            news.add(taker)
        return cost, via
