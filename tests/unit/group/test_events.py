"""What a group writes: the bytes, their fold, and what becomes of bytes that are nothing."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.group.assignment import TopicPartition
from penstock.group.events import (
    Committed,
    Event,
    GenerationsReserved,
    GroupDeleted,
    OffsetsCommitted,
    StreamGroupState,
    TopicForgotten,
    decode,
    decode_snapshot,
    encode,
    encode_snapshot,
    fold,
)

groups = st.sampled_from(["audit", "billing"])
topics = st.sampled_from(["orders", "refunds"])
partitions = st.builds(TopicPartition, topics, st.integers(0, 3))
committed = st.builds(Committed, st.integers(0, 2**63 - 1), st.text(max_size=5))
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(GenerationsReserved, groups, st.integers(0, 2**31 - 1)),
    st.builds(OffsetsCommitted, groups, st.dictionaries(partitions, committed)),
    st.builds(TopicForgotten, groups, topics),
    st.builds(GroupDeleted, groups),
)

ORDERS_0 = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("event", "golden"),
    [
        (GenerationsReserved("g", 1000), b"\x93\xb4generations_reserved\xa1g\xcd\x03\xe8"),
        (
            OffsetsCommitted("g", {ORDERS_0: Committed(7, "m")}),
            b"\x93\xa9committed\xa1g\x81\x92\xa6orders\x00\x92\x07\xa1m",
        ),
        (TopicForgotten("g", "orders"), b"\x93\xaftopic_forgotten\xa1g\xa6orders"),
        (GroupDeleted("g"), b"\x92\xadgroup_deleted\xa1g"),
    ],
)
def test_the_bytes_of_an_event_never_change(event: Event, golden: bytes) -> None:
    assert encode(event) == golden
    assert decode(golden) == event


def test_fields_that_a_later_version_adds_are_passed_over() -> None:
    later = b"\x94\xaftopic_forgotten\xa1g\xa6orders\xa3new"

    assert decode(later) == TopicForgotten("g", "orders")


@given(event=events)
def test_an_event_survives_its_encoding(event: Event) -> None:
    assert decode(encode(event)) == event


@given(history=st.lists(events), cut=st.integers(0, 20), again=st.integers(0, 20))
def test_a_snapshot_and_what_follows_it_make_the_same_state(
    history: list[Event], cut: int, again: int
) -> None:
    snapshot = encode_snapshot(fold({}, history[:cut]))
    # The events after the snapshot, and some before it once more.
    replayed = history[max(0, cut - again) :]

    assert fold(decode_snapshot(snapshot), replayed) == fold({}, history)


def test_a_commit_leaves_other_partitions_alone() -> None:
    one, two = TopicPartition("orders", 1), TopicPartition("orders", 2)
    state = StreamGroupState()

    state.apply(OffsetsCommitted("g", {one: Committed(5), two: Committed(6)}))
    state.apply(OffsetsCommitted("g", {one: Committed(4)}))

    assert state.offsets == {one: Committed(4), two: Committed(6)}


@given(data=st.binary(max_size=64))
def test_bytes_that_are_no_event_are_an_error_with_a_code(data: bytes) -> None:
    for read in (decode, decode_snapshot):
        with contextlib.suppress(InvalidInput):
            read(data)
