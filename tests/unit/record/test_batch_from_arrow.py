"""Batches from Arrow tables: shared where they fit, cast where they can be, refused otherwise."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InvalidInput
from penstock.record.batch import Batch
from penstock.record.schema import SCHEMA


def buffers(array: pa.Array) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None]


@pytest.mark.parametrize("kind", [pa.table, pa.record_batch])
def test_columns_of_the_right_type_are_shared_not_copied(kind: Any) -> None:
    values = pa.array([b"one", b"two"])
    keys = pa.array([b"k", None])
    batch = Batch.from_arrow(kind({"value": values, "key": keys}))
    assert buffers(batch.values) == buffers(values)
    assert buffers(batch.keys) == buffers(keys)
    assert [(m.key, m.value) for m in batch] == [(b"k", b"one"), (None, b"two")]


def test_a_slice_of_a_table_is_only_its_rows() -> None:
    table = pa.table({"value": [b"a", b"b", b"c", b"d"], "key": [b"1", b"2", b"3", b"4"]})
    batch = Batch.from_arrow(table.slice(1, 2))
    assert [(m.key, m.value) for m in batch] == [(b"2", b"b"), (b"3", b"c")]


def test_a_table_in_chunks_becomes_one_batch() -> None:
    table = pa.concat_tables([pa.table({"value": [b"a", b"b"]}), pa.table({"value": [b"c"]})])
    assert table.column("value").num_chunks == 2
    assert [m.value for m in Batch.from_arrow(table)] == [b"a", b"b", b"c"]


def test_a_table_without_chunks_is_an_empty_batch() -> None:
    table = pa.Table.from_batches([], pa.schema([("value", pa.binary())]))
    assert len(Batch.from_arrow(table)) == 0


def test_all_columns_of_the_schema_are_taken() -> None:
    row = {
        "timestamp": 1,
        "priority": 0,
        "expires_at": 2,
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "h", "value": b"1"}],
    }
    batch = Batch.from_arrow(pa.Table.from_pylist([row], SCHEMA))
    (message,) = batch.messages()
    assert (message.timestamp_us, message.priority, message.expires_at_us) == (1, 0, 2)
    assert (message.key, message.value, message.headers) == (b"k", b"v", {"h": b"1"})


@pytest.mark.parametrize(
    "type_",
    [pa.string(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view()],
    ids=str,
)
def test_text_and_other_kinds_of_bytes_are_cast(type_: pa.DataType) -> None:
    table = pa.table({"value": pa.array(["a", None, "ß"], type_)})
    assert [m.value for m in Batch.from_arrow(table)] == [b"a", None, "ß".encode()]


def test_a_dictionary_of_values_is_spelled_out() -> None:
    table = pa.table({"value": pa.array(["a", "b", "a"]).dictionary_encode()})
    assert [m.value for m in Batch.from_arrow(table)] == [b"a", b"b", b"a"]


@pytest.mark.parametrize(("unit", "factor"), [("s", 10**6), ("ms", 1000), ("us", 1)])
def test_times_in_other_units_and_without_a_zone_are_cast(unit: str, factor: int) -> None:
    stamps = pa.array([1700], pa.timestamp(unit))
    table = pa.table({"value": ["a"], "timestamp": stamps, "expires_at": stamps})
    (message,) = Batch.from_arrow(table).messages()
    assert message.timestamp_us == message.expires_at_us == 1700 * factor


def test_headers_may_be_a_map_or_structs_in_another_order() -> None:
    as_map = pa.array([[("h", b"1")]], pa.map_(pa.string(), pa.binary()))
    swapped = [[{"value": b"1", "key": "h"}]]
    for headers in (as_map, swapped):
        batch = Batch.from_arrow(pa.table({"value": ["a"], "headers": headers}))
        assert batch.messages()[0].headers == {"h": b"1"}


def test_a_column_that_is_null_throughout_is_as_if_it_were_not_there() -> None:
    table = pa.table(
        {"value": ["a"], "priority": pa.nulls(1), "timestamp": pa.nulls(1), "key": pa.nulls(1)}
    )
    batch = Batch.from_arrow(table)
    assert batch.data.schema.names == ["value"]
    assert batch.messages()[0].priority == 2


def test_values_that_are_null_throughout_are_still_messages() -> None:
    batch = Batch.from_arrow(pa.table({"value": pa.nulls(2), "key": ["a", "b"]}))
    assert [(m.key, m.value) for m in batch] == [(b"a", None), (b"b", None)]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"value": ["a"], "topic": ["t"]}, "unknown column 'topic'; a message has timestamp, "),
        ({"value": ["a"], "offset": [7]}, "unknown column 'offset'"),
        ({"value": ["a"], "id": [b"0" * 16]}, "unknown column 'id'"),
        ({"key": ["a"]}, "needs one column 'value'"),
        ({}, "needs one column 'value'"),
        ({"value": [1]}, "column value must be binary"),
        ({"value": ["a"], "priority": ["high"]}, "column priority must be uint8"),
        ({"value": ["a"], "priority": [-1]}, "column priority must be uint8"),
        ({"value": ["a", "b"], "priority": [0, 5]}, "priority 5 is not one of"),
        ({"value": ["a", "b"], "priority": [0, None]}, "priority: every message needs one"),
        ({"value": ["a", "b"], "timestamp": [1, None]}, "timestamp: every message needs one"),
        ({"value": ["a"], "timestamp": ["yesterday"]}, "column timestamp must be"),
        ({"value": ["a"], "headers": [{"h": "1"}]}, "column headers must be"),
        ({"value": ["a"], "headers": [[{"key": None, "value": b"1"}]]}, "column headers must be"),
    ],
    ids=str,
)
def test_a_table_that_cannot_be_messages_is_refused_with_the_reason(
    columns: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        Batch.from_arrow(pa.table(columns))


def test_a_name_that_comes_twice_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], ["value", "value"])
    with pytest.raises(InvalidInput, match="no name twice"):
        Batch.from_arrow(table)


def test_a_time_that_would_lose_its_nanoseconds_is_refused() -> None:
    table = pa.table({"value": ["a"], "timestamp": pa.array([1500], pa.timestamp("ns"))})
    with pytest.raises(InvalidInput, match="would lose data"):
        Batch.from_arrow(table)


def broken_values() -> pa.Array:
    """Offsets that point beyond the data, as only a careless or hostile writer makes them."""
    offsets = pa.py_buffer(np.array([0, 50, 3], np.int32))
    return pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])


def headers_with_broken_text() -> pa.Array:
    name = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    fields = list(SCHEMA.field("headers").type.value_type)
    return pa.ListArray.from_arrays(
        [0, 1], pa.StructArray.from_arrays([name, pa.array([b"x"])], fields=fields)
    )


BROKEN_COLUMNS = {  # made inside the test: showing such an array to a person ends the process
    "value": broken_values,
    "key": broken_values,
    "headers": headers_with_broken_text,
}


@pytest.mark.parametrize("column", BROKEN_COLUMNS)
def test_arrow_data_that_could_never_be_read_again_is_refused(column: str) -> None:
    broken = BROKEN_COLUMNS[column]()
    columns = {"value": pa.array([b"a"] * len(broken)), column: broken}
    with pytest.raises(InvalidInput, match=column):
        Batch.from_arrow(pa.record_batch(columns))
