"""Buckets of a histogram, and what is made of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock.broker.histogram import Histogram

PARTS = (0.0, 0.01, 0.5, 0.95, 0.99, 1.0)


def of(durations_us: list[int]) -> Histogram:
    histogram = Histogram()
    histogram.add(np.array(durations_us), np.ones(len(durations_us), np.int64))
    return histogram


def test_up_to_seven_microseconds_each_has_a_bucket_of_its_own() -> None:
    assert of([0, 1, 2, 3, 4, 5, 6, 7]).buckets == dict.fromkeys(range(8), 1)


def test_beyond_there_are_four_buckets_to_an_octave() -> None:
    assert len(of(list(range(8, 16))).buckets) == 4
    assert len(of(list(range(1024, 2048))).buckets) == 4
    assert sorted(of(list(range(4096))).buckets) == list(range(4 * (12 - 1)))  # without a gap


@pytest.mark.parametrize("power", [4, 10, 20, 40, 52])
def test_a_bucket_is_the_highest_bit_and_the_two_below_it(power: int) -> None:
    edge = 1 << power
    durations = [edge - 1, edge, edge + 1, edge * 5 // 4 - 1, edge * 5 // 4, edge * 7 // 4]
    histogram = Histogram()
    histogram.add(np.array(durations), np.array([1, 2, 3, 4, 5, 6]))
    first = 4 * (power - 1)
    assert histogram.buckets == {first - 1: 1, first: 2 + 3 + 4, first + 1: 5, first + 3: 6}
    assert histogram.max_us == edge * 7 // 4
    assert histogram.sum_us == pytest.approx(
        sum(took_us * count for count, took_us in enumerate(durations, 1))
    )
    assert histogram.count == 21


def test_durations_longer_than_any_clock_do_no_harm() -> None:
    histogram = Histogram()
    histogram.add(np.array([(1 << 63) - 1] * 4), np.array([1, 1, 1, 1 << 40]))
    assert histogram.count == 3 + (1 << 40)
    assert histogram.percentiles_us([0.5])[0] > 1 << 52


@pytest.mark.parametrize("seed", range(20))
def test_a_percentile_is_off_by_an_eighth_at_the_most(seed: int) -> None:
    chance = random.Random(seed)
    durations = [round(10 ** chance.uniform(0, 10)) for _ in range(chance.randrange(1, 3000))]
    found = of(durations).percentiles_us(PARTS)
    durations.sort()
    for part, took_us in zip(PARTS, found, strict=True):
        exact_us = durations[max(-(-int(part * 1e9) * len(durations) // 10**9) - 1, 0)]
        assert abs(took_us - exact_us) <= exact_us / 8, f"seed {seed}, part {part}"


def test_no_percentile_is_above_the_longest() -> None:
    assert of([1000]).percentiles_us([0.5, 1.0]) == [960, 960]
    assert of([1025]).percentiles_us([0.5, 1.0]) == [1025, 1025]  # the middle would be 1152
    assert Histogram().percentiles_us([0.5]) == [0]


def test_what_is_below_an_edge() -> None:
    histogram = of([0, 3, 4, 255, 256, 257, 1 << 20])
    assert histogram.below([4, 256, 1 << 20, 1 << 21]) == [2, 4, 6, 7]


def test_merged_they_are_as_if_counted_together() -> None:
    merged = Histogram.of([of([1, 50, 7000]), Histogram(), of([50, 90_000])])
    alike = of([1, 50, 7000, 50, 90_000])
    assert merged.buckets == alike.buckets
    assert (merged.sum_us, merged.max_us, merged.count) == (alike.sum_us, 90_000, 5)
