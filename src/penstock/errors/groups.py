"""Stream groups: what a member can be told."""

from __future__ import annotations

from penstock.errors.base import PenstockError


class GroupError(PenstockError):
    """A consumer group cannot do what was asked."""

    code = "group_error"


class GroupNotFound(GroupError):
    """There is no such group."""

    code = "group_not_found"

    def __init__(self, group: str) -> None:
        self.group = group
        super().__init__(f"there is no stream group {group!r}")


class UnknownMember(GroupError):
    """The group does not have this member: it left, was silent too long, or never joined."""

    code = "unknown_member"

    def __init__(self, group: str, member_id: str) -> None:
        self.group, self.member_id = group, member_id
        super().__init__(
            f"group {group} does not have member {member_id}: it left, was silent for longer than "
            "its session, or the broker restarted. Join again."
        )


class StaleGeneration(GroupError):
    """The call is for an earlier generation of the group."""

    code = "stale_generation"

    def __init__(self, group: str, generation: int, since: int, what: str) -> None:
        self.group, self.generation, self.since = group, generation, since
        super().__init__(
            f"generation {generation} of group {group} is not valid for {what}, which counts from "
            f"generation {since}. Heartbeat for the present assignment, or join again."
        )


class StaleCommit(GroupError):
    """A later commit of the same member was stored before; nothing was committed."""

    code = "stale_commit"


class PartitionNotOwned(GroupError):
    """The partition is not assigned to this member."""

    code = "partition_not_owned"

    def __init__(self, group: str, member_id: str, partition: str) -> None:
        self.group, self.member_id, self.partition = group, member_id, partition
        super().__init__(
            f"{partition} is not assigned to member {member_id} of group {group}; nothing was "
            "committed. Heartbeat for the present assignment."
        )


class GroupNotEmpty(GroupError):
    """The group has members; stop them first."""

    code = "group_not_empty"

    def __init__(self, group: str, members: int) -> None:
        self.group, self.members = group, members
        super().__init__(
            f"group {group} has {members} members. Stop them first, or let a member commit."
        )
