"""How far behind stream groups are."""

from __future__ import annotations

from penstock.group.assignment import TopicPartition
from penstock.group.events import Committed
from penstock.group.offsets import Bounds, lag

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_lag_counts_what_is_there_and_not_done() -> None:
    committed = {T0: Committed(15)}

    assert lag(committed, {T0: Bounds(10, 20), T1: Bounds(10, 20)}) == {T0: 5, T1: 10}
    assert lag(committed, {T0: Bounds(18, 20)}) == {T0: 2}
    assert lag(committed, {T0: Bounds(0, 12)}) == {T0: 0}
