"""Who should own what, and who is there."""

from __future__ import annotations

import runpy
from collections import Counter

import pytest

from penstock.cluster import records, registry
from penstock.cluster.placement import (
    ClusterMembers,
    ClusterState,
    Owner,
    assign,
    record_version,
    shard_of,
    written_version,
)
from penstock.errors import ClusterUnsafe

NODES = ["a", "b", "c"]


def firsts(members: list[str], pins: dict[int, str] | None = None) -> dict[int, str]:
    return {shard: ranked[0] for shard, ranked in assign(16, members, pins or {}).items()}


def test_no_node_gets_more_than_its_share() -> None:
    for count in range(1, 8):
        members = [f"node-{n}" for n in range(count)]
        load = Counter(firsts(members).values())
        assert sum(load.values()) == 16
        assert max(load.values()) <= -(-16 // count)


def test_when_a_node_goes_most_shards_stay() -> None:
    before, after = firsts(NODES), firsts(["a", "b"])
    stayed = [n for n in before if before[n] != "c" and before[n] == after[n]]
    assert len(stayed) >= 8


def test_a_pin_holds_while_its_node_is_there() -> None:
    assert firsts(NODES, {3: "b"})[3] == "b"
    assert firsts(["a", "c"], {3: "b"})[3] in ("a", "c")


def test_a_namespace_is_always_in_the_same_shard() -> None:
    assert shard_of("default") == shard_of("default")
    assert {shard_of(f"n{number}") for number in range(200)} == set(range(16))


def state(**owners: str) -> ClusterState:
    return ClusterState(
        owners={int(n[1:]): Owner(node, f"http://{node}") for n, node in owners.items()}
    )


def seen(me: str, *others: str) -> ClusterMembers:
    members = ClusterMembers(me, 5)
    for node in (me, *others):
        members.heard(node, 1, 0.0)
    return members


def test_a_silent_node_is_dead_after_five_seconds_of_ones_own_clock() -> None:
    members = seen("a", "b", "c")
    for now in (1.0, 2.0, 4.0):
        members.heard("b", int(now) + 1, now)
    assert members.alive(4.9) == ["a", "b", "c"]
    assert members.alive(5.1) == ["a", "b"]


def test_nobody_is_dead_because_nothing_could_be_heard() -> None:
    members = seen("a", "b")
    members.deaf(20.0, 0.0)
    assert members.alive(20.0) == ["a", "b"]


def test_shards_of_a_dead_node_are_taken_by_who_comes_next() -> None:
    wanted = firsts(["a", "b"])
    owned = state(**{f"s{n}": "c" for n in range(16)})
    taken = {node: seen(node, "a", "b").decide(owned, [], 1.0).take for node in ("a", "b")}
    assert {n: node for node, shards in taken.items() for n in shards} == wanted


def test_an_owner_that_lives_keeps_its_shards_for_a_while() -> None:
    members = seen("a", "b", "c")
    owned = state(**{f"s{n}": "a" for n in range(16)})
    mine = list(range(16))
    assert not members.decide(owned, mine, 1.0).hand_over
    for node in ("b", "c"):
        members.heard(node, 2, 10.0)
    later = members.decide(owned, mine, 11.5).hand_over
    assert set(later.values()) == {"b", "c"}


def test_a_node_that_is_drained_hands_over_at_once() -> None:
    members = seen("a", "b")
    owned = ClusterState(owners={0: Owner("a", "http://a")}, draining=["a"])
    assert members.decide(owned, [0], 1.0).hand_over == {0: "b"}


def test_records_are_of_a_version_that_all_members_read() -> None:
    assert record_version(1, [2, 1, 3]) == 1
    assert record_version(1, [2, 2, 3]) == 2
    assert record_version(2, [1, 3]) == 2  # such records are stored: it does not go back
    assert record_version(2, []) == 2


def test_a_node_writes_what_was_agreed_on_or_nothing() -> None:
    assert [written_version(1, 1), written_version(1, 2), written_version(2, 2)] == [1, 1, 2]
    with pytest.raises(ClusterUnsafe, match=r"version 3, and this Penstock .* reads up to 2"):
        written_version(3, 2)


def test_a_node_that_says_nothing_of_versions_reads_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever version the Penstock that asks has come to."""
    monkeypatch.setattr(records, "VERSION", 3)
    of_later = runpy.run_path(registry.__file__)
    silent = of_later["NodeInfo"](url="http://a")
    assert silent.record_version == 1
    assert record_version(1, [3, silent.record_version]) == 1
