"""Rate limits on a manual clock: shares, bursts, and memory that stays bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.errors import InvalidInput
from penstock.server.limits import Limiter


def taken(limiter: Limiter, who: str, attempts: int) -> int:
    return sum(limiter.take(who) is None for _ in range(attempts))


def test_a_burst_passes_and_then_the_rate_counts() -> None:
    clock = ManualClock()
    limiter = Limiter(10, burst=5, clock=clock)
    assert taken(limiter, "a", 20) == 5
    clock.advance(0.3)
    assert taken(limiter, "a", 20) == 3
    clock.advance(3600)
    assert taken(limiter, "a", 20) == 5  # a pause saves up a burst, and no more


def test_whoever_waits_as_long_as_told_may_go_on_and_not_before() -> None:
    clock = ManualClock()
    limiter = Limiter(4, burst=1, clock=clock)
    assert limiter.take("a") is None
    wait = limiter.take("a")
    assert wait == pytest.approx(0.25)
    clock.advance(0.24)
    assert limiter.take("a") is not None
    clock.advance(0.01)
    assert limiter.take("a") is None


def test_a_refusal_costs_nothing() -> None:
    clock = ManualClock()
    limiter = Limiter(1, burst=1, clock=clock)
    assert taken(limiter, "a", 1000) == 1
    clock.advance(1)
    assert limiter.take("a") is None


def test_clients_do_not_take_from_each_other() -> None:
    limiter = Limiter(1, burst=2, clock=ManualClock())
    assert taken(limiter, "a", 5) == 2
    assert taken(limiter, "b", 5) == 2


def test_what_costs_more_takes_more_and_the_dearest_takes_a_whole_burst() -> None:
    clock = ManualClock()
    limiter = Limiter(1, burst=10, clock=clock)
    assert limiter.take("a", cost=7) is None
    assert limiter.take("a", cost=7) == pytest.approx(4)
    assert limiter.take("b", cost=1000) is None
    assert limiter.take("b") == pytest.approx(1)


def test_the_wall_clock_does_not_matter() -> None:
    clock = ManualClock()
    limiter = Limiter(1, burst=1, clock=clock)
    assert limiter.take("a") is None
    clock.jump_wall(3600)
    assert limiter.take("a") is not None
    clock.jump_wall(-7200)
    clock.advance(1)
    assert limiter.take("a") is None


def test_memory_is_bounded_and_a_flood_of_addresses_gets_one_share() -> None:
    clock = ManualClock()
    limiter = Limiter(1, burst=2, clock=clock, clients_max=100)
    let_in = sum(taken(limiter, f"address {n}", 2) for n in range(10_000))
    assert len(limiter) == 100
    assert let_in == 100 * 2 + 2
    assert taken(limiter, "address 0", 5) == 0  # nobody got a fresh bucket by being pushed out

    clock.advance(2)  # all buckets are full again, so those of who left can go
    assert sum(limiter.take(f"newcomer {n}") is None for n in range(100)) == 100
    assert len(limiter) == 100


@given(
    per_second=st.floats(0.01, 1e6),
    burst=st.integers(1, 1000),
    pauses=st.lists(st.floats(0, 10), max_size=50),
)
def test_no_pattern_gets_more_than_the_burst_and_the_rate(
    per_second: float, burst: int, pauses: list[float]
) -> None:
    clock = ManualClock()
    limiter = Limiter(per_second, burst, clock=clock)
    passed = 0
    for pause in pauses:
        clock.advance(pause)
        passed += taken(limiter, "a", 20)
    assert passed <= burst + per_second * sum(pauses) + 1e-3


@pytest.mark.parametrize("per_second", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(per_second: float) -> None:
    with pytest.raises(InvalidInput, match="per_second"):
        Limiter(per_second)
    with pytest.raises(InvalidInput, match="burst"):
        Limiter(1, burst=0)
