"""Members of stream groups that should heartbeat at once, and who waits to hear of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

Callback = Callable[[], None]


class Members:
    """Any thread may call. Callbacks are called without the lock, and must be short."""

    def __init__(self, is_member: Callable[[str, str], bool]) -> None:
        """`is_member`: whether a group still has a member; one that it has not is forgotten."""
        self._is_member = is_member
        self._lock = threading.Lock()
        self._members: dict[tuple[str, str], _Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def waker(self, group: str) -> Waker:
        """For a member that joins: the group calls it when a heartbeat would bring news."""
        return Waker(self, group)

    def joined(self, group: str, member_id: str, generation: int, *, woken: bool) -> None:
        with self._lock:
            former = self._members.get((group, member_id))
            self._members[group, member_id] = _Member(generation, woken)
        if former is not None:
            former.call()

    def heard(self, group: str, member_id: str) -> None:
        """It heartbeats: what is new after this wakes it again."""
        member = self._members.get((group, member_id))
        if member is not None:
            member.woken = False

    def gone(self, group: str, member_id: str) -> None:
        with self._lock:
            member = self._members.pop((group, member_id), None)
        if member is not None:
            member.call()

    def wake(self, group: str, member_id: str) -> None:
        member = self._members.get((group, member_id))
        if member is not None:
            member.woken = True
            member.call()
            if not self._is_member(group, member_id):
                with self._lock:
                    self._members.pop((group, member_id), None)

    def is_woken(self, group: str, member_id: str, generation: int) -> bool:
        """One that is not known is: its heartbeat tells it to join again."""
        member = self._members.get((group, member_id))
        return member is None or member.woken or generation < member.generation

    def on_wake(self, group: str, member_id: str, callback: Callback) -> Callback:
        """Call back when the member is woken; returns how to stop that."""
        with self._lock:
            member = self._members.get((group, member_id))
            if member is None:
                return _nothing
            member.callbacks.add(callback)

        def stop() -> None:
            with self._lock:
                member.callbacks.discard(callback)

        return stop


class _Member:
    def __init__(self, generation: int, woken: bool) -> None:
        self.generation = generation
        self.woken = woken
        self.callbacks: set[Callback] = set()

    def call(self) -> None:
        for callback in list(self.callbacks):
            callback()


class Waker:
    """What a group calls for one member, from whichever thread has news."""

    def __init__(self, members: Members, group: str) -> None:
        self._members = members
        self._group = group
        self._lock = threading.Lock()
        self._member_id: str | None = None
        self._fired = False

    def __call__(self) -> None:
        with self._lock:
            self._fired = True
            member_id = self._member_id
        if member_id is not None:
            self._members.wake(self._group, member_id)

    def joined(self, member_id: str, generation: int) -> None:
        """It has a name now; what fired before that counts too."""
        with self._lock:
            self._member_id = member_id
            self._members.joined(self._group, member_id, generation, woken=self._fired)


def _nothing() -> None:
    pass
