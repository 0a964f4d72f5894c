from __future__ import annotations

import pytest

from penstock.delivery.producers import WRAPS_AT, Duplicate, Producers
from penstock.errors import InvalidInput, OutOfOrderSequence, ProducerFenced


@pytest.fixture
def producers() -> Producers:
    return Producers()


def store(producers: Producers, epoch: int, base: int, count: int, offset: int) -> None:
    assert producers.check(1, epoch, base, count) is None
    producers.record(1, epoch, base, count, offset)


def test_batches_in_order_are_accepted(producers: Producers) -> None:
    store(producers, 0, 0, 10, offset=100)
    store(producers, 0, 10, 5, offset=300)
    store(producers, 0, 15, 1, offset=305)


def test_a_batch_that_is_sent_again_is_told_where_it_is(producers: Producers) -> None:
    store(producers, 0, 0, 10, offset=100)
    store(producers, 0, 10, 5, offset=300)

    assert producers.check(1, 0, 0, 10) == Duplicate(100)
    assert producers.check(1, 0, 10, 5) == Duplicate(300)
    assert producers.check(1, 0, 12, 3) == Duplicate(302), "a part of it, too"


def test_a_batch_from_long_ago_is_a_duplicate_although_nobody_knows_of_what(
    producers: Producers,
) -> None:
    for batch in range(10):
        store(producers, 0, batch, 1, offset=batch)

    assert producers.check(1, 0, 0, 1) == Duplicate(None)
    assert producers.check(1, 0, 9, 1) == Duplicate(9)


def test_a_gap_is_out_of_order(producers: Producers) -> None:
    store(producers, 0, 0, 10, offset=0)

    with pytest.raises(OutOfOrderSequence) as caught:
        producers.check(1, 0, 11, 1)
    assert caught.value.expected == 10


def test_a_batch_that_is_half_stored_is_out_of_order(producers: Producers) -> None:
    store(producers, 0, 0, 10, offset=0)

    with pytest.raises(OutOfOrderSequence):
        producers.check(1, 0, 5, 10)


def test_an_unknown_producer_begins_at_zero(producers: Producers) -> None:
    with pytest.raises(OutOfOrderSequence):
        producers.check(9, 0, 5, 1)
    assert producers.check(9, 3, 0, 1) is None


def test_a_new_epoch_fences_the_old_one(producers: Producers) -> None:
    store(producers, 0, 0, 10, offset=0)
    store(producers, 1, 0, 1, offset=10)

    with pytest.raises(ProducerFenced):
        producers.check(1, 0, 10, 1)
    with pytest.raises(OutOfOrderSequence):
        producers.check(1, 2, 11, 1)


def test_a_fence_counts_before_the_new_producer_has_written(producers: Producers) -> None:
    store(producers, 0, 0, 10, offset=0)
    producers.fence(1, 4)
    producers.fence(1, 2)

    assert producers.epoch(1) == 4
    with pytest.raises(ProducerFenced):
        producers.check(1, 0, 10, 1)
    assert producers.check(1, 4, 0, 1) is None


def test_producers_do_not_know_each_other(producers: Producers) -> None:
    store(producers, 7, 0, 10, offset=0)

    assert producers.check(2, 0, 0, 10) is None
    assert producers.epoch(2) is None


def test_it_survives_a_restart(producers: Producers) -> None:
    store(producers, 3, 0, 10, offset=100)
    after = Producers()
    after.restore(producers.snapshot())

    assert after.check(1, 3, 0, 10) == Duplicate(100)
    assert after.check(1, 3, 10, 1) is None


def test_a_trimmed_log_still_tells_what_comes_next(producers: Producers) -> None:
    producers.record(1, 3, 500, 10, offset=9000)

    assert producers.check(1, 3, 510, 1) is None
    assert producers.check(1, 3, 500, 10) == Duplicate(9000)
    assert producers.check(1, 3, 100, 10) == Duplicate(None)


def test_the_one_that_was_silent_longest_is_forgotten() -> None:
    producers = Producers(producers_max=2)
    for producer_id in (1, 2, 1, 3):
        known = producers.epoch(producer_id) is not None
        producers.record(producer_id, 0, 1 if known else 0, 1, 0)

    assert len(producers) == 2
    assert producers.epoch(2) is None
    assert producers.epoch(1) == 0


@pytest.mark.parametrize(("base", "count"), [(-1, 1), (0, 0), (5, -3)])
def test_a_batch_that_cannot_be_is_refused(producers: Producers, base: int, count: int) -> None:
    with pytest.raises(InvalidInput):
        producers.check(1, 0, base, count)


def test_a_damaged_snapshot_is_an_error_with_a_code(producers: Producers) -> None:
    with pytest.raises(InvalidInput):
        producers.restore(b"\x81\x01\x01")


def test_numbers_that_begin_again_are_extended(producers: Producers) -> None:
    assert producers.unwrapped(1, 0, 7) == 7
    producers.record(1, 0, WRAPS_AT - 10, 10, 100)
    assert producers.unwrapped(1, 0, 0) == WRAPS_AT
    assert producers.check(1, 0, WRAPS_AT, 5) is None
    producers.record(1, 0, WRAPS_AT, 5, 110)
    assert producers.unwrapped(1, 0, 5) == WRAPS_AT + 5
    assert producers.unwrapped(1, 0, WRAPS_AT - 10) == WRAPS_AT - 10  # sent again, from before
    assert producers.check(1, 0, WRAPS_AT - 10, 10) == Duplicate(100)
    assert producers.unwrapped(1, 1, 0) == 0  # a new epoch begins anew


def test_who_is_not_known_may_begin_anywhere_where_that_is_allowed(producers: Producers) -> None:
    assert producers.check(9, 0, 500, 3, anywhere=True) is None
    with pytest.raises(OutOfOrderSequence):
        producers.check(9, 0, 500, 3)
    producers.record(9, 0, 500, 3, 0)
    with pytest.raises(OutOfOrderSequence):
        producers.check(9, 0, 600, 3, anywhere=True)
