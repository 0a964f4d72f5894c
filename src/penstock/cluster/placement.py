"""Which node owns which shard, and what a node does about it. Pure: time is an argument.

Every node computes the same from what it knows of the members. Where two disagree for a while, both
may try to own a shard; the terms in its stream decide, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from penstock import __version__
from penstock.errors import ClusterUnsafe

SHARDS = 16
HAND_OVER_AFTER_S = 10.0
"""A shard stays where it is for so long although another node should have it: nodes that come and
go do not move shards about."""


class Owner(msgspec.Struct, frozen=True):
    """Who owns a shard, as far as is known."""

    node: str
    url: str


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes agree on, one small document. Fields may be added, with a default."""

    shards: int = SHARDS
    owners: dict[int, Owner] = {}
    pins: dict[int, str] = {}
    """Shards that shall be at a certain node while that one is there."""
    draining: list[str] = []
    """Nodes that shall have no shards."""
    record_version: int = 1
    """Of the records that owners write. All members read it, and whoever joins must."""


def shard_of(namespace: str, shards: int = SHARDS) -> int:
    """Where a namespace lives, all of it: its topics, groups, schedules and transactions."""
    return int.from_bytes(blake2b(namespace.encode(), digest_size=8).digest(), "big") % shards


def record_version(known: int, announced: Iterable[int]) -> int:
    """The version of records that owners may write: one that every member says it reads, whether
    or not it is there at this moment. It never goes back, since such records are stored then."""
    return max(known, min(announced, default=known))


def written_version(agreed: int, reads: int) -> int:
    """The version of records that a node writes: the one agreed on. Raises ClusterUnsafe if the
    node, which reads up to a version, is too old to be a member."""
    if agreed > reads:
        raise ClusterUnsafe(
            f"the cluster writes records of version {agreed}, and this Penstock ({__version__}) "
            f"reads up to {reads}; use a later one"
        )
    return agreed


def assign(shards: int, members: Collection[str], pins: Mapping[int, str]) -> dict[int, list[str]]:
    """For each shard the nodes by preference: the first should own it, the second stand by.

    By rendezvous hashing: when a node goes only its shards move. No node gets more than its share,
    rounded up, beside those that are pinned to it.
    """
    if not members:
        return {}
    share = -(-shards // len(members))
    load = dict.fromkeys(members, 0)
    found: dict[int, list[str]] = {}
    for shard in sorted(range(shards), key=lambda n: pins.get(n) not in load):  # pinned ones first
        ranked = sorted(members, key=lambda node: _weight(node, shard), reverse=True)
        pinned = pins.get(shard)
        if pinned in load:
            first = pinned
        else:
            first = next((node for node in ranked if load[node] < share), ranked[0])
        load[first] += 1
        found[shard] = [first, *(node for node in ranked if node != first)]
    return found


def _weight(node: str, shard: int) -> bytes:
    return blake2b(f"{shard}/{node}".encode(), digest_size=8).digest()


class Steps(NamedTuple):
    """What a node should do now."""

    take: Sequence[int] = ()
    """Shards that nobody owns any more, and this node should."""
    hand_over: Mapping[int, str] = MappingProxyType({})
    """Shards of this node that another one should have."""
    follow: Sequence[int] = ()
    """Shards that this node stands by for."""


class ClusterMembers:
    """Who is there: nodes whose heartbeat was seen to change lately, by this node's own clock."""

    def __init__(self, me: str, dead_after_s: float) -> None:
        self.me = me
        self.dead_after_s = dead_after_s
        self._seen: dict[str, tuple[int, float]] = {}
        self._misplaced_since: dict[int, float] = {}

    def heard(self, node: str, revision: int, now: float) -> None:
        """The heartbeat of a node has this revision."""
        known = self._seen.get(node)
        if known is None or known[0] != revision:
            self._seen[node] = (revision, now)

    def deaf(self, now: float, since: float) -> None:
        """Nothing could be heard from a moment until now: nobody is dead for that."""
        self._seen = {
            node: (revision, at + max(now - max(since, at), 0))
            for node, (revision, at) in self._seen.items()
        }

    def forget(self, known: Iterable[str]) -> None:
        """Nodes that have no heartbeat any more are gone."""
        keep = set(known)
        self._seen = {node: seen for node, seen in self._seen.items() if node in keep}

    def alive(self, now: float) -> list[str]:
        here = {node for node, (_, at) in self._seen.items() if now - at < self.dead_after_s}
        return sorted(here | {self.me})

    def decide(
        self, state: ClusterState, mine: Collection[int], now: float, standbys: int = 1
    ) -> Steps:
        """`mine`: shards that this node owns, or is taking over."""
        alive = self.alive(now)
        candidates = [node for node in alive if node not in state.draining]
        wanted = assign(state.shards, candidates, state.pins)
        take: list[int] = []
        hand_over: dict[int, str] = {}
        follow: list[int] = []
        for shard, ranked in wanted.items():
            owner = state.owners.get(shard)
            if shard in mine:
                if ranked[0] != self.me and self._is_due(shard, state, now):
                    hand_over[shard] = ranked[0]
            elif owner is None or owner.node not in alive or owner.node == self.me:
                if ranked[0] == self.me:
                    take.append(shard)
                elif owner is not None and owner.node == self.me:
                    hand_over[shard] = ranked[0]  # it is not open here, and nobody else would
            if shard not in mine and self.me in ranked[: standbys + 1]:
                follow.append(shard)
            if shard not in mine or ranked[0] == self.me:
                self._misplaced_since.pop(shard, None)
        return Steps(take, hand_over, follow)

    def _is_due(self, shard: int, state: ClusterState, now: float) -> bool:
        since = self._misplaced_since.setdefault(shard, now)
        meant = self.me in state.draining or shard in state.pins  # somebody asked for it
        return meant or now - since >= HAND_OVER_AFTER_S
