"""Members of stream groups that are far away: each is told when its heartbeat would bring news."""

from __future__ import annotations

import asyncio

from penstock.broker.broker import Broker
from penstock.server.polls import Poll


class _Member:
    __slots__ = ("generation", "polls", "woken")

    def __init__(self, generation: int, woken: bool) -> None:
        self.generation = generation
        """Of its join: who speaks for an earlier one was replaced."""
        self.woken = woken
        self.polls: set[Poll[object]] = set()

    def end_polls(self) -> None:
        for poll in list(self.polls):
            poll.end()


class Waker:
    """What a group calls, from any thread, when it has something new for a member."""

    def __init__(self, members: Members, group: str, loop: asyncio.AbstractEventLoop) -> None:
        self._members = members
        self._group = group
        self._loop = loop
        self._member_id: str | None = None
        self._fired = False

    def __call__(self) -> None:
        self._fired = True
        if self._member_id is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._members.wake, self._group, self._member_id)

    def joined(self, member_id: str, generation: int) -> None:
        """It has a name now; what fired before that counts too."""
        self._member_id = member_id
        self._members.came(self._group, member_id, generation, woken=self._fired)


class Members:
    """Which members should heartbeat at once, and the fetches of theirs that wait."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._members: dict[tuple[str, str], _Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def waker(self, group: str) -> Waker:
        """For a member that joins."""
        return Waker(self, group, asyncio.get_running_loop())

    def came(self, group: str, member_id: str, generation: int, *, woken: bool) -> None:
        former = self._members.get((group, member_id))
        self._members[group, member_id] = _Member(generation, woken)
        if former is not None:
            former.end_polls()

    def heard(self, group: str, member_id: str) -> None:
        """It heartbeats: what is new after this wakes it again."""
        member = self._members.get((group, member_id))
        if member is not None:
            member.woken = False

    def gone(self, group: str, member_id: str) -> None:
        member = self._members.pop((group, member_id), None)
        if member is not None:
            member.end_polls()

    def is_woken(self, group: str, member_id: str, generation: int) -> bool:
        """One that is not known is: its heartbeat tells it to join again."""
        member = self._members.get((group, member_id))
        return member is None or member.woken or generation < member.generation

    def attend(self, group: str, member_id: str, poll: Poll[object]) -> None:
        """End the poll when the member is woken."""
        member = self._members.get((group, member_id))
        if member is not None:
            member.polls.add(poll)
            poll.future.add_done_callback(lambda _: member.polls.discard(poll))

    def wake(self, group: str, member_id: str) -> None:
        member = self._members.get((group, member_id))
        if member is None:
            return
        member.woken = True
        member.end_polls()
        if not self._is_member(group, member_id):
            del self._members[group, member_id]

    def _is_member(self, group: str, member_id: str) -> bool:
        return self._broker.streams.has_member(group, member_id)
