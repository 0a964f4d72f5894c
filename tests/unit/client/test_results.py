"""What a publish returns."""

from __future__ import annotations

from concurrent.futures import Future

from penstock.broker.topic import Placed
from penstock.model.published import PublishedBatch, published
from penstock.record.schema import new_batch_ulid, ulid_text


def placed(partition: int, rows: range | list[int], first: int, ulid: int) -> Placed:
    return Placed(partition, rows, first, ulid, Future(), duplicate=not ulid)


def test_a_batch_is_told_in_the_order_in_which_it_was_given() -> None:
    ulid, other = new_batch_ulid(10**18), new_batch_ulid(10**18)
    batch = PublishedBatch([placed(0, [1, 3], 10, ulid), placed(2, [0, 2], 50, other)])
    assert len(batch) == 4
    assert [(p.partition, p.offset) for p in batch] == [(2, 50), (0, 10), (2, 51), (0, 11)]
    assert [p.id for p in batch] == [
        ulid_text(number) for number in (other, ulid, other + 1, ulid + 1)
    ]
    assert repr(batch) == "<PublishedBatch: 2 in partition 0, 2 in partition 2>"


def test_a_duplicate_has_a_place_and_no_id_of_its_own() -> None:
    single = published(placed(1, range(1), 7, 0))
    assert (single.partition, single.offset, single.id, single.duplicate) == (1, 7, "", True)


def test_nothing_is_nothing() -> None:
    assert len(PublishedBatch([])) == 0
    assert list(PublishedBatch([])) == []
