"""How far a member of a stream group is: what is read ahead, handed out, done and committed."""

from __future__ import annotations

import pytest

from penstock.client.stream_progress import StreamMessage, StreamProgress, places_among
from penstock.errors import InvalidInput
from penstock.group.assignment import TopicPartition
from penstock.record.batch import Message

LEFT, RIGHT = TopicPartition("orders", 0), TopicPartition("orders", 1)


def reading() -> StreamProgress:
    """Of two partitions, with two messages of each read ahead."""
    reading = StreamProgress("audit")
    for place in (LEFT, RIGHT):
        reading.positions[place] = 12
        reading.read_ahead(
            StreamMessage(Message(offset, 0, b"", None, {}, 2, None, 0), place)
            for offset in (10, 11)
        )
    return reading


def test_a_message_is_done_when_the_next_one_is_asked_for() -> None:
    member = reading()
    assert member.hand_out().offset == 10
    assert member.to_commit({LEFT, RIGHT}) == {}
    member.finish_current()
    assert member.to_commit({LEFT, RIGHT}) == {LEFT: 11}
    assert member.next_offsets == {LEFT: 11, RIGHT: 10}


def test_one_that_failed_is_not_done() -> None:
    member = reading()
    member.hand_out()
    member.fail_current()
    member.finish_current()
    assert member.to_commit({LEFT, RIGHT}) == {}


def test_what_is_committed_is_committed_once_and_only_for_what_is_held() -> None:
    member = reading()
    for _ in range(3):
        member.hand_out()
        member.finish_current()
    assert member.to_commit({RIGHT}) == {RIGHT: 11}
    done = member.to_commit({LEFT, RIGHT})
    assert done == {LEFT: 12, RIGHT: 11}
    member.committed(done)
    assert member.to_commit({LEFT, RIGHT}) == {}
    member.rejoined()
    assert member.to_commit({LEFT, RIGHT}) == done


def test_a_partition_that_moves_away_takes_all_that_is_known_of_it() -> None:
    member = reading()
    member.hand_out()
    member.forget({LEFT})
    member.finish_current()  # what was handed out of it is not ours to call done
    assert member.to_commit({LEFT, RIGHT}) == {}
    assert member.next_offsets == {RIGHT: 10}
    assert member.hand_out().place == RIGHT


def test_moving_on_a_partition_drops_what_was_read_ahead_and_handed_out() -> None:
    member = reading()
    member.hand_out()
    member.forget_all_of([LEFT])
    member.move_to(LEFT, 3)
    member.finish_current()
    assert member.to_commit({LEFT, RIGHT}) == {LEFT: 3}
    assert member.next_offsets == {LEFT: 3, RIGHT: 10}


def test_what_retention_took_is_counted() -> None:
    member = reading()
    member.passed_over(LEFT, 5)
    member.passed_over(RIGHT, 0)
    assert member.missed == 5


def test_a_seek_means_all_partitions_or_some_that_are_assigned() -> None:
    other = TopicPartition("payments", 1)
    assigned = [LEFT, RIGHT, other]
    assert places_among(assigned, None, None) == assigned
    assert places_among(assigned, 1, None) == [RIGHT, other]
    assert places_among(assigned, None, "payments") == [other]
    assert places_among([], None, None) == []
    with pytest.raises(InvalidInput, match="payments/0 is not assigned to this member"):
        places_among(assigned, 0, "payments")
