"""Queue mode far away: messages are taken under a lease, and settled by lease or receipt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.model.names import TopicName, group_name
from penstock.client.arguments import parse_receipts, poll_ns
from penstock.client.base import P, S
from penstock.client.messages import HeldBatch, Leased, held
from penstock.client.remote.asking import JSON, decode, encode
from penstock.client.remote.calls import Calls
from penstock.client.remote.http import Request
from penstock.client.remote.leases import (
    leased_far_away,
    refusal_error,
    settle_options,
    settle_with,
)
from penstock.client.remote.paths import topic_path
from penstock.client.waiting import Steps
from penstock.durations import Duration, parse_ns
from penstock.errors import DeliveryError, InvalidInput
from penstock.wire.columns import COMPACT_TYPE, decode_delivered
from penstock.model.messages import Receive, Refusal, Settle, Settled

_DONE_BY_THE_FIRST = {
    "ack": "already_settled",
    "reject": "already_settled",
    "nack": "lease_lost",
    "extend": "",
}
"""How a second attempt is refused if the first one, whose answer was lost, was carried out."""


class Queues(Calls[S, P]):
    _message: ClassVar[type[Any]]
    _batch: ClassVar[type[Any]]
    """What is received, for threads or for event loops."""

    def ask_receive(
        self,
        topic: str,
        group: str,
        max_messages: int = 10,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
    ) -> Steps[list[Any]]:
        """Up to `max_messages` that are ready; waits for the first if there are none."""
        steps = self._take(topic, group, max_messages, wait, visibility, consumer, partition)
        return held(self._message, (yield from steps))

    def ask_receive_batch(
        self,
        topic: str,
        group: str,
        max_messages: int = 1000,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
        ack: Any = None,
    ) -> Steps[Any]:
        """As `receive`, but as columns, which is much faster for many messages.

        `ack` is a batch that is done: as if its `ack()` had been called first, but in one request.
        """
        done = None if ack is None else self._batch.checked(ack)
        steps = self._take(topic, group, max_messages, wait, visibility, consumer, partition, done)
        return self._batch((yield from steps))

    def _take(
        self,
        topic: str,
        group: str,
        max_messages: int,
        wait: Duration,
        visibility: Duration | None,
        consumer: str,
        partition: int | None,
        done: HeldBatch | None = None,
    ) -> Steps[Leased]:
        wait_ns = poll_ns(wait)
        visibility_s = None if visibility is None else parse_ns(visibility, "visibility") / 1e9
        if type(max_messages) is not int:
            raise InvalidInput(f"max_messages is {max_messages!r}; give a whole number")
        name = self._name(topic)
        path = f"{topic_path(name)}/groups/{group_name(group)}/receive"
        ack: Settle | None = None
        if done is not None and not done._acked:
            ack = settle_with(self.ask_settle, name, group, done._leases)
            if ack is None or done._ack_was_sent:  # another one's, or uncertain: by itself
                yield from done._ack_first()
                ack = None
        deadline = time.monotonic() + wait_ns / 1e9
        left_s = wait_ns / 1e9
        while True:
            body = Receive(
                max_messages=max_messages,
                wait=left_s,
                visibility=visibility_s,
                consumer=consumer,
                partition=partition,
                ack=ack,
            )
            request = Request("POST", path, encode(body), JSON, COMPACT_TYPE, wait_s=left_s)
            if done is not None and ack is not None:
                done._ack_was_sent = True
            try:
                reply = yield from self._asking.ask(request)
            except DeliveryError as exc:
                if done is None or ack is None:
                    raise
                if not exc.repeated:
                    done._ack_was_sent = False
                    yield from done._ack()  # by itself it tells what is done from what is lost
                    raise
                yield from done._ack_first()
                ack, left_s = None, max(deadline - time.monotonic(), 0)
                continue
            if done is not None:
                done._acked, ack = True, None
            delivered = decode_delivered(reply.body, reply.pieces)
            left_s = deadline - time.monotonic()
            if delivered or left_s <= 0:
                return leased_far_away(self.ask_settle, name, group, delivered)
            # The server was told to stop, and answered early: there may be another one soon.

    def ask_settle(
        self, verb: str, name: TopicName, group: str, body: dict[str, Any], repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]:
        """Settle messages of a topic; those that could not be, and whether it was asked twice.

        `repeated`: this was asked before, and may have been done.
        """
        path = f"{topic_path(name)}/groups/{group_name(group)}/{verb}"
        request = Request("POST", path, encode(body), JSON)
        reply, again = yield from self._asking.ask_again(request)
        refused = decode(reply, Settled).refused
        if (again or repeated) and refused:
            refused = [each for each in refused if each.code != _DONE_BY_THE_FIRST[verb]]
        return refused, again or repeated

    def _settle_receipts(
        self, verb: str, group: str, receipts: str | Sequence[str], **how: Any
    ) -> Steps[dict[str, DeliveryError]]:
        """Settle messages by their receipts; by receipt, the errors of those that could not be."""
        topics: dict[TopicName, list[str]] = {}
        for text, name, _ in parse_receipts(receipts):
            topics.setdefault(name, []).append(text)
        errors: dict[str, DeliveryError] = {}
        for name, texts in topics.items():
            body = {"receipts": texts, **settle_options(verb, how)}
            refused, _ = yield from self.ask_settle(verb, name, group, body)
            for refusal in refused:
                errors[refusal.receipt or ""] = refusal_error(refusal)
        return errors
