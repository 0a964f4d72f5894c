"""What the coordinator remembers of a member, and what it tells it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.errors import InvalidInput
from penstock.group.assignment import ASSIGNORS, TopicPartition

SESSION_TIMEOUT_MS = 30_000
SESSION_TIMEOUT_MS_MAX = 30 * 60 * 1000  # a dead member keeps its partitions for so long
MEMBER_ID_LENGTH_MAX = 256
_NS_PER_MS = 1_000_000


class Standing(msgspec.Struct, frozen=True):
    """The answer to every call of a member: all that it holds at present, not what changed.

    So a lost answer does no harm: the next one says the same. A partition in neither list is gone.
    """

    member_id: str
    generation: int  # goes into the member's next calls
    assigned: tuple[TopicPartition, ...]  # to be read
    revoke: tuple[TopicPartition, ...]  # to be finished, committed, and given back with `revoked`
    rebalancing: bool  # some partition of the group still waits for its old owner
    session_timeout_ms: int
    heartbeat_interval_ms: int


class MemberSession(msgspec.Struct, kw_only=True):
    """A member, from its join until it leaves, joins again, or is silent for too long."""

    member_id: str
    subscriptions: frozenset[str]
    assignor: str
    session_timeout_ms: int
    since: int = 0  # the generation that its join began; what is older comes from a former life
    deadline_ns: int = 0
    heard_ns: int = 0  # when it last joined, sent a heartbeat or gave partitions back
    last_commit: int = 0  # the highest number that one of its commits had
    assigned: frozenset[TopicPartition] = frozenset()
    revoke: frozenset[TopicPartition] = frozenset()

    def __post_init__(self) -> None:
        if not 0 < len(self.member_id) <= MEMBER_ID_LENGTH_MAX:
            raise InvalidInput(f"a member id has 1 to {MEMBER_ID_LENGTH_MAX} characters")
        if self.assignor not in ASSIGNORS:
            raise InvalidInput(f"assignor is {self.assignor!r}; allowed: {', '.join(ASSIGNORS)}")
        if not 0 < self.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            raise InvalidInput(
                f"session_timeout_ms is {self.session_timeout_ms!r}; "
                f"it must be from 1 to {SESSION_TIMEOUT_MS_MAX}"
            )

    def renew(self, now_ns: int) -> None:
        """Hear from the member. Calls that overtake one another do not shorten the session."""
        self.heard_ns = max(self.heard_ns, now_ns)
        self.deadline_ns = max(self.deadline_ns, now_ns + self.session_timeout_ms * _NS_PER_MS)

    def standing(self, generation: int, rebalancing: bool) -> Standing:
        return Standing(
            member_id=self.member_id,
            generation=generation,
            assigned=tuple(sorted(self.assigned)),
            revoke=tuple(sorted(self.revoke)),
            rebalancing=rebalancing,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=max(1, self.session_timeout_ms // 10),
        )


def topics_of(subscriptions: Iterable[str]) -> frozenset[str]:
    """A subscription as a set, or InvalidInput."""
    if isinstance(subscriptions, str):
        raise InvalidInput(f"subscriptions must be a list of topics, not {subscriptions!r}")
    topics = frozenset(subscriptions)
    if not topics:
        raise InvalidInput("a member subscribes to at least one topic")
    return topics
