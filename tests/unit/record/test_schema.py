"""What a message is made of, and how it is named."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.record.schema import (
    READ_SCHEMA,
    ROWS_MAX,
    SCHEMA,
    Priority,
    new_batch_ulid,
    parse_priority,
    parse_ulid,
    ulid_text,
)
from tests.unit.record.strategies import QUICK

ULIDS = st.integers(0, (1 << 128) - 1)


def test_the_schema_is_the_one_that_files_and_readers_depend_on() -> None:
    time = pa.timestamp("us", tz="UTC")
    header = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
    assert pa.schema(
        [
            pa.field("timestamp", time, nullable=False),
            pa.field("priority", pa.uint8(), nullable=False),
            pa.field("expires_at", time),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(header)),
        ]
    ).equals(SCHEMA)
    assert READ_SCHEMA.names == ["offset", "id", *SCHEMA.names]
    assert READ_SCHEMA.field("offset").type == pa.int64()
    assert READ_SCHEMA.field("id").type == pa.binary(16)


def test_the_most_urgent_priority_has_the_lowest_number() -> None:
    names = [priority.name.lower() for priority in sorted(Priority)]
    assert names == ["critical", "high", "normal", "low", "background"]
    assert [parse_priority(name) for name in names] == [0, 1, 2, 3, 4]
    assert [parse_priority(number) for number in range(5)] == list(Priority)


@pytest.mark.parametrize("wrong", ["urgent", "", "2", 5, -1, None, 1.5, [2]])
def test_a_priority_that_does_not_exist_is_answered_with_those_that_do(wrong: object) -> None:
    with pytest.raises(InvalidInput, match=r"critical \(0\), high \(1\), .* background \(4\)"):
        parse_priority(wrong)  # type: ignore[arg-type]


@QUICK
@given(ULIDS)
def test_a_ulid_survives_being_written_as_text(ulid: int) -> None:
    text = ulid_text(ulid)
    assert len(text) == 26
    assert parse_ulid(text) == parse_ulid(text.lower()) == ulid


@QUICK
@given(ULIDS, ULIDS)
def test_ulids_sort_as_text_as_they_do_as_numbers(one: int, other: int) -> None:
    assert (ulid_text(one) < ulid_text(other)) == (one < other)


def test_a_ulid_is_written_as_everybody_writes_it() -> None:
    # The example of the ULID specification: 2016-07-30T23:54:10.259Z, and its random part.
    text = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    assert ulid_text(parse_ulid(text)) == text
    assert parse_ulid(text) >> 80 == 1469922850259


@pytest.mark.parametrize(
    "wrong", ["", "01ARZ3", "01ARZ3NDEKTSV4RRFFQ69G5FAVX", "8" + "0" * 25, "U" * 26, "é" * 26]
)
def test_what_is_no_ulid_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="is not a message id"):
        parse_ulid(wrong)


def test_batches_get_ulids_that_are_unique_ordered_by_time_and_leave_room_for_rows() -> None:
    wall_ns = 1_700_000_000_123_456_789
    same_instant = {new_batch_ulid(wall_ns) for _ in range(10_000)}
    assert len(same_instant) == 10_000
    assert all(ulid >> 80 == 1_700_000_000_123 for ulid in same_instant)
    assert all(ulid % ROWS_MAX == 0 for ulid in same_instant)
    assert max(same_instant) + ROWS_MAX <= new_batch_ulid(wall_ns + 1_000_000)
