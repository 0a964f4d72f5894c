"""The classic groups of all namespaces: their clocks, and the calls that wait for an answer.

What is committed is the broker's: a group of Kafka clients is a stream group without members of its
own, so that its positions and lag are seen at every door.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from penstock.model.names import is_group_name
from penstock.server.kafka.classic import (
    Answers,
    ClassicGroup,
    Joined,
    JoinRequest,
    Synced,
)
from penstock.server.kafka.codes import Code

if TYPE_CHECKING:
    from penstock.server.door import Door

GROUPS_MAX = 10_000
_SECRET_BYTES = 16

Place = tuple[str, str]
"""A namespace, and a group in it."""


class GroupCoordinator:
    """All of it happens on the event loop of the server."""

    def __init__(self, door: Door) -> None:
        self._api = door.api
        self._groups: dict[Place, ClassicGroup] = {}
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._timers: dict[Place, asyncio.TimerHandle] = {}
        self._tokens = count(1)
        self._stopping = False

    def find(self, place: Place) -> ClassicGroup | None:
        return self._groups.get(place)

    def names(self, namespace: str) -> Iterator[str]:
        return (group for where, group in self._groups if where == namespace)

    async def join(self, place: Place, request: JoinRequest, *, needs_id: bool) -> Joined:
        code = self._refusal(place)
        if code is not None:
            return Joined(code, request.member_id)
        group = self._groups.setdefault(place, ClassicGroup())
        token, now_ns = next(self._tokens), self._now()
        new_id = f"{request.client_id or 'member'}-{secrets.token_hex(_SECRET_BYTES)}"
        answers = group.join(request, token, now_ns, new_id, needs_id=needs_id)
        found: Joined = await self._answered(place, group, token, answers)
        return found

    async def sync(
        self,
        place: Place,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],
    ) -> Synced:
        group = self._groups.get(place)
        if group is None:
            return Synced(Code.UNKNOWN_MEMBER_ID)
        token = next(self._tokens)
        answers = group.sync(member_id, instance_id, generation, assignments, token, self._now())
        found: Synced = await self._answered(place, group, token, answers)
        return found

    def heartbeat(
        self, place: Place, member_id: str, instance_id: str | None, generation: int
    ) -> Code:
        group = self._groups.get(place)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation, self._now())

    def leave(self, place: Place, member_id: str, instance_id: str | None) -> Code:
        group = self._groups.get(place)
        if group is None:
            return Code.UNKNOWN_MEMBER_ID
        code, answers = group.leave(member_id, instance_id, self._now())
        self._carry_out(place, group, answers)
        return code

    def may_commit(
        self, place: Place, member_id: str, instance_id: str | None, generation: int
    ) -> Code:
        group = self._groups.get(place) or ClassicGroup()
        return group.may_commit(member_id, instance_id, generation, self._now())

    def stop(self) -> None:
        """The server ends: nobody waits any more, and members look for it again."""
        self._stopping = True
        for future in self._waiting.values():
            if not future.done():
                future.cancel()
        for timer in self._timers.values():
            timer.cancel()

    # Inside.

    def _refusal(self, place: Place) -> Code | None:
        namespace, group = place
        if place in self._groups:
            return None
        if not is_group_name(group):
            return Code.INVALID_GROUP_ID
        if self._stopping or len(self._groups) >= GROUPS_MAX:
            return Code.COORDINATOR_NOT_AVAILABLE
        if self._api.has_stream_members(namespace, group):
            return Code.INCONSISTENT_GROUP_PROTOCOL  # Penstock's own clients are in it
        return None

    async def _answered(
        self, place: Place, group: ClassicGroup, token: int, answers: Answers
    ) -> Any:
        future = self._waiting[token] = asyncio.get_running_loop().create_future()
        try:
            self._carry_out(place, group, answers)
            return await future
        except asyncio.CancelledError:  # the client hung up
            group.gave_up(token, self._now())
            self._plan(place, group)
            raise
        finally:
            del self._waiting[token]

    def _carry_out(self, place: Place, group: ClassicGroup, answers: Answers) -> None:
        for token, answer in answers:
            future = self._waiting.get(token)
            if future is not None and not future.done():
                future.set_result(answer)
        if group.is_forgettable:
            self._groups.pop(place, None)
        self._plan(place, group)

    def _plan(self, place: Place, group: ClassicGroup) -> None:
        """Look at a group when its next deadline comes."""
        timer = self._timers.pop(place, None)
        if timer is not None:
            timer.cancel()
        deadline_ns = group.next_deadline()
        if deadline_ns is not None and not self._stopping:
            wait_s = max(0.0, (deadline_ns - self._now()) / 1e9)
            look = partial(self._look, place, group)
            self._timers[place] = asyncio.get_running_loop().call_later(wait_s, look)

    def _look(self, place: Place, group: ClassicGroup) -> None:
        self._carry_out(place, group, group.expire(self._now()))

    def _now(self) -> int:
        return self._api.clock.monotonic_ns()
