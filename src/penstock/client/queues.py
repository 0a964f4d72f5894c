"""Queue mode: receive under a lease, settle, and the groups that do so."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import get_args

from penstock.client.arguments import receipts_by_topic, seconds
from penstock.client.base import AsyncCalls, SyncCalls
from penstock.client.dead_letters import AsyncDeadLetters, DeadLetters
from penstock.client.leases import handed_out
from penstock.client.link import Link
from penstock.client.received import (
    AsyncReceivedBatch,
    AsyncReceivedMessage,
    HeldBatch,
    ReceivedBatch,
    ReceivedMessage,
    extend_of,
    held,
    nack_of,
    reject_of,
)
from penstock.client.waiting import Steps
from penstock.durations import Duration
from penstock.errors import DeliveryError, InvalidInput
from penstock.model import calls
from penstock.model.deliveries import Delivered, GroupStart, Receive, Settle, Verb, poll_seconds
from penstock.model.names import TopicName, group_name
from penstock.model.positions import Position, place_of
from penstock.model.problem import refusal_error
from penstock.model.stats import InFlightMessage

_PAGE = 1000
_STARTS = get_args(GroupStart)
_NO_MORE = None, "", None, "earliest"


def _wanted(
    max_messages: int,
    wait: Duration,
    visibility: Duration | None,
    consumer: str,
    partition: int | None,
    start: GroupStart,
) -> Receive:
    if start not in _STARTS:
        raise InvalidInput(f'start is {start!r:.100}; give "earliest" or "latest"')
    return Receive(
        max_messages=max_messages,
        wait=poll_seconds(wait),
        visibility=None if visibility is None else seconds(visibility, "visibility"),
        consumer=consumer,
        partition=partition,
        start=start,
    )


def _receive_after(
    link: Link, name: TopicName, group: str, wanted: Receive, done: HeldBatch | None
) -> Steps[list[Delivered]]:
    """Ack a batch, and receive the next one: in one request where that is possible."""
    if done is None:
        return (yield from link.receive(name, group, wanted))
    deadline = time.monotonic() + poll_seconds(wanted.wait)
    ack = yield from done._ack_with(link, name, group)
    if ack is None:
        return (yield from link.receive(name, group, wanted))
    done._ack_was_sent = True
    try:
        delivered = yield from link.receive(name, group, _with(wanted, ack))
    except DeliveryError as exc:
        if not exc.repeated:
            done._ack_was_sent = False
            yield from done._settle("ack", Settle())  # it tells what is done from what is lost
            raise
        yield from done._ack_first()
        left_s = max(deadline - time.monotonic(), 0)
        return (yield from link.receive(name, group, _with(wanted, None, left_s)))
    done._acked = True
    return delivered


def _with(wanted: Receive, ack: Settle | None, wait_s: float | None = None) -> Receive:
    return Receive(
        max_messages=wanted.max_messages,
        wait=wanted.wait if wait_s is None else wait_s,
        visibility=wanted.visibility,
        consumer=wanted.consumer,
        partition=wanted.partition,
        start=wanted.start,
        ack=ack,
    )


def _settle_receipts(
    link: Link, verb: Verb, group: str, receipts: str | Sequence[str], how: Settle
) -> Steps[dict[str, DeliveryError]]:
    """By receipt, the errors of those that could not be settled."""
    errors: dict[str, DeliveryError] = {}
    for name, texts in receipts_by_topic(receipts).items():
        named = _naming(how, texts)
        refused, _ = yield from link.settle(verb, name, group_name(group), named)
        for refusal in refused:
            errors[refusal.receipt or ""] = refusal_error(refusal)
    return errors


def _naming(how: Settle, receipts: list[str]) -> Settle:
    fields = {name: getattr(how, name) for name in how.__struct_fields__}
    return type(how)(**{**fields, "receipts": receipts})


def _in_flight(link: Link, name: TopicName, group: str) -> Steps[list[InFlightMessage]]:
    found: list[InFlightMessage] = []
    after: str | None = None
    while True:
        page = yield from link.ask(
            calls.InFlight(
                namespace=name.namespace,
                topic=name.topic,
                group=group_name(group),
                after=after,
                limit=_PAGE,
            )
        )
        found += page.messages
        after = page.next
        if after is None:
            return found


class Queues(SyncCalls):
    def receive(
        self,
        topic: str,
        group: str,
        max_messages: int = 10,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
        start: GroupStart = "earliest",
    ) -> list[ReceivedMessage]:
        """Up to `max_messages` that are ready; waits for the first if there are none.

        A new group begins with the oldest message; with `start="latest"` it gets what is published
        from its first receive on.
        """
        more = visibility, consumer, partition, start
        if more == _NO_MORE and type(topic) is type(group) is str:
            if wait != 0:
                poll_seconds(wait)  # or it raises what it would
            found = self._link.receive_now(self._namespace, topic, group, max_messages)
            if found is not None and (found[1] or wait == 0):
                return held(ReceivedMessage, handed_out(self._link, found[0], group, found[1]))
        wanted = _wanted(max_messages, wait, visibility, consumer, partition, start)
        name = self._name(topic)
        delivered = self._run(self._link.receive(name, group, wanted))
        leases = handed_out(self._link, name, group, delivered, wanted.visibility)
        return held(ReceivedMessage, leases)

    def receive_batch(
        self,
        topic: str,
        group: str,
        max_messages: int = 1000,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
        start: GroupStart = "earliest",
        ack: ReceivedBatch | None = None,
    ) -> ReceivedBatch:
        """As `receive`, but as columns, which is much faster for many messages.

        `ack` is a batch that is done: as if its `ack()` had been called first, but in one request.
        """
        wanted = _wanted(max_messages, wait, visibility, consumer, partition, start)
        name = self._name(topic)
        if not isinstance(ack, ReceivedBatch | None):
            raise InvalidInput(f"ack takes a batch that receive_batch gave, not {ack!r:.100}")
        delivered = self._run(_receive_after(self._link, name, group, wanted, ack))
        return ReceivedBatch(handed_out(self._link, name, group, delivered, wanted.visibility))

    def ack(
        self, group: str, receipts: str | Sequence[str], *, even_if_lost: bool = False
    ) -> dict[str, DeliveryError]:
        """Ack messages by their receipts. Returns what could not be acked, by receipt.

        `even_if_lost`: also those whose lease ran out, whoever holds them by now. Where keys are
        ordered a lost lease stays lost.
        """
        how = Settle(even_if_lost=even_if_lost)
        return self._run(_settle_receipts(self._link, "ack", group, receipts, how))

    def nack(
        self,
        group: str,
        receipts: str | Sequence[str],
        *,
        delay: Duration | None = None,
        error: str = "",
        retries: int | None = None,
    ) -> dict[str, DeliveryError]:
        """Give messages back by their receipts, to be tried again after a delay.

        `retries`: dead letters after so many, if that is fewer than the topic allows.
        """
        how = nack_of(delay, error, retries)
        return self._run(_settle_receipts(self._link, "nack", group, receipts, how))

    def reject(
        self, group: str, receipts: str | Sequence[str], *, reason: str = ""
    ) -> dict[str, DeliveryError]:
        """Give messages up by their receipts: straight to the dead letters."""
        how = reject_of(reason)
        return self._run(_settle_receipts(self._link, "reject", group, receipts, how))

    def extend(
        self, group: str, receipts: str | Sequence[str], *, visibility: Duration
    ) -> dict[str, DeliveryError]:
        """Hold messages for longer, by their receipts."""
        how = extend_of(visibility)
        return self._run(_settle_receipts(self._link, "extend", group, receipts, how))

    def in_flight(self, topic: str, group: str) -> list[InFlightMessage]:
        """Messages that a group was handed and has not settled, and those that wait for a retry."""
        return self._run(_in_flight(self._link, self._name(topic), group))

    def groups(self, topic: str) -> list[str]:
        """The groups that read a topic as a queue."""
        return self._ask(calls.ListGroups(**self._topic(topic))).groups

    def delete_group(self, topic: str, group: str) -> bool:
        """Forget what a group has done; whether there was one of that name."""
        call = calls.DeleteGroup(**self._topic(topic), group=group_name(group))
        return self._ask(call).found

    def seek(self, topic: str, group: str, to: Position, *, partition: int | None = None) -> None:
        """Let a group start again: at "earliest", "latest", an offset, or a time."""
        self._ask(
            calls.Seek(
                **self._topic(topic),
                group=group_name(group),
                to=place_of(to),
                partition=partition,
            )
        )

    def dead_letters(self, topic: str) -> DeadLetters:
        """The dead letters of a topic: list, redrive, purge."""
        return DeadLetters(self._link, self._name(topic))


class AsyncQueues(AsyncCalls):
    async def receive(
        self,
        topic: str,
        group: str,
        max_messages: int = 10,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
        start: GroupStart = "earliest",
    ) -> list[AsyncReceivedMessage]:
        """Up to `max_messages` that are ready; waits for the first if there are none.

        A new group begins with the oldest message; with `start="latest"` it gets what is published
        from its first receive on.
        """
        more = visibility, consumer, partition, start
        if more == _NO_MORE and type(topic) is type(group) is str:
            if wait != 0:
                poll_seconds(wait)  # or it raises what it would
            found = self._link.receive_now(self._namespace, topic, group, max_messages)
            if found is not None and (found[1] or wait == 0):
                return held(AsyncReceivedMessage, handed_out(self._link, found[0], group, found[1]))
        wanted = _wanted(max_messages, wait, visibility, consumer, partition, start)
        name = self._name(topic)
        delivered = await self._run(self._link.receive(name, group, wanted))
        leases = handed_out(self._link, name, group, delivered, wanted.visibility)
        return held(AsyncReceivedMessage, leases)

    async def receive_batch(
        self,
        topic: str,
        group: str,
        max_messages: int = 1000,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
        start: GroupStart = "earliest",
        ack: AsyncReceivedBatch | None = None,
    ) -> AsyncReceivedBatch:
        """As `receive`, but as columns, which is much faster for many messages.

        `ack` is a batch that is done: as if its `ack()` had been called first, but in one request.
        """
        wanted = _wanted(max_messages, wait, visibility, consumer, partition, start)
        name = self._name(topic)
        if not isinstance(ack, AsyncReceivedBatch | None):
            raise InvalidInput(f"ack takes a batch that receive_batch gave, not {ack!r:.100}")
        delivered = await self._run(_receive_after(self._link, name, group, wanted, ack))
        return AsyncReceivedBatch(handed_out(self._link, name, group, delivered, wanted.visibility))

    async def ack(
        self, group: str, receipts: str | Sequence[str], *, even_if_lost: bool = False
    ) -> dict[str, DeliveryError]:
        """Ack messages by their receipts. Returns what could not be acked, by receipt.

        `even_if_lost`: also those whose lease ran out, whoever holds them by now. Where keys are
        ordered a lost lease stays lost.
        """
        how = Settle(even_if_lost=even_if_lost)
        return await self._run(_settle_receipts(self._link, "ack", group, receipts, how))

    async def nack(
        self,
        group: str,
        receipts: str | Sequence[str],
        *,
        delay: Duration | None = None,
        error: str = "",
        retries: int | None = None,
    ) -> dict[str, DeliveryError]:
        """Give messages back by their receipts, to be tried again after a delay.

        `retries`: dead letters after so many, if that is fewer than the topic allows.
        """
        how = nack_of(delay, error, retries)
        return await self._run(_settle_receipts(self._link, "nack", group, receipts, how))

    async def reject(
        self, group: str, receipts: str | Sequence[str], *, reason: str = ""
    ) -> dict[str, DeliveryError]:
        """Give messages up by their receipts: straight to the dead letters."""
        how = reject_of(reason)
        return await self._run(_settle_receipts(self._link, "reject", group, receipts, how))

    async def extend(
        self, group: str, receipts: str | Sequence[str], *, visibility: Duration
    ) -> dict[str, DeliveryError]:
        """Hold messages for longer, by their receipts."""
        how = extend_of(visibility)
        return await self._run(_settle_receipts(self._link, "extend", group, receipts, how))

    async def in_flight(self, topic: str, group: str) -> list[InFlightMessage]:
        """Messages that a group was handed and has not settled, and those that wait for a retry."""
        return await self._run(_in_flight(self._link, self._name(topic), group))

    async def groups(self, topic: str) -> list[str]:
        """The groups that read a topic as a queue."""
        return (await self._ask(calls.ListGroups(**self._topic(topic)))).groups

    async def delete_group(self, topic: str, group: str) -> bool:
        """Forget what a group has done; whether there was one of that name."""
        call = calls.DeleteGroup(**self._topic(topic), group=group_name(group))
        return (await self._ask(call)).found

    async def seek(
        self, topic: str, group: str, to: Position, *, partition: int | None = None
    ) -> None:
        """Let a group start again: at "earliest", "latest", an offset, or a time."""
        await self._ask(
            calls.Seek(
                **self._topic(topic),
                group=group_name(group),
                to=place_of(to),
                partition=partition,
            )
        )

    def dead_letters(self, topic: str) -> AsyncDeadLetters:
        """The dead letters of a topic: list, redrive, purge."""
        return AsyncDeadLetters(self._link, self._name(topic))
