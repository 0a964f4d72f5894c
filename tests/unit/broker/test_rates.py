"""Messages a second, over the last ten."""

from __future__ import annotations

from penstock.broker.rates import Meter

SECOND = 1_000_000_000


def test_nothing_is_nothing() -> None:
    assert Meter().per_second(0) == 0
    assert Meter().per_second(10**18) == 0


def test_counts_are_spread_over_ten_seconds() -> None:
    meter = Meter()
    for second in range(10):
        meter.add(20, second * SECOND)
    assert meter.per_second(9 * SECOND + 999_999_999) == 20
    assert meter.per_second(10 * SECOND) == 18
    assert meter.per_second(14 * SECOND) == 10
    assert meter.per_second(19 * SECOND) == 0


def test_a_long_silence_forgets_all() -> None:
    meter = Meter()
    meter.add(100, 5 * SECOND)
    meter.add(1, 10_000 * SECOND)
    assert meter.per_second(10_000 * SECOND) == 0.1


def test_a_late_count_is_not_lost() -> None:
    meter = Meter()
    meter.add(10, 20 * SECOND)
    meter.add(10, 19 * SECOND)  # another thread read the clock before
    assert meter.per_second(20 * SECOND) == 2
    assert meter.per_second(28 * SECOND) == 2
