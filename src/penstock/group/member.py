"""A member's own side: what it may read, what it has to give back, and when it must stop.

Pure, like the coordinator, and the same in the broker's process and far from it. The owner of a
`Member` makes the calls (join, heartbeat, revoked), one at a time, and hands over the answers:

- it heartbeats by `heartbeat_due_ns`, or at once when woken, and reads only what is `owned`;
- what an `AssignmentChange` revokes it finishes and commits, then tells `released`, and the
  coordinator by `revoked(member_id, generation, to_confirm)`, until `to_confirm` is empty;
- past `session_end_ns`, and after UnknownMember or StaleGeneration, it drops everything and joins
  again.

Session time is counted from before the call was sent, on the member's own clock. The coordinator
counts from when the call arrived, so a member that is cut off stops before its partitions go on.
"""

from __future__ import annotations

import msgspec

from penstock.group.assignment import TopicPartition
from penstock.group.session import Standing

_NS_PER_MS = 1_000_000


class AssignmentChange(msgspec.Struct, frozen=True):
    """What an answer means for the reader."""

    added: frozenset[TopicPartition] = frozenset()  # begin, at the committed offset
    revoke: frozenset[TopicPartition] = frozenset()  # finish, commit, then `released`
    lost: frozenset[TopicPartition] = frozenset()  # stop at once; no commit would be accepted


class Member:
    def __init__(self, member_id: str | None = None) -> None:
        self.member_id = member_id
        self.generation: int | None = None  # None: not in the group
        self.owned: frozenset[TopicPartition] = frozenset()
        self.revoking: frozenset[TopicPartition] = frozenset()  # told to finish, not yet released
        self.to_confirm: frozenset[TopicPartition] = frozenset()  # asked for, and not held any more
        self.heartbeat_due_ns = 0
        self.session_end_ns = 0

    def joined(self, standing: Standing, sent_ns: int) -> AssignmentChange:
        """The answer to a join. What was held before is gone, so `dropped` comes first."""
        assert not self.owned | self.revoking, "a member joins with empty hands"
        self.member_id, self.generation = standing.member_id, standing.generation
        return self.heard(standing, sent_ns)

    def heard(self, standing: Standing, sent_ns: int) -> AssignmentChange:
        """The answer to any call, sent at `sent_ns`. One that a newer has overtaken is ignored."""
        if self.generation is None or standing.generation < self.generation:
            return AssignmentChange()
        self.generation = standing.generation
        self.heartbeat_due_ns = sent_ns + standing.heartbeat_interval_ms * _NS_PER_MS
        session_ns = standing.session_timeout_ms * _NS_PER_MS
        self.session_end_ns = max(self.session_end_ns, sent_ns + session_ns)
        assigned, revoke = frozenset(standing.assigned), frozenset(standing.revoke)
        held = self.owned | self.revoking
        change = AssignmentChange(
            # What is being finished is not begun again before it is released.
            added=assigned - held,
            revoke=revoke & self.owned,
            lost=held - assigned - revoke,
        )
        self.owned = (self.owned | change.added) - change.revoke - change.lost
        self.revoking = (self.revoking | change.revoke) - change.lost
        self.to_confirm = revoke - self.revoking
        return change

    def released(self, partitions: frozenset[TopicPartition]) -> None:
        """The reader is done with what it was told to finish."""
        self.to_confirm |= self.revoking & partitions
        self.revoking -= partitions

    def dropped(self) -> frozenset[TopicPartition]:
        """The member is out of the group; returns what the reader must stop reading."""
        lost = self.owned | self.revoking
        self.owned = self.revoking = self.to_confirm = frozenset()
        self.generation = None
        return lost
