"""Buckets of a histogram, and what is made of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock.broker.histogram import Histogram

PARTS = (0.0, 0.01, 0.5, 0.95, 0.99, 1.0)


def of(durations_us: list[int]) -> Histogram:
    histogram = Histogram()
    for took_us in durations_us:
        histogram.add(took_us)
    return histogram


def test_up_to_seven_microseconds_each_has_a_bucket_of_its_own() -> None:
    assert of([0, 1, 2, 3, 4, 5, 6, 7]).buckets == dict.fromkeys(range(8), 1)


def test_beyond_there_are_four_buckets_to_an_octave() -> None:
    assert len(of(list(range(8, 16))).buckets) == 4
    assert len(of(list(range(1024, 2048))).buckets) == 4
    assert sorted(of(list(range(4096))).buckets) == list(range(4 * (12 - 1)))  # without a gap


@pytest.mark.parametrize("power", [4, 10, 20, 40, 52])
def test_columns_are_counted_as_single_ones_are(power: int) -> None:
    edge = 1 << power
    durations = [edge - 1, edge, edge + 1, edge * 5 // 4 - 1, edge * 5 // 4, edge * 7 // 4]
    counts = [1, 2, 3, 4, 5, 6]
    one_by_one = Histogram()
    for took_us, count in zip(durations, counts, strict=True):
        one_by_one.add(took_us, count)
    together = Histogram()
    together.add_many(np.array(durations), np.array(counts))
    assert together.buckets == one_by_one.buckets
    assert together.max_us == one_by_one.max_us == edge * 7 // 4
    assert together.sum_us == pytest.approx(one_by_one.sum_us)
    assert together.count == 21


def test_durations_longer_than_any_clock_do_no_harm() -> None:
    histogram = Histogram()
    histogram.add_many(np.array([(1 << 63) - 1] * 4), np.array([1, 1, 1, 1 << 40]))
    histogram.add(1 << 64)
    assert histogram.count == 4 + (1 << 40)
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
