"""Batches from Python lists: what is taken, what it becomes, and what is refused."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InvalidInput
from penstock.record.batch import Batch
from penstock.record.schema import READ_SCHEMA, Priority


def test_values_alone_are_a_batch() -> None:
    batch = Batch.build([b"one", b"two"])
    assert len(batch) == 2
    assert [m.value for m in batch] == [b"one", b"two"]
    first = batch.messages()[0]
    assert (first.key, first.headers, first.expires_at_us) == (None, {}, None)
    assert first.priority == Priority.NORMAL


def test_text_is_stored_as_utf8_and_no_value_stays_none() -> None:
    batch = Batch.build(["größe", b"\xff\x00", None, ""], keys=["schlüssel", None, b"", b"\x00"])
    assert [m.value for m in batch] == ["größe".encode(), b"\xff\x00", None, b""]
    assert [m.key for m in batch] == ["schlüssel".encode(), None, b"", b"\x00"]


def test_headers_are_dicts_of_text_to_bytes_and_keep_their_order() -> None:
    batch = Batch.build(
        ["a", "b", "c"],
        headers=[{"trace": b"\x01", "lang": "de", "empty": None}, None, {}],
    )
    headers = [m.headers for m in batch]
    assert headers == [{"trace": b"\x01", "lang": b"de", "empty": None}, {}, {}]
    assert list(headers[0]) == ["trace", "lang", "empty"]


@pytest.mark.parametrize("one_for_all", ["high", 1, Priority.HIGH])
def test_one_priority_is_for_all_messages(one_for_all: Any) -> None:
    batch = Batch.build(["a", "b"], priority=one_for_all)
    assert [m.priority for m in batch] == [Priority.HIGH, Priority.HIGH]
    assert batch.priorities.to_pylist() == [1, 1]


def test_each_message_can_have_a_priority_by_name_or_number() -> None:
    batch = Batch.build(["a", "b", "c"], priority=["critical", 4, Priority.LOW])
    assert [m.priority for m in batch] == [0, 4, 3]


def test_times_are_microseconds_for_all_messages_or_for_each() -> None:
    assert [m.timestamp_us for m in Batch.build(["a", "b"], timestamps_us=7)] == [7, 7]
    assert [m.timestamp_us for m in Batch.build(["a", "b"], timestamps_us=[8, 9])] == [8, 9]
    stamps = np.array([10, 11])
    assert [m.timestamp_us for m in Batch.build(["a", "b"], timestamps_us=stamps)] == [10, 11]
    expiring = Batch.build(["a", "b"], expires_at_us=[5, None])
    assert [m.expires_at_us for m in expiring] == [5, None]
    assert [m.expires_at_us for m in Batch.build(["a", "b"], expires_at_us=6)] == [6, 6]


def test_times_before_1970_and_far_ahead_are_times_too() -> None:
    stamps = [-1, -(1 << 62), (1 << 62)]
    assert [m.timestamp_us for m in Batch.build(list("abc"), timestamps_us=stamps)] == stamps


@pytest.mark.parametrize("kind", [tuple, np.array, pa.array])
def test_what_is_like_a_list_is_taken(kind: Any) -> None:
    batch = Batch.build(kind([b"a", b"b"]), keys=kind([b"k", b"l"]))
    assert [(m.value, m.key) for m in batch] == [(b"a", b"k"), (b"b", b"l")]


def test_a_batch_without_messages_can_be_built() -> None:
    batch = Batch.build([])
    assert len(batch) == 0
    assert batch.messages() == []
    assert batch.record_batch().num_rows == 0


def test_a_column_that_nobody_asked_for_is_not_stored_but_can_be_read() -> None:
    batch = Batch.build(["a", "b"], keys=["k", None])
    assert batch.data.schema.names == ["key", "value"]
    assert batch.keys.to_pylist() == [b"k", None]
    assert batch.headers.to_pylist() == [None, None]
    assert batch.expires_at.to_pylist() == [None, None]
    assert batch.priorities.to_pylist() == [2, 2]
    assert batch.offsets.to_pylist() == [0, 1]


def test_all_columns_come_in_the_schema_of_readers() -> None:
    batch = Batch.build(["a", "b"], timestamps_us=1_000_000, headers=[{"h": b"1"}, None])
    table = batch.record_batch()
    assert table.schema.equals(READ_SCHEMA)
    assert table.column("timestamp").to_pylist() == [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)] * 2
    assert table.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], None]
    table.validate(full=True)


def test_batches_are_equal_when_their_messages_are() -> None:
    one = Batch.build(["a", "b"], priority="high", timestamps_us=3)
    other = Batch.build([b"a", b"b"], priority=[1, 1], timestamps_us=[3, 3])
    assert one == other
    assert one != Batch.build(["a", "c"], priority="high", timestamps_us=3)
    assert one != ["a", "b"]


def test_a_batch_tells_a_person_what_it_holds() -> None:
    assert repr(Batch.build(["a"], keys=["k"])) == "<Batch of 1 messages: key, value>"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"values": [1]}, "value: .*int"),
        ({"values": [{"a": 1}]}, "value: .*dict"),
        ({"values": b"abc"}, "value: a list with one for each message is wanted, not b'abc'"),
        ({"values": "paid"}, "value: a list with one for each message is wanted, not 'paid'"),
        ({"values": {"a": 1}}, r"not a dict; put it into a list .* such as \[json.dumps\(it\)\]"),
        ({"values": pa.table({"value": [b"a"]})}, "not a Table; give the list of one of its col"),
        ({"values": 5}, "value: one for each message .* not 5"),
        ({"values": ["a", "b"], "keys": "ab"}, "key: a list with one for each message is wanted"),
        ({"values": ["a", "b"], "keys": {"a": 1, "b": 2}}, "key: .* not a dict"),
        ({"values": ["a"], "headers": 5}, "headers: a list with a dict for each, not 5"),
        ({"values": ["\ud800"]}, "value: .*surrogates"),
        ({"values": ["a"], "keys": [7]}, "key: .*int"),
        ({"values": ["a", "b"], "keys": ["k"]}, "2 values, but 1 of key: give one for each"),
        ({"values": ["a"], "keys": ["k", "l"]}, "1 values, but 2 of key"),
        ({"values": ["a"], "headers": []}, "1 values, but 0 of headers"),
        ({"values": ["a"], "headers": [{"h": 1}]}, "headers: .*int"),
        ({"values": ["a"], "headers": [{1: b"x"}]}, "headers: .*int"),
        ({"values": ["a"], "headers": [{None: b"x"}]}, "headers: a header without a name"),
        ({"values": ["a"], "headers": ["h=1"]}, "headers: .*str"),
        ({"values": ["a"], "headers": [[("h", b"1")]]}, "headers: .*list"),
        ({"values": ["a"], "priority": "urgent"}, "priority 'urgent' is not one of critical"),
        ({"values": ["a"], "priority": 5}, "priority 5 is not one of critical"),
        ({"values": ["a"], "priority": [2, 2]}, "1 values, but 2 of priority"),
        ({"values": ["a"], "priority": [9]}, "priority 9 is not one of critical"),
        ({"values": ["a"], "priority": None}, "priority None is not one of critical"),
        ({"values": ["a"], "priority": 2.5}, r"priority 2\.5 is not one of critical"),
        ({"values": ["a"], "timestamps_us": [1, 2]}, "1 values, but 2 of timestamp"),
        ({"values": ["a", "b"], "timestamps_us": [1, None]}, "timestamp: every message needs one"),
        ({"values": ["a"], "timestamps_us": ["now"]}, "timestamp: .*"),
        (
            {"values": ["a"], "timestamps_us": 1.5},
            "timestamp: one for each message or one whole number, not 1.5",
        ),
        ({"values": ["a"], "timestamps_us": 1 << 63}, "timestamp: .*"),
        ({"values": ["a"], "timestamps_us": [1 << 63]}, "timestamp: .*"),
        ({"values": ["a"], "expires_at_us": 1.5}, "expires_at: one for each message or one whole"),
        ({"values": ["a"], "expires_at_us": 1 << 63}, "expires_at: .*"),
        ({"values": ["a"], "expires_at_us": [None, 1]}, "1 values, but 2 of expires_at"),
    ],
    ids=str,
)
def test_what_cannot_be_a_message_is_refused_with_the_reason(
    arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        Batch.build(**arguments)


@pytest.mark.parametrize("priority", [0, 2])
@pytest.mark.parametrize("headers", [{"a": b"1"}, {"a": None, "\u4e2d": b"", "c": b"\xff" * 99}])
@pytest.mark.parametrize("key", [None, b"", b"k"])
@pytest.mark.parametrize("value", [None, b"", b"value"])
def test_one_message_is_made_as_by_build(
    value: bytes | None, key: bytes | None, headers: dict[str, bytes | None], priority: int
) -> None:
    one = Batch.of_one(value, key=key, headers=headers, priority=priority)
    keys = None if key is None else [key]
    built = Batch.build([value], keys=keys, headers=[headers], priority=priority)
    one.data.validate(full=True)
    assert one.data.equals(built.data)
    assert (one.columns, one.priority, one.messages()) == (
        built.columns,
        built.priority,
        built.messages(),
    )
    assert one.payload_bytes == built.payload_bytes
