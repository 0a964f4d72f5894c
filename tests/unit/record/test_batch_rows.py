"""Slicing, filtering, taking and joining batches, compared with what lists do."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.record.batch import Batch
from penstock.record.schema import READ_SCHEMA, new_batch_ulid, parse_ulid, ulid_text
from tests.unit.record.strategies import QUICK, Row, batch_of, rows, rows_of

ULID = new_batch_ulid(1_700_000_000_000_000_000)


def placed(messages: list[Row], base_offset: int = 100, ulid: int = ULID) -> Batch:
    """A batch as a log gives it: each message has its offset and id."""
    batch = batch_of(messages)
    return Batch(
        batch.data,
        batch.columns,
        timestamp_us=batch.timestamp_us,
        priority=batch.priority,
        base_offset=base_offset,
        ulid=ulid,
    )


def places(batch: Batch) -> list[tuple[int, str]]:
    return [(message.offset, message.id) for message in batch]


def check_columns(batch: Batch) -> None:
    """That a batch says the same by columns as by messages."""
    table, messages = batch.record_batch(), batch.messages()
    table.validate(full=True)
    assert table.schema.equals(READ_SCHEMA)
    assert table.column("offset").to_pylist() == [m.offset for m in messages]
    assert [int.from_bytes(i, "big") for i in table.column("id").to_pylist()] == [
        parse_ulid(m.id) for m in messages
    ]
    assert table.column("value").to_pylist() == [m.value for m in messages]
    assert table.column("key").to_pylist() == [m.key for m in messages]
    assert table.column("priority").to_pylist() == [m.priority for m in messages]
    assert batch.timestamps_us().tolist() == [m.timestamp_us for m in messages]


@QUICK
@given(rows())
def test_a_batch_gives_back_the_messages_it_was_built_from(messages: list[Row]) -> None:
    batch = batch_of(messages)
    assert rows_of(batch) == messages
    check_columns(batch)


@QUICK
@given(rows(), st.integers(0, 14), st.none() | st.integers(0, 14))
def test_a_slice_is_a_slice_of_the_list(
    messages: list[Row], start: int, length: int | None
) -> None:
    stop = None if length is None else start + length
    whole = placed(messages)
    part = whole.slice(start, length)
    assert rows_of(part) == messages[start:stop]
    assert places(part) == places(whole)[start:stop]
    check_columns(part)


@QUICK
@given(rows(min_size=1), st.integers(0, 11), st.integers(0, 11))
def test_a_slice_of_a_slice_keeps_offsets_and_ids(
    messages: list[Row], first: int, second: int
) -> None:
    whole = placed(messages)
    assert places(whole.slice(first).slice(second)) == places(whole)[first:][second:]


def test_a_slice_shares_memory() -> None:
    batch = Batch.build([b"x" * 1000] * 100)
    part = batch.slice(50, 10)
    assert part.values.buffers()[2].address == batch.values.buffers()[2].address


@QUICK
@given(rows(), st.data())
def test_a_filter_keeps_the_rows_of_its_mask_with_offsets_and_ids(
    messages: list[Row], data: st.DataObject
) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages)))
    whole = placed(messages)
    part = whole.filter(mask)
    assert rows_of(part) == [row for row, keep in zip(messages, mask, strict=True) if keep]
    assert places(part) == [place for place, keep in zip(places(whole), mask, strict=True) if keep]
    assert part == whole.filter(np.array(mask, bool)) == whole.filter(pa.array(mask, pa.bool_()))
    check_columns(part)


@QUICK
@given(rows(min_size=1), st.data())
def test_take_brings_rows_in_any_order_with_offsets_and_ids(
    messages: list[Row], data: st.DataObject
) -> None:
    wanted = data.draw(st.lists(st.integers(0, len(messages) - 1), max_size=15))
    whole = placed(messages)
    part = whole.take(wanted)
    assert rows_of(part) == [messages[i] for i in wanted]
    assert places(part) == [places(whole)[i] for i in wanted]
    check_columns(part)


@QUICK
@given(st.lists(rows(min_size=1, max_size=5), max_size=5))
def test_joined_batches_are_the_joined_lists(parts: list[list[Row]]) -> None:
    joined = Batch.concat([batch_of(part) for part in parts])
    assert rows_of(joined) == [row for part in parts for row in part]
    check_columns(joined)


@QUICK
@given(
    st.lists(rows(min_size=1, max_size=5), min_size=1, max_size=5),
    st.lists(st.integers(0, 3), min_size=5, max_size=5),
)
def test_joined_batches_of_a_log_keep_offsets_and_ids_across_gaps(
    parts: list[list[Row]], gaps: list[int]
) -> None:
    batches, offset = [], 7
    for number, (part, gap) in enumerate(zip(parts, gaps, strict=False)):
        offset += gap
        batches.append(placed(part, offset, new_batch_ulid(number * 10**9)))
        offset += len(part)
    joined = Batch.concat(batches)
    assert places(joined) == [place for batch in batches for place in places(batch)]
    assert joined.next_offset == offset
    check_columns(joined)


@QUICK
@given(rows(min_size=2), st.data())
def test_what_was_filtered_can_be_sliced_joined_and_filtered_again(
    messages: list[Row], data: st.DataObject
) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages)))
    whole = placed(messages)
    part = whole.filter(mask)
    cut = data.draw(st.integers(0, len(messages)))
    assert places(part.slice(cut)) == places(part)[cut:]
    after = placed(messages, 100 + len(messages), new_batch_ulid(10**18))
    joined = Batch.concat([part, after])
    assert places(joined) == places(part) + places(after)
    assert rows_of(joined) == rows_of(part) + messages
    check_columns(joined)


def test_one_batch_joined_is_itself_and_none_is_an_empty_one() -> None:
    batch = Batch.build(["a"])
    assert Batch.concat([batch]) is batch
    assert len(Batch.concat([])) == 0


def test_messages_without_a_time_cannot_silently_get_one_by_being_joined() -> None:
    undated, dated = Batch.build(["a"]), Batch.build(["b"], timestamps_us=5)
    several = Batch.build(["c", "d"], timestamps_us=[6, 7])
    assert Batch.concat([undated, Batch.build(["b"])]).timestamp_us is None
    for batches in ([undated, dated], [dated, undated], [several, undated]):
        with pytest.raises(ValueError, match="time"):
            Batch.concat(batches)


def test_a_batch_that_is_published_again_forgets_where_it_was() -> None:
    whole = placed([Row(b"a"), Row(b"b"), Row(b"c")])
    moved = whole.take([2, 0]).unplaced()
    assert moved.data.schema.names == ["value"]
    assert [m.value for m in moved] == [b"c", b"a"]


def test_ids_are_the_batches_ulid_and_the_row() -> None:
    batch = placed([Row(b"a")] * 3)
    assert [m.id for m in batch] == [ulid_text(ULID + row) for row in range(3)]
    assert batch.ids.to_pylist() == [(ULID + row).to_bytes(16, "big") for row in range(3)]
    texts = [m.id for m in batch]
    assert texts == sorted(texts)


def test_ids_of_the_last_rows_of_a_huge_batch_do_not_run_into_the_next() -> None:
    ulid = (1 << 128) - (1 << 24)  # the largest: every bit but those of the row is set
    batch = placed([Row(b"a")], ulid=ulid + (1 << 24) - 1)
    assert batch.ids.to_pylist() == [b"\xff" * 16]


@QUICK
@given(rows())
def test_a_message_is_as_long_as_its_value_key_and_headers(messages: list[Row]) -> None:
    def length(row: Row) -> int:
        headers = sum(len(name.encode()) + len(value or b"") for name, value in row.headers.items())
        return len(row.value or b"") + len(row.key or b"") + headers

    batch = batch_of(messages)
    assert batch.message_bytes().tolist() == [length(row) for row in messages]
    assert batch.slice(1).message_bytes().tolist() == [length(row) for row in messages[1:]]


def test_a_message_cannot_be_changed() -> None:
    message = Batch.build(["a"]).messages()[0]
    with pytest.raises(AttributeError):
        message.value = b"b"  # type: ignore[misc]


def test_a_batch_can_be_given_other_times() -> None:
    batch = placed([Row(b"a", timestamp_us=1), Row(b"b", timestamp_us=2)])
    assert [m.timestamp_us for m in batch.stamped(9)] == [9, 9]
    assert [m.timestamp_us for m in batch.stamped([8, 7])] == [8, 7]
    assert batch.stamped(None).timestamp_us is None
    assert places(batch.stamped([8, 7])) == places(batch)
    with pytest.raises(ValueError, match="2 messages, but 1"):
        batch.stamped([1])


def test_only_messages_without_an_expiry_get_one() -> None:
    batch = placed([Row(b"a"), Row(b"b", expires_at_us=5)])
    assert [m.expires_at_us for m in batch.expiring(9)] == [9, 5]
    assert [m.expires_at_us for m in batch.expiring(np.array([8, 9]))] == [8, 5]
    assert [m.expires_at_us for m in placed([Row(b"a")] * 2).expiring(7)] == [7, 7]


def test_headers_can_be_added_to_those_there_are() -> None:
    batch = placed([Row(b"a", headers={"old": b"1", "both": b"1"}), Row(b"b")])
    added = batch.with_headers([{"new": b"2", "both": b"2"}, {}])
    assert [m.headers for m in added] == [{"old": b"1", "both": b"2", "new": b"2"}, {}]
    assert places(added) == places(batch)


def test_a_batch_that_moves_to_another_log_can_keep_its_ids() -> None:
    batch = placed([Row(b"a"), Row(b"b"), Row(b"c")])
    moved = batch.take([2, 0]).unplaced(keep_ids=True)
    assert moved.base_offset is None
    assert [m.ulid for m in moved] == [ULID + 2, ULID]


@pytest.mark.parametrize("rows", [1, 10, 64, 65, 1000])
def test_the_first_expiry_is_that_of_the_rows_that_are_there(rows: int) -> None:
    moments = np.random.default_rng(rows).integers(1, 1 << 50, rows)
    batch = Batch.build([b"x"] * rows).expiring(moments)
    assert batch.first_expiry_us() == moments.min()
    for start in range(0, rows, max(1, rows // 7)):
        for length in (1, rows - start):
            part = moments[start : start + length]
            assert batch.slice(start, length).first_expiry_us() == part.min()
