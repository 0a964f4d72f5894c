"""Which partition is asked first."""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock.broker.partition_order import PartitionOrder

NOTHING = 5


class Partition:
    """As much of a partition as matters here: what it has to hand out."""

    def __init__(self, number: int, best: int) -> None:
        self.number = number
        self.best = best

    def best_ready(self, group: str) -> int:
        return self.best


def firsts(
    turns: PartitionOrder, partitions: list[Any], times: int, group: str = "g"
) -> Counter[int]:
    return Counter(turns.order(group, partitions)[0].number for _ in range(times))


def test_a_single_partition_is_asked_nothing() -> None:
    only: Any = object()
    assert turns_of(PartitionOrder(), [only]) == [only]


def turns_of(turns: PartitionOrder, partitions: list[Any]) -> list[Any]:
    return list(turns.order("g", partitions))


def test_equals_take_turns() -> None:
    partitions = [Partition(n, 2) for n in range(4)]
    assert firsts(PartitionOrder(), partitions, 40) == {0: 10, 1: 10, 2: 10, 3: 10}


def test_every_partition_is_in_the_order_and_empty_ones_come_last() -> None:
    partitions = [Partition(0, NOTHING), Partition(1, 3), Partition(2, NOTHING), Partition(3, 1)]
    for _ in range(10):
        order = [p.number for p in turns_of(PartitionOrder(), partitions)]
        assert order[:2] == [3, 1]
        assert sorted(order) == [0, 1, 2, 3]


def test_steady_urgent_traffic_leaves_the_others_every_fourth_turn() -> None:
    partitions = [Partition(0, 0), Partition(1, 2), Partition(2, 4), Partition(3, NOTHING)]
    counts = firsts(PartitionOrder(), partitions, 80)
    assert counts[0] == 60
    assert counts[1] + counts[2] == 20
    assert min(counts[1], counts[2]) >= 5


def test_an_urgent_message_that_comes_alone_is_always_next() -> None:
    turns = PartitionOrder()
    partitions = [Partition(0, 1), Partition(1, 2), Partition(2, NOTHING)]
    for wait in range(40):
        for _ in range(wait % 7):
            turns.order("g", partitions)
        partitions[2].best = 0
        assert turns.order("g", partitions)[0].number == 2
        partitions[2].best = NOTHING


def test_urgent_messages_that_come_now_and_then_do_not_starve_the_rest() -> None:
    turns = PartitionOrder()
    partitions = [Partition(0, 1), Partition(1, 2), Partition(2, NOTHING)]
    counts: Counter[int] = Counter()
    for number in range(90):
        partitions[2].best = 0 if number % 3 == 0 else NOTHING
        counts[turns.order("g", partitions)[0].number] += 1
    assert counts[1] >= 10


def test_groups_have_turns_of_their_own() -> None:
    turns = PartitionOrder()
    partitions = [Partition(0, 0), Partition(1, 2)]
    for _ in range(3):
        assert turns.order("busy", partitions)[0].number == 0
    assert turns.order("other", partitions)[0].number == 0
    assert turns.order("busy", partitions)[0].number == 1
