"""Assignors: valid, even, sticky, and the same every time."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.group.assignment import (
    ASSIGNORS,
    Assignor,
    TopicPartition,
    assign_range,
    assign_sticky,
)

Case = tuple[dict[str, set[str]], dict[str, int], dict[TopicPartition, str]]


@st.composite
def cases(draw: st.DrawFn, members_max: int = 6, partitions_max: int = 8) -> Case:
    """Members with mixed subscriptions, topics, and owners so far, some of them gone or wrong."""
    topics = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, partitions_max)))
    names = [f"m{n}" for n in range(draw(st.integers(0, members_max)))]
    subscriptions = {name: draw(st.sets(st.sampled_from("abcd"))) for name in names}
    previous = {
        p: draw(st.sampled_from([*names, "gone"]))
        for p in everything(topics)
        if draw(st.booleans())
    }
    return subscriptions, topics, previous


def everything(topics: dict[str, int]) -> list[TopicPartition]:
    return [TopicPartition(t, n) for t, partitions in topics.items() for n in range(partitions)]


def readable(case: Case) -> list[TopicPartition]:
    subscriptions, topics, _ = case
    return [p for p in everything(topics) if any(p.topic in s for s in subscriptions.values())]


def unevenness(assignment: dict[TopicPartition, str]) -> int:
    return sum(load * load for load in Counter(assignment.values()).values())


def moves(assignment: dict[TopicPartition, str], case: Case) -> int:
    """Partitions taken from an owner that could have kept them."""
    subscriptions, _, previous = case
    return sum(
        owner != previous[p] and p.topic in subscriptions.get(previous[p], ())
        for p, owner in assignment.items()
        if p in previous
    )


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)
@given(case=cases())
def test_every_readable_partition_gets_one_subscriber(assign: Assignor, case: Case) -> None:
    assignment = assign(*case)

    assert sorted(assignment) == sorted(readable(case))
    assert all(p.topic in case[0][owner] for p, owner in assignment.items())


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)
@given(case=cases())
def test_order_of_the_input_does_not_matter(assign: Assignor, case: Case) -> None:
    subscriptions, topics, previous = case

    backwards = assign(
        dict(reversed(subscriptions.items())),
        dict(reversed(topics.items())),
        dict(reversed(previous.items())),
    )

    assert backwards == assign(*case)


@given(case=cases(members_max=3, partitions_max=3))
@settings(max_examples=200)
def test_sticky_is_the_most_even_with_the_fewest_moves_of_all_assignments(case: Case) -> None:
    subscriptions, topics, _ = case
    partitions = readable(case)[:6]  # so that trying all of them stays quick
    topics = {t: sum(p.topic == t for p in partitions) for t in topics}
    choices = [[m for m, wanted in subscriptions.items() if p.topic in wanted] for p in partitions]
    candidates = [dict(zip(partitions, owners, strict=True)) for owners in product(*choices)]
    case = subscriptions, topics, case[2]

    assignment = assign_sticky(*case)

    best = min((unevenness(c), moves(c, case)) for c in candidates)
    assert (unevenness(assignment), moves(assignment, case)) == best


@given(case=cases(members_max=9, partitions_max=20))
def test_sticky_members_with_the_same_topics_differ_by_at_most_one(case: Case) -> None:
    subscriptions, topics, previous = case
    subscriptions = {member: set(topics) for member in subscriptions}

    assignment = assign_sticky(subscriptions, topics, previous)

    loads = [list(assignment.values()).count(member) for member in subscriptions]
    assert max(loads, default=0) - min(loads, default=0) <= 1


@given(case=cases())
def test_sticky_changes_nothing_when_nothing_changed(case: Case) -> None:
    subscriptions, topics, _ = case
    settled = assign_sticky(*case)

    assert assign_sticky(subscriptions, topics, settled) == settled


def test_sticky_moves_only_a_fair_share_to_a_new_member() -> None:
    alone = assign_sticky({"a": {"t"}}, {"t": 6}, {})

    both = assign_sticky({"a": {"t"}, "b": {"t"}}, {"t": 6}, alone)

    assert Counter(both.values()) == {"a": 3, "b": 3}


def test_sticky_spreads_what_a_leaver_had_and_leaves_the_rest() -> None:
    three = assign_sticky({m: {"t"} for m in "abc"}, {"t": 9}, {})

    two = assign_sticky({m: {"t"} for m in "ab"}, {"t": 9}, three)

    assert all(two[p] == owner for p, owner in three.items() if owner != "c")


def test_sticky_relieves_a_member_by_way_of_another() -> None:
    # c can read only y. It gets one when b, who can read both, takes an x from a in exchange.
    subscriptions = {"a": {"x"}, "b": {"x", "y"}, "c": {"y"}}
    x0, x1, x2, y0, y1, y2 = everything({"x": 3, "y": 3})
    previous = {x0: "a", x1: "a", x2: "a", y0: "b", y1: "b", y2: "c"}

    assignment = assign_sticky(subscriptions, {"x": 3, "y": 3}, previous)

    assert Counter(assignment.values()) == {"a": 2, "b": 2, "c": 2}


def test_range_gives_runs_and_the_first_members_one_more() -> None:
    assignment = assign_range({m: {"t"} for m in "abc"}, {"t": 8}, {})

    assert "".join(assignment[TopicPartition("t", n)] for n in range(8)) == "aaabbbcc"


def test_range_keeps_equal_partitions_of_two_topics_together() -> None:
    assignment = assign_range({m: {"t", "u"} for m in "abc"}, {"t": 5, "u": 5}, {})

    for n in range(5):
        assert assignment[TopicPartition("t", n)] == assignment[TopicPartition("u", n)]


def test_sticky_handles_a_thousand_partitions_and_fifty_members() -> None:
    topics = {f"t{n}": 100 for n in range(10)}
    before = assign_sticky({f"m{n}": set(topics) for n in range(49)}, topics, {})

    after = assign_sticky({f"m{n}": set(topics) for n in range(50)}, topics, before)

    assert sum(after[p] != owner for p, owner in before.items()) == 20
