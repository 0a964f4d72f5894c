from __future__ import annotations

from random import Random

import pytest

from penstock.delivery.backoff import Backoff
from penstock.errors import InvalidInput


def test_the_default_doubles_from_a_second_to_a_minute() -> None:
    delays = [Backoff().delay_ms(attempt) for attempt in range(1, 10)]

    assert delays == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]


def test_any_number_of_attempts_stays_at_the_longest() -> None:
    assert Backoff(factor=1000.0).delay_ms(10**9) == 60_000


def test_a_factor_of_one_is_constant() -> None:
    assert {Backoff(first_ms=50, factor=1.0).delay_ms(n) for n in range(1, 20)} == {50}


def test_jitter_only_shortens_and_is_drawn_from_the_seed() -> None:
    backoff = Backoff(jitter=0.5)
    first = [backoff.delay_ms(1, Random(seed)) for seed in range(50)]

    assert first == [backoff.delay_ms(1, Random(seed)) for seed in range(50)]
    assert all(500 <= delay <= 1000 for delay in first)
    assert len(set(first)) > 40
    assert backoff.delay_ms(1) == 1000


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_ms": -1},
        {"first_ms": 100, "max_ms": 99},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"jitter": 1.5},
    ],
)
def test_a_backoff_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Backoff(**wrong)  # type: ignore[arg-type]
