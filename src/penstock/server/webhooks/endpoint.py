"""One webhook at work: it reads its topic under leases, posts, and settles.

A message that failed keeps its lease until its next attempt: it is extended, again and again if
that is hours away, and the message waits here. So it is neither handed out twice nor counted as a
delivery of the topic. What is more than may wait here is given back to the broker, to come again.
After a crash the leases run out, and the broker delivers the messages again.
"""

from __future__ import annotations

import asyncio
import heapq
import io
import itertools
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp

from penstock.durations import parse_ms
from penstock.errors import DeliveryError, PenstockError, TopicNotFound
from penstock.model import calls
from penstock.model.deliveries import Delivered, Extend, LeasePart, Nack, Rejection, Settle, Verb
from penstock.model.names import TopicName, topic_name
from penstock.model.problem import refusal_error
from penstock.model.settings import TopicSettings
from penstock.model.webhooks import WebhookAttempt, WebhookRecord, webhook_group
from penstock.record.batch import Message
from penstock.record.schema import Priority, new_batch_ulid
from penstock.server.durable import durable
from penstock.server.polls import Poll
from penstock.server.webhooks.addresses import AddressRefused
from penstock.server.webhooks.outcomes import (
    FAILING_S_MAX,
    ReceiverBreaker,
    WebhookOutcome,
    outcome_of,
    pause_before,
)
from penstock.server.webhooks.requests import fits, posted, signatures

if TYPE_CHECKING:
    from penstock.server.door import Door

log = logging.getLogger("penstock.webhooks")

_MARGIN_S = 10.0  # that a lease lasts beyond what is expected
_HOLD_S_MAX = 600.0
"""A lease is extended by no more, so that a message is not lost for a day when the server is."""
_WAITING_MAX = 1000
_WAITING_BYTES_MAX = 16 << 20
_RESPONSE_BYTES = 4096
_POLL_S = 30.0


class _Held(NamedTuple):
    """Messages under a lease, to be posted together."""

    part: LeasePart
    messages: list[Message]
    attempt: int
    """The number of the next one."""
    due_s: float = 0.0
    """When that is, on the monotonic clock."""

    @property
    def nbytes(self) -> int:
        return sum(message.nbytes for message in self.messages)


class WebhookEndpoint:
    def __init__(self, door: Door, session: aiohttp.ClientSession, record: WebhookRecord) -> None:
        self.record = record
        self._door = door
        self._session = session
        self._name: TopicName = topic_name(record.settings.topic, record.namespace)
        self._group = webhook_group(record.name)
        self._timeout_s = parse_ms(record.settings.timeout, "timeout") / 1000
        self._slots = asyncio.Semaphore(record.settings.concurrency)
        self._breaker = ReceiverBreaker()
        self._waiting: list[tuple[float, int, _Held]] = []
        self._waiting_bytes = 0
        self._order = itertools.count()
        self._next_send_s = 0.0
        self._failing_since_s: float | None = None
        self._posting: set[asyncio.Task[None]] = set()
        self._poll: Poll[Any] | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self._slots.acquire()
                try:
                    held = await self._next()
                except BaseException:
                    self._slots.release()
                    raise
                self._breaker.began()
                task = asyncio.create_task(self._work(held))
                self._posting.add(task)
                task.add_done_callback(self._posting.discard)
        except TopicNotFound:
            log.info("webhook %s: its topic %s is gone", self.record.name, self._name)
        finally:
            for task in list(self._posting):
                task.cancel()

    async def test(self) -> None:
        """Post an example, whatever the topic holds."""
        now_ns = time.time_ns()
        message = Message(
            0,
            now_ns // 1000,
            b'{"hello": "world"}',
            None,
            {"type": b"penstock.test"},
            int(Priority.NORMAL),
            None,
            new_batch_ulid(now_ns),
        )
        began_s = time.monotonic()
        self._note(await self._post([message]), [message], 1, began_s, test=True)

    # What is next.

    async def _next(self) -> _Held:
        """What has waited long enough, or else what the topic has."""
        while True:
            await self._until_allowed()
            now_s = time.monotonic()
            if self._waiting and self._waiting[0][0] <= now_s:
                held = heapq.heappop(self._waiting)[2]
                self._waiting_bytes -= held.nbytes
                if held.due_s <= now_s:
                    return held
                await self._hold_on(held, now_s)
                continue
            wait_s = min(self._waiting[0][0] - now_s, _POLL_S) if self._waiting else _POLL_S
            for held in await self._received(wait_s):
                chosen = [each for each in held.messages if fits(self.record.settings.filter, each)]
                if len(chosen) < len(held.messages):
                    await self._ack_unwanted(held, chosen)
                if chosen:
                    return held._replace(part=_part(held.part, chosen), messages=chosen)

    async def _until_allowed(self) -> None:
        """By the receiver's failures, and by the rate that was asked for."""
        while True:
            wait_s = self._breaker.wait_s(time.monotonic())
            if not wait_s:
                break
            await asyncio.sleep(wait_s)
        rate = self.record.settings.rate
        if rate is not None:
            now_s = time.monotonic()
            self._next_send_s = max(self._next_send_s + 1 / rate, now_s)
            await asyncio.sleep(self._next_send_s - now_s)

    async def _received(self, wait_s: float) -> list[_Held]:
        """What one request can carry, or nothing when time is up."""
        batch = self.record.settings.batch
        wanted = 1 if batch is None else batch.max_messages
        visibility_s = self._timeout_s + _MARGIN_S
        await self._door.opened([self._name])

        def take() -> list[Delivered] | None:
            if self._door.stopping or self._door.long_calls.is_busy(self._name):
                return None
            name = "webhook " + self.record.name
            api = self._door.api
            return api.receive(self._name, self._group, wanted, visibility_s, name) or None

        self._poll = self._door.polls.wait(
            [self._name], (self._group, None), take, lambda found: found, wait_s
        )
        delivered = await self._poll.future
        await self._door.committed()
        if delivered is None and self._door.stopping:
            await asyncio.Event().wait()  # until it is cancelled
        return [held for each in delivered or () for held in _held_of(each)]

    # What becomes of it.

    async def _work(self, held: _Held) -> None:
        try:
            began_s = time.monotonic()
            outcome = await self._post(held.messages)
            self._breaker.ended(outcome, time.monotonic())
            self._note(outcome, held.messages, held.attempt, began_s)
            await self._settle_by(outcome, held)
        except DeliveryError as exc:  # the lease is lost: the message comes again
            log.warning("webhook %s: %s", self.record.name, exc)
        except PenstockError as exc:
            log.error("webhook %s: %s", self.record.name, exc)
        finally:
            self._slots.release()

    async def _settle_by(self, outcome: WebhookOutcome, held: _Held) -> None:
        if outcome.verdict == "taken":
            self._failing_since_s = None
            await self._settle("ack", Settle(leases=[held.part]))
            return
        if outcome.verdict == "aborted":
            await self._settle("reject", Rejection(leases=[held.part], reason=outcome.error))
            return
        now_s = time.monotonic()
        self._failing_since_s = self._failing_since_s or now_s
        gone = outcome.verdict == "gone"
        if gone or now_s - self._failing_since_s > FAILING_S_MAX:
            await self._settle("nack", Nack(leases=[held.part], error=outcome.error))
            reason = outcome.error if gone else f"it failed for five days: {outcome.error}"
            await self._door.aside(self._door.api.disable_webhook, self.record, reason)
            return
        pause_s = pause_before(held.attempt, self.record.settings, self._topic_settings())
        if pause_s is None:
            reason = f"{held.attempt} attempts, the last: {outcome.error}"
            await self._settle("reject", Rejection(leases=[held.part], reason=reason))
            return
        await self._retry_later(held, max(pause_s, outcome.retry_after_s), outcome.error)

    async def _retry_later(self, held: _Held, pause_s: float, error: str) -> None:
        full = self._waiting_bytes + held.nbytes > _WAITING_BYTES_MAX and self._waiting
        if full or len(self._waiting) >= _WAITING_MAX:
            await self._settle("nack", Nack(leases=[held.part], delay=pause_s, error=error))
            return
        now_s = time.monotonic()
        await self._hold(held._replace(attempt=held.attempt + 1, due_s=now_s + pause_s), now_s)
        if self._poll is not None:
            self._poll.end()  # it may have to wait for less

    async def _hold_on(self, held: _Held, now_s: float) -> None:
        try:
            await self._hold(held, now_s)
        except DeliveryError as exc:  # the lease is lost: the message comes again
            log.warning("webhook %s: %s", self.record.name, exc)

    async def _hold(self, held: _Held, now_s: float) -> None:
        """Keep messages under their lease until they are due, or the lease has to be extended."""
        pause_s = min(held.due_s - now_s, _HOLD_S_MAX)
        visibility_s = pause_s + self._timeout_s + _MARGIN_S
        await self._settle("extend", Extend(leases=[held.part], visibility=visibility_s))
        heapq.heappush(self._waiting, (now_s + pause_s, next(self._order), held))
        self._waiting_bytes += held.nbytes

    async def _ack_unwanted(self, held: _Held, chosen: Sequence[Message]) -> None:
        kept = {message.offset for message in chosen}
        others = [message for message in held.messages if message.offset not in kept]
        await self._settle("ack", Settle(leases=[_part(held.part, others)]))

    async def _settle(self, verb: Verb, how: Settle) -> None:
        api, door = self._door.api, self._door
        if verb in ("nack", "reject") or door.long_calls.takes_long(self._name):
            settling = await door.long_calls.run(
                self._name, api.settle, verb, self._name, self._group, how
            )
        else:
            settling = api.settle(verb, self._name, self._group, how)
        if settling.refused:
            raise refusal_error(settling.refused[0])
        for future in settling.durable:
            await durable(future)

    def _topic_settings(self) -> TopicSettings:
        asked = calls.DescribeTopic(namespace=self._name.namespace, topic=self._name.topic)
        description: Any = self._door.api.ask(asked)
        settings: TopicSettings = description.settings
        return settings

    # The request.

    async def _post(self, messages: list[Message]) -> WebhookOutcome:
        settings = self.record.settings
        request = posted(settings, self._name.topic, messages)
        now_s = time.time()
        secrets = self.record.secrets(int(now_s * 1e6))
        headers = {
            **request.headers,
            "webhook-id": request.id,
            "webhook-timestamp": str(int(now_s)),
            "webhook-signature": signatures(request.id, int(now_s), request.body, secrets),
        }
        try:
            async with self._session.post(
                settings.url,
                data=io.BytesIO(request.body),  # sent in pieces, with room for others between
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            ) as answer:
                response = await answer.content.read(_RESPONSE_BYTES)
                return outcome_of(answer.status, answer.headers, response, now_s)
        except TimeoutError:
            return WebhookOutcome("failed", None, f"no answer within {self._timeout_s:g} s")
        except AddressRefused as exc:
            return WebhookOutcome("failed", None, str(exc))
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return WebhookOutcome("failed", None, _reason(exc)[:500])

    def _note(
        self,
        outcome: WebhookOutcome,
        messages: list[Message],
        attempt: int,
        began_s: float,
        *,
        test: bool = False,
    ) -> None:
        self._door.api.webhook_attempted(
            self.record,
            WebhookAttempt(
                at_us=time.time_ns() // 1000,
                message_id=messages[0].id,
                attempt=attempt,
                took_ms=round((time.monotonic() - began_s) * 1000),
                status=outcome.status,
                error=outcome.error,
                response=outcome.response,
                messages=len(messages),
                test=test,
            ),
        )


def _reason(exc: BaseException) -> str:
    """Why nothing was posted; below what aiohttp says of it may be that the address is refused."""
    below: BaseException | None = exc
    while below is not None:
        if isinstance(below, AddressRefused):
            return str(below)
        below = below.__cause__ or below.__context__
    return str(exc) or type(exc).__name__


def _held_of(delivered: Delivered) -> list[_Held]:
    messages = [m for batch, _ in delivered.pieces for m in batch.messages()]
    attempt = max(count for _, count in delivered.pieces)
    part = LeasePart(partition=delivered.partition, lease=delivered.nonce)
    return [_Held(_part(part, messages), messages, attempt)]


def _part(part: LeasePart, messages: Sequence[Message]) -> LeasePart:
    """Some messages of a lease."""
    return LeasePart(
        partition=part.partition, lease=part.lease, offsets=[each.offset for each in messages]
    )
