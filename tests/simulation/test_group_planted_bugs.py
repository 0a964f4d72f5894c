"""The checker on trial: each bug planted here breaks a promise, and the world must notice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from penstock.errors import StaleGeneration
from penstock.group import coordinator as coordinator_module
from penstock.group.assignment import TopicPartition, assign_sticky
from penstock.group.coordinator import Claim, Coordinator, Effects
from penstock.group.events import (
    Committed,
    Event,
    OffsetsCommitted,
    StreamGroupState,
    TopicForgotten,
)
from penstock.group.member import AssignmentChange, Member
from penstock.group.session import MemberSession, Standing
from tests.simulation.test_group_world import SECOND, Violation, World

Offsets = Mapping[TopicPartition, int | Committed]


class MovesWithoutRevoking(Coordinator):
    def _settle(self) -> frozenset[str]:
        for partition, member_id in self._target.items():
            claim = self._claims.get(partition)
            if claim is None or claim.member_id != member_id:
                self._claims[partition] = Claim(member_id, self._generation)
        return super()._settle()


class BelievesLateRevocations(Coordinator):
    def revoked(
        self, member_id: str, generation: int, partitions: Iterable[TopicPartition], now_ns: int
    ) -> tuple[Standing, Effects]:
        self._session(member_id, generation)
        return super().revoked(member_id, self._generation, partitions, now_ns)


class LetsAnyMemberCommit(Coordinator):
    def commit(
        self, member_id: str, generation: int, offsets: Offsets, *, number: int | None = None
    ) -> OffsetsCommitted:
        super().commit(member_id, generation, {}, number=number)
        return OffsetsCommitted(self.group, {p: Committed(o) for p, o in offsets.items()})  # type: ignore[arg-type]


class LetsFormerOwnersCommit(Coordinator):
    def commit(
        self, member_id: str, generation: int, offsets: Offsets, *, number: int | None = None
    ) -> OffsetsCommitted:
        self._session(member_id, generation)
        return super().commit(member_id, self._generation, offsets, number=number)


class ForgetsTheOrderOfCommits(Coordinator):
    def commit(
        self, member_id: str, generation: int, offsets: Offsets, *, number: int | None = None
    ) -> OffsetsCommitted:
        return super().commit(member_id, generation, offsets)


class CommitsBeforeTheAppend(Coordinator):
    def commit(
        self, member_id: str, generation: int, offsets: Offsets, *, number: int | None = None
    ) -> OffsetsCommitted:
        event = super().commit(member_id, generation, offsets, number=number)
        self.apply(event)
        return event


class FencesOwnersAtEachRebalance(Coordinator):
    """As protocols do that stop the world: a commit of an earlier generation is refused."""

    def commit(
        self, member_id: str, generation: int, offsets: Offsets, *, number: int | None = None
    ) -> OffsetsCommitted:
        event = super().commit(member_id, generation, offsets, number=number)
        if generation != self._generation:
            raise StaleGeneration(self.group, generation, self._generation, member_id)
        return event


class BeginsAgainAtGenerationZero(Coordinator):
    def __init__(
        self, group: str, topics: Mapping[str, int], state: StreamGroupState | None = None
    ) -> None:
        super().__init__(group, topics, state)
        self._generation = 0


class ReservesNothing(Coordinator):
    def _reserve(self) -> tuple[Event, ...]:
        return ()


class WakesNobody(Coordinator):
    def _settle(self) -> frozenset[str]:
        return super()._settle() & frozenset()


class LetsFormerLivesSpeak(Coordinator):
    def _session(self, member_id: str, generation: int) -> MemberSession:
        if member_id in self._sessions:
            generation = self._generation
        return super()._session(member_id, generation)


class ShortensTheSessionOfTheReplaced(Coordinator):
    def join(self, *args: Any, **options: Any) -> tuple[Standing, Effects]:
        standing, effects = super().join(*args, **options)
        session = self._sessions[standing.member_id]
        session.deadline_ns = 0
        session.renew(args[2])
        return standing, effects


class ExpiresMembersEarly(Coordinator):
    def expire(self, now_ns: int) -> Effects:
        return super().expire(now_ns + 5 * SECOND)


class NeverExpiresMembers(Coordinator):
    def expire(self, now_ns: int) -> Effects:
        return Effects()


class KeepsDeletedPartitions(Coordinator):
    def _exists(self, partition: TopicPartition) -> bool:
        return True


class IgnoresNewPartitions(Coordinator):
    def topics_changed(self, topics: Mapping[str, int]) -> Effects:
        return Effects()


class GivesBackBeforeItIsDone(Member):
    def heard(self, standing: Standing, sent_ns: int) -> AssignmentChange:
        change = super().heard(standing, sent_ns)
        self.to_confirm |= frozenset(standing.revoke)
        return change


class ReadsOnAfterItsSession(Member):
    def heard(self, standing: Standing, sent_ns: int) -> AssignmentChange:
        change = super().heard(standing, sent_ns)
        self.session_end_ns += 10 * SECOND
        return change


class ConfirmsOnce(Member):
    """Takes it that a confirmation arrives."""

    def heard(self, standing: Standing, sent_ns: int) -> AssignmentChange:
        change = super().heard(standing, sent_ns)
        self.to_confirm = frozenset()
        return change


COORDINATORS = [
    MovesWithoutRevoking,
    BelievesLateRevocations,
    LetsAnyMemberCommit,
    LetsFormerOwnersCommit,
    ForgetsTheOrderOfCommits,
    CommitsBeforeTheAppend,
    FencesOwnersAtEachRebalance,
    BeginsAgainAtGenerationZero,
    ReservesNothing,
    WakesNobody,
    LetsFormerLivesSpeak,
    ShortensTheSessionOfTheReplaced,
    ExpiresMembersEarly,
    NeverExpiresMembers,
    KeepsDeletedPartitions,
    IgnoresNewPartitions,
]


@pytest.mark.parametrize("bug", COORDINATORS)
def test_a_bug_in_the_coordinator_is_caught(bug: type[Coordinator]) -> None:
    assert_caught(coordinator=bug)


@pytest.mark.parametrize("bug", [GivesBackBeforeItIsDone, ReadsOnAfterItsSession, ConfirmsOnce])
def test_a_bug_in_the_member_is_caught(bug: type[Member]) -> None:
    assert_caught(member=bug)


def test_an_assignor_that_forgets_the_owners_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(subscriptions: Any, topics: Any, previous: Any) -> dict[TopicPartition, str]:
        return assign_sticky(subscriptions, topics, {})

    monkeypatch.setattr(coordinator_module, "ASSIGNORS", {"sticky": forgetful, "range": forgetful})
    assert_caught()


def test_a_fold_that_keeps_the_offsets_of_deleted_topics_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply = StreamGroupState.apply

    def forgetful(state: StreamGroupState, event: Event) -> None:
        if not isinstance(event, TopicForgotten):
            apply(state, event)

    monkeypatch.setattr(StreamGroupState, "apply", forgetful)
    assert_caught()


def assert_caught(**parts: Any) -> None:
    lives = 100
    for seed in range(lives):
        try:
            World(seed, alike=seed % 2 == 0, **parts).run(steps=4000)
        except Violation as caught:
            print(caught)
            return
    pytest.fail(f"{lives} random lives showed nothing wrong")
