"""A member's own side: what it takes up, gives back, and drops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.group.assignment import TopicPartition
from penstock.group.member import AssignmentChange, Member
from penstock.group.session import Standing

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))
SECOND = 1_000_000_000


def standing(
    generation: int,
    assigned: Sequence[TopicPartition] = (),
    revoke: Sequence[TopicPartition] = (),
) -> Standing:
    return Standing("a", generation, tuple(assigned), tuple(revoke), False, 30_000, 3_000)


@pytest.fixture
def member() -> Member:
    member = Member()
    member.joined(standing(1, [T0, T1]), sent_ns=0)
    return member


def test_a_join_tells_what_to_read_and_when_to_call_again(member: Member) -> None:
    assert member.member_id == "a"
    assert member.owned == {T0, T1}
    assert member.heartbeat_due_ns == 3 * SECOND
    assert member.session_end_ns == 30 * SECOND


def test_a_partition_is_read_no_more_but_held_until_it_is_released(member: Member) -> None:
    change = member.heard(standing(2, [T0], [T1]), 0)

    assert change == AssignmentChange(revoke=frozenset({T1}))
    assert member.owned == {T0}
    assert member.revoking == {T1}
    assert not member.to_confirm

    member.released(frozenset({T1}))
    assert not member.revoking
    assert member.to_confirm == {T1}

    member.heard(standing(2, [T0]), 0)
    assert member.to_confirm == frozenset()


def test_a_confirmation_that_was_not_heard_is_due_again(member: Member) -> None:
    member.heard(standing(2, [T0], [T1]), 0)
    member.released(frozenset({T1}))

    change = member.heard(standing(3, [T0], [T1]), 0)

    assert change == AssignmentChange()
    assert member.to_confirm == {T1}


def test_what_was_never_taken_up_is_confirmed_at_once(member: Member) -> None:
    member.heard(standing(2, [T0, T1], [T2]), 0)

    assert member.to_confirm == {T2}


def test_a_partition_that_comes_back_is_begun_again_only_after_its_release(member: Member) -> None:
    member.heard(standing(2, [T0], [T1]), 0)

    assert member.heard(standing(3, [T0, T1]), 0) == AssignmentChange()
    assert member.owned == {T0}

    member.released(frozenset({T1}))
    assert member.heard(standing(3, [T0, T1]), 0) == AssignmentChange(added=frozenset({T1}))


def test_a_partition_in_neither_list_is_lost(member: Member) -> None:
    assert member.heard(standing(2, [T0]), 0) == AssignmentChange(lost=frozenset({T1}))
    assert member.owned == {T0}


def test_an_answer_that_a_newer_one_overtook_is_ignored(member: Member) -> None:
    member.heard(standing(3, [T0]), 0)

    assert member.heard(standing(2, [T0, T1]), 0) == AssignmentChange()
    assert member.owned == {T0}


def test_session_time_counts_from_the_sending(member: Member) -> None:
    member.heard(standing(2, [T0, T1]), 5 * SECOND)
    member.heard(standing(2, [T0, T1]), 4 * SECOND)

    assert member.session_end_ns == 35 * SECOND


def test_a_member_that_dropped_out_holds_nothing_and_hears_nothing(member: Member) -> None:
    member.heard(standing(2, [T0], [T1]), 0)

    assert member.dropped() == {T0, T1}
    assert member.heard(standing(3, [T0]), 0) == AssignmentChange()
    assert member.owned == frozenset()
    assert member.joined(standing(4, [T2]), 0) == AssignmentChange(added=frozenset({T2}))
