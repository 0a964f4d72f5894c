"""Stories of a group: joining, moving partitions, dying, committing, coming back."""

from __future__ import annotations

import pytest

from penstock.errors import (
    GroupNotEmpty,
    InvalidInput,
    PartitionNotOwned,
    StaleCommit,
    StaleGeneration,
    UnknownMember,
)
from penstock.group.assignment import TopicPartition
from penstock.group.coordinator import Coordinator, Effects
from penstock.group.events import Committed, GenerationsReserved, StreamGroupState, fold
from penstock.group.session import Standing

SECOND = 1_000_000_000
T0, T1, T2, T3 = (TopicPartition("t", n) for n in range(4))


@pytest.fixture
def group() -> Coordinator:
    return Coordinator("g", {"t": 4})


def join(group: Coordinator, member_id: str, now_ns: int = 0, topic: str = "t") -> Standing:
    standing, effects = group.join(member_id, [topic], now_ns)
    for event in effects.events:
        group.apply(event)
    return standing


def hand_over(group: Coordinator, member_id: str, now_ns: int = 0) -> Effects:
    """A member hears what it has to give back, and does."""
    standing, _ = group.heartbeat(member_id, group.generation, now_ns)
    return group.revoked(member_id, standing.generation, standing.revoke, now_ns)[1]


def pair(group: Coordinator) -> None:
    """Members a and b, with two partitions each."""
    join(group, "a")
    join(group, "b")
    hand_over(group, "a")


def owners(group: Coordinator) -> dict[TopicPartition, str]:
    return {partition: claim.member_id for partition, claim in group.claims.items()}


# Joining and leaving.


def test_the_first_member_gets_everything_at_once(group: Coordinator) -> None:
    standing = join(group, "a")

    assert standing.assigned == (T0, T1, T2, T3)
    assert standing.revoke == ()
    assert (standing.session_timeout_ms, standing.heartbeat_interval_ms) == (30_000, 3_000)
    assert group.phase == "stable"


def test_members_without_a_name_get_different_ones(group: Coordinator) -> None:
    names = {group.join(None, ["t"], 0)[0].member_id for _ in range(5)}

    assert len(names) == len(group.members) == 5


def test_a_name_given_by_the_group_is_never_that_of_another_member(group: Coordinator) -> None:
    join(group, "member-2")

    assert group.join(None, ["t"], 0)[0].member_id != "member-2"
    assert len(group.members) == 2


def test_a_moving_partition_is_revoked_before_it_is_assigned(group: Coordinator) -> None:
    join(group, "a")

    newcomer = join(group, "b")
    assert newcomer.assigned == ()
    assert newcomer.rebalancing

    old, _ = group.heartbeat("a", newcomer.generation, 0)
    assert len(old.assigned) == len(old.revoke) == 2

    old, effects = group.revoked("a", old.generation, old.revoke, 0)
    assert old.revoke == ()
    assert effects.wake == {"b"}
    assert len(group.heartbeat("b", newcomer.generation, 0)[0].assigned) == 2
    assert group.phase == "stable"


def test_only_members_with_something_new_are_woken(group: Coordinator) -> None:
    for name in "abcd":
        join(group, name)
        for member_id in group.members:
            hand_over(group, member_id)
    assert sorted(owners(group).values()) == ["a", "b", "c", "d"]

    # With four partitions for five members, nobody has to give anything to the fifth.
    _, effects = group.join("e", ["t"], 0)
    assert effects.wake == frozenset()

    assert group.leave("d", group.generation).wake == {"d", "e"}


def test_what_does_not_move_stays_assigned_through_every_rebalance(group: Coordinator) -> None:
    pair(group)
    kept = set(group.members["a"].assigned)

    for newcomer in ("c", "d"):
        join(group, newcomer)
        kept &= set(group.heartbeat("a", group.generation, 0)[0].assigned)
        hand_over(group, "a")
        hand_over(group, "b")

    assert len(kept) == 1
    assert kept <= set(group.members["a"].assigned)


def test_a_leaver_hands_over_at_once(group: Coordinator) -> None:
    pair(group)

    effects = group.leave("b", group.generation)

    assert effects.wake == {"a", "b"}
    assert set(owners(group).values()) == {"a"}
    with pytest.raises(UnknownMember):
        group.heartbeat("b", group.generation, 0)


def test_the_newcomer_leaves_before_the_partitions_arrive(group: Coordinator) -> None:
    join(group, "a")
    join(group, "b")

    group.leave("b", group.generation)

    assert group.heartbeat("a", group.generation, 0)[0].assigned == (T0, T1, T2, T3)


def test_an_owner_that_hears_too_late_that_it_may_keep_a_partition_keeps_it(
    group: Coordinator,
) -> None:
    join(group, "a")
    join(group, "b")
    asked, _ = group.heartbeat("a", group.generation, 0)
    group.leave("b", group.generation)

    standing, effects = group.revoked("a", asked.generation, asked.revoke, 0)

    assert standing.assigned == (T0, T1, T2, T3)
    assert effects == Effects()


def test_a_late_copy_of_a_revocation_does_not_take_a_partition_that_came_back(
    group: Coordinator,
) -> None:
    join(group, "a")
    join(group, "b")
    asked, _ = group.heartbeat("a", group.generation, 0)
    group.revoked("a", asked.generation, asked.revoke, 0)
    group.leave("b", group.generation)  # a has everything again, and reads it
    join(group, "c")  # and is asked anew

    group.revoked("a", asked.generation, asked.revoke, 0)

    assert set(owners(group).values()) == {"a"}


def test_a_partition_that_nobody_asked_for_cannot_be_given_back(group: Coordinator) -> None:
    join(group, "a")

    standing, _ = group.revoked("a", group.generation, [T0], 0)

    assert T0 in standing.assigned


def test_who_joins_under_a_members_name_takes_over_from_it(group: Coordinator) -> None:
    pair(group)
    former = group.generation
    held = group.members["a"].assigned

    again = join(group, "a")

    assert frozenset(again.assigned) == held
    for call in (
        lambda: group.heartbeat("a", former, 0),
        lambda: group.revoked("a", former, held, 0),
        lambda: group.leave("a", former),
        lambda: group.commit("a", former, dict.fromkeys(held, 1)),
    ):
        with pytest.raises(StaleGeneration):
            call()


def test_a_member_can_change_its_topics() -> None:
    group = Coordinator("g", {"t": 2, "u": 1})
    join(group, "a")
    join(group, "b", topic="u")

    standing, _ = group.heartbeat("b", group.generation, 0, ["t"])
    assert standing.revoke == (TopicPartition("u", 0),)

    hand_over(group, "b")
    hand_over(group, "a")
    assert sorted(owners(group).values()) == ["a", "b"]


def test_subscribing_to_the_same_topics_begins_no_generation(group: Coordinator) -> None:
    before = join(group, "a").generation

    assert group.heartbeat("a", before, 0, ["t"])[0].generation == before


def test_a_late_heartbeat_does_not_bring_back_former_topics(group: Coordinator) -> None:
    early = join(group, "a").generation
    group.heartbeat("a", early, 0, ["t", "u"])

    standing, effects = group.heartbeat("a", early, 0, ["t"])

    assert group.members["a"].subscriptions == {"t", "u"}
    assert standing.generation > early
    assert effects == Effects()


def test_most_members_decide_on_the_assignor(group: Coordinator) -> None:
    group.join("a", ["t"], 0, assignor="range")
    group.join("b", ["t"], 0, assignor="range")
    join(group, "c")
    for _ in range(2):
        for name in "abc":
            hand_over(group, name)

    assert [owners(group)[TopicPartition("t", n)] for n in range(4)] == ["a", "a", "b", "c"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"member_id": ""},
        {"member_id": "x" * 257},
        {"subscriptions": []},
        {"subscriptions": "orders"},
        {"assignor": "roulette"},
        {"session_timeout_ms": 0},
        {"session_timeout_ms": 1_800_001},
    ],
)
def test_a_join_that_makes_no_sense_changes_nothing(
    group: Coordinator, arguments: dict[str, object]
) -> None:
    with pytest.raises(InvalidInput):
        group.join(**{"member_id": "a", "subscriptions": ["t"], "now_ns": 0, **arguments})  # type: ignore[arg-type]

    assert (group.phase, group.generation) == ("empty", 0)


# Time.


def test_a_silent_member_is_removed_after_its_session_and_not_before(group: Coordinator) -> None:
    pair(group)
    group.heartbeat("a", group.generation, 20 * SECOND)

    assert group.next_deadline() == 30 * SECOND
    assert group.expire(30 * SECOND - 1) == Effects()
    assert group.expire(30 * SECOND).wake == {"a", "b"}
    assert set(owners(group).values()) == {"a"}
    assert group.next_deadline() == 50 * SECOND


def test_an_owner_that_never_gives_back_blocks_the_partition_until_its_session_ends(
    group: Coordinator,
) -> None:
    join(group, "a", 0)
    join(group, "b", 10 * SECOND)
    assert set(owners(group).values()) == {"a"}

    group.expire(30 * SECOND)

    assert set(owners(group).values()) == {"b"}


def test_a_heartbeat_that_was_overtaken_does_not_shorten_the_session(group: Coordinator) -> None:
    generation = join(group, "a").generation
    group.heartbeat("a", generation, 9 * SECOND)
    group.heartbeat("a", generation, 8 * SECOND)

    assert group.next_deadline() == 39 * SECOND


def test_an_empty_group_has_no_deadline(group: Coordinator) -> None:
    assert group.next_deadline() is None
    assert group.expire(10**18) == Effects()


def test_a_successor_does_not_shorten_the_session_of_who_it_replaced(group: Coordinator) -> None:
    join(group, "a", 0)

    # It may be the late join of an earlier process: the member does not know that it is replaced.
    group.join("a", ["t"], 1 * SECOND, session_timeout_ms=1000)

    assert group.next_deadline() == 30 * SECOND


# Topics.


def test_added_partitions_are_shared_out_without_moving_others(group: Coordinator) -> None:
    pair(group)
    before = owners(group)

    effects = group.topics_changed({"t": 6})

    assert effects.wake == {"a", "b"}
    assert sorted(owners(group).values()) == ["a"] * 3 + ["b"] * 3
    assert before.items() <= owners(group).items()


def test_a_topic_that_nobody_reads_changes_nothing(group: Coordinator) -> None:
    generation = join(group, "a").generation

    assert group.topics_changed({"t": 4, "other": 7}) == Effects()
    assert group.generation == generation


def test_a_topic_that_is_deleted_while_it_is_given_back_is_gone() -> None:
    group = Coordinator("g", {"t": 1, "u": 1})
    generation = join(group, "a", topic="u").generation
    assert group.heartbeat("a", generation, 0, ["t"])[0].revoke == (TopicPartition("u", 0),)

    group.topics_changed({"t": 1})

    assert owners(group) == {T0: "a"}


def test_a_subscribed_topic_that_appears_later_is_assigned() -> None:
    group = Coordinator("g", {})
    assert join(group, "a").assigned == ()

    assert group.topics_changed({"t": 1}).wake == {"a"}
    assert group.heartbeat("a", group.generation, 0)[0].assigned == (T0,)


def test_partitions_of_a_deleted_topic_are_gone_from_both_lists(group: Coordinator) -> None:
    generation = join(group, "a").generation
    group.apply(group.commit("a", generation, {T0: 7}))

    assert group.topics_changed({}).wake == {"a"}
    group.apply(group.forget_topic("t"))

    standing, _ = group.heartbeat("a", generation, 0)
    assert (standing.assigned, standing.revoke) == ((), ())
    assert group.committed == {}
    with pytest.raises(PartitionNotOwned):
        group.commit("a", generation, {T0: 8})


# Committing.


def test_a_commit_counts_when_it_is_applied(group: Coordinator) -> None:
    generation = join(group, "a").generation

    event = group.commit("a", generation, {T0: 5, T1: Committed(6, "note")})
    assert group.committed == {}

    group.apply(event)
    assert group.committed == {T0: Committed(5), T1: Committed(6, "note")}


def test_an_owner_commits_through_rebalances_it_has_not_heard_of(group: Coordinator) -> None:
    generation = join(group, "a").generation
    join(group, "b")
    join(group, "c")

    assert group.commit("a", generation, {T0: 5, T1: 5, T2: 5, T3: 5})


def test_what_was_given_back_can_no_longer_be_committed(group: Coordinator) -> None:
    pair(group)
    (given, *_) = group.members["b"].assigned

    with pytest.raises(PartitionNotOwned, match=str(given)):
        group.commit("a", group.generation, {given: 5})


def test_a_commit_with_one_partition_of_another_member_changes_nothing(group: Coordinator) -> None:
    pair(group)

    with pytest.raises(PartitionNotOwned):
        group.commit("a", group.generation, {T0: 1, T1: 1, T2: 1, T3: 1})


def test_a_commit_from_an_earlier_hold_of_the_partition_is_stale(group: Coordinator) -> None:
    early = join(group, "a").generation
    join(group, "b")
    moving = group.heartbeat("a", group.generation, 0)[0].revoke
    hand_over(group, "a")
    group.leave("b", group.generation)  # back to a

    with pytest.raises(StaleGeneration, match=str(moving[0])):
        group.commit("a", early, {moving[0]: 5})
    assert group.commit("a", group.generation, {moving[0]: 5})


def test_a_member_that_was_removed_cannot_commit(group: Coordinator) -> None:
    generation = join(group, "a").generation
    group.expire(30 * SECOND)

    with pytest.raises(UnknownMember):
        group.commit("a", generation, {T0: 5})


def test_a_generation_that_never_was_is_refused(group: Coordinator) -> None:
    join(group, "a")

    with pytest.raises(StaleGeneration):
        group.heartbeat("a", group.generation + 1, 0)


def test_a_late_commit_does_not_undo_a_newer_one(group: Coordinator) -> None:
    generation = join(group, "a").generation
    group.commit("a", generation, {T0: 5}, number=1)
    group.commit("a", generation, {T0: 9}, number=2)

    with pytest.raises(StaleCommit):
        group.commit("a", generation, {T0: 5}, number=1)
    assert group.commit("a", generation, {T0: 9}, number=2)  # its answer was lost, it came again
    assert group.commit("a", generation, {T0: 3}, number=3)  # a reader that went back


@pytest.mark.parametrize("offset", [-1, True, 1.5, "7", 1 << 63])
def test_an_offset_that_is_none_is_refused(group: Coordinator, offset: int) -> None:
    generation = join(group, "a").generation

    with pytest.raises(InvalidInput):
        group.commit("a", generation, {T0: offset})


def test_metadata_has_a_limit(group: Coordinator) -> None:
    generation = join(group, "a").generation

    assert group.commit("a", generation, {T0: Committed(1, "x" * 4096)})
    with pytest.raises(InvalidInput):
        group.commit("a", generation, {T0: Committed(1, "x" * 4097)})


def test_an_operator_sets_offsets_only_while_the_group_is_empty(group: Coordinator) -> None:
    group.apply(group.set_offsets({T0: 42}))
    assert group.committed[T0].offset == 42

    join(group, "a")
    with pytest.raises(GroupNotEmpty):
        group.set_offsets({T0: 0})
    with pytest.raises(GroupNotEmpty):
        group.delete()


# Crashes.


def test_after_a_restart_offsets_are_there_and_generations_go_on(group: Coordinator) -> None:
    standing, effects = group.join("a", ["t"], 0)
    history = [*effects.events, group.commit("a", standing.generation, {T0: 5})]

    restarted = Coordinator("g", {"t": 4}, fold({}, history)["g"])

    assert restarted.committed == {T0: Committed(5)}
    with pytest.raises(UnknownMember):
        restarted.heartbeat("a", standing.generation, 0)
    again = join(restarted, "a")
    assert again.generation > standing.generation
    with pytest.raises(StaleGeneration):
        restarted.commit("a", standing.generation, {T0: 4})


def test_generations_are_reserved_in_blocks_and_ahead_of_their_use(group: Coordinator) -> None:
    reserved, written = 0, 0
    for _ in range(3000):
        _, effects = group.join("a", ["t"], 0)
        for event in effects.events:
            assert isinstance(event, GenerationsReserved)
            reserved, written = event.up_to, written + 1
            group.apply(event)
        assert group.generation <= reserved

    assert written < 10


def test_a_reservation_that_could_not_be_written_comes_again(group: Coordinator) -> None:
    _, failed = group.join("a", ["t"], 0)
    _, second = group.join("b", ["t"], 0)

    assert failed.events
    assert second.events


def test_offsets_past_the_end_of_a_shortened_log_are_drawn_back() -> None:
    state = StreamGroupState(offsets={T0: Committed(100, "note"), T1: Committed(100)})
    group = Coordinator("g", {"t": 4}, state)

    event = group.truncated({T0: 90, T1: 100, T2: 5})
    assert event is not None
    group.apply(event)

    assert group.committed == {T0: Committed(90, "note"), T1: Committed(100)}
    assert group.truncated({T0: 90}) is None


def test_a_deleted_group_begins_anew(group: Coordinator) -> None:
    group.apply(group.set_offsets({T0: 42}))

    group.apply(group.delete())

    assert group.committed == {}
