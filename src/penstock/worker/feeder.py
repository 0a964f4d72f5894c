"""Feeds the handlers of one topic and group: receives as many messages as there are hands for.

A job is in hand from the receive until its outcome is confirmed, so that its leases can be
extended, and it can be given back or lost, at any moment in between; it counts against the
concurrency all the time. A slot is a task that calls handlers, one after the other: there are at
most as many as the concurrency, and they are kept, because a task for each message costs more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock
from penstock.errors import DeliveryError, PenstockError, TransactionRefused
from penstock.worker.calls import Caller
from penstock.worker.consumers import Consumer
from penstock.worker.dispatch import HandlerRouter
from penstock.worker.jobs import Job
from penstock.worker.leases import LeaseKeeper
from penstock.worker.outcomes import ACKED, Outcome, outcome_of
from penstock.worker.publishing import StagedOutbox, is_too_late
from penstock.worker.rate_limit import throttles

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.received import AsyncReceivedMessage

_logger = logging.getLogger("penstock.worker")

_POLL_S = 20.0
_PAUSE_S = 0.5
_PAUSE_S_MAX = 30.0
_AT_ONCE_MAX = 1000  # messages of one receive, settlements of one call
_FATES = {
    "retried": "retried",
    "rejected": "rejected, and is a dead letter",
    "given_up": "given up after {} attempts, and is a dead letter",
}
GIVEN_BACK = Outcome(verdict="retried", delay_ns=0, error="given back")


class Feeder:
    def __init__(
        self,
        ps: AsyncClient,
        callers: Sequence[Caller],
        visibility_ns: int,
        retries_max: int | None,
        worker: str,
        clock: Clock,
        on_exit: Callable[[BaseException], None],
    ) -> None:
        """`on_exit` is told when a handler wants the worker to end."""
        consumers = [caller.consumer for caller in callers]
        self.name = " and ".join(consumer.name for consumer in consumers)
        self._topic, self._group = consumers[0].topic, consumers[0].group
        self._batch = consumers[0].batch or 1
        self._concurrency = sum(consumer.concurrency for consumer in consumers)
        self._ps = ps
        self._worker = worker
        self._clock = clock
        self._on_exit = on_exit
        self._visibility_s = visibility_ns / 1e9
        self._retries_max = retries_max  # of the topic, as it was when the app started
        self._callers = {caller.consumer: caller for caller in callers}
        self._throttles = {c: throttles(c.rate_limits) for c in consumers if c.rate_limits}
        self._dispatcher = HandlerRouter(consumers)
        self._in_hand: set[Job] = set()
        self._changed = asyncio.Event()  # something is no longer in hand
        self._slots: set[asyncio.Task[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._ready: deque[Job] = deque()
        self._stopping = False
        self._ended_by: list[tuple[Job, BaseException]] = []
        """Settled when nothing is received any more, or it would come back to us at once."""
        self._to_ack: list[Job] = []
        self._acking = False
        keeper = LeaseKeeper(ps, self.name, self._group, self._visibility_s, self._in_hand)
        self._keeping = asyncio.create_task(keeper.keep())

    def __len__(self) -> int:
        return len(self._in_hand)

    async def feed(self) -> None:
        """Receive and start handlers, for ever."""
        while True:
            room = await self._room()
            messages = await self._receive(min(room * self._batch, _AT_ONCE_MAX))
            jobs = list(self._jobs(messages))
            self._in_hand.update(jobs)
            self._ready.extend(jobs)
            for _ in jobs:
                self._wake_a_slot()

    async def finish(self, grace_s: float, hurrying: asyncio.Event) -> None:
        """Let what is in hand come to its end; give back what does not in time."""
        self._stopping = True
        while self._idle:
            self._wake_a_slot()
        while self._ready:
            await self._give_back(self._ready.popleft())
        for job in self._in_hand:
            if not job.begun and job.task is not None:
                job.task.cancel()  # it only waits for its rate limit
        for job, error in self._ended_by:
            await self._settle(job, error)
        hurry = asyncio.create_task(hurrying.wait())
        done = asyncio.create_task(self._nothing_in_hand())
        await asyncio.wait({hurry, done}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for job in self._in_hand:
            if job.task is not None:
                job.task.cancel()
        await done
        hurry.cancel()
        self._keeping.cancel()
        await asyncio.gather(*self._slots, self._keeping, hurry, return_exceptions=True)
        for caller in self._callers.values():
            caller.close()

    # Receiving.

    async def _room(self) -> int:
        """How many jobs can be taken, at least one."""
        while len(self._in_hand) >= self._concurrency:
            self._changed.clear()
            await self._changed.wait()
        return self._concurrency - len(self._in_hand)

    async def _nothing_in_hand(self) -> None:
        while self._in_hand:
            self._changed.clear()
            await self._changed.wait()

    async def _receive(self, messages_max: int) -> list[AsyncReceivedMessage]:
        """Waits for messages, and for a server that is away."""
        pause_s = _PAUSE_S
        while True:
            try:
                return await self._ps.receive(
                    self._topic,
                    self._group,
                    messages_max,
                    wait=_POLL_S,
                    visibility=self._visibility_s,
                    consumer=self._worker,
                )
            except PenstockError as exc:
                if not exc.retriable:
                    raise
                _logger.warning("%s cannot receive, and tries again: %s", self.name, exc)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    def _jobs(self, messages: Sequence[AsyncReceivedMessage]) -> Iterator[Job]:
        if self._batch > 1:
            (consumer,) = self._callers
            for start in range(0, len(messages), self._batch):
                yield Job(consumer, messages[start : start + self._batch])
            return
        for message in messages:
            try:
                yield Job(self._dispatcher.find(message), [message])
            except Exception as exc:  # noqa: BLE001 - no handler takes it, or a filter failed
                first = next(iter(self._callers))
                job = Job(first, [message])
                job.fail(message, exc)
                yield job

    def _wake_a_slot(self) -> None:
        if self._idle:
            self._idle.pop().set_result(None)
        elif len(self._slots) < self._concurrency:
            slot = asyncio.create_task(self._work())
            self._slots.add(slot)
            slot.add_done_callback(self._slots.discard)

    # Handling.

    async def _work(self) -> None:
        """A slot."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        while not self._stopping:
            while self._ready:
                await self._handle(self._ready.popleft(), task)
            if self._to_ack and not self._acking:
                await self._ack_all()
                continue
            if not self._stopping:
                waiter: asyncio.Future[None] = loop.create_future()
                self._idle.append(waiter)
                await waiter

    async def _handle(self, job: Job, task: asyncio.Task[Any]) -> None:
        error: BaseException | None = None
        job.task = task
        try:
            if job.errors and self._batch == 1:
                raise job.errors[job.messages[0]]
            if self._throttles:
                await self._wait_for_turn(job)
            job.begun = True
            await self._callers[job.consumer].call(job)
        except asyncio.CancelledError:
            if task.cancelling():  # told to stop, or the lease is lost; the slot goes on
                while task.uncancel():
                    pass
                job.task = None
                await self._give_back(job)
                return
            error = RuntimeError("the handler was cancelled")
        except BaseException as exc:  # noqa: BLE001 - whatever it is, it decides what happens next
            error = exc
        job.task = None
        if error is None and job.staged is not None:
            error = await self._commit(job, job.staged)
            if error is None:
                return
        if error is None and not job.errors:
            self._to_ack.append(job)
            return
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self._on_exit(error)
            if not self._stopping:
                self._ended_by.append((job, error))
                return
        await self._settle(job, error)

    async def _wait_for_turn(self, job: Job) -> None:
        for throttle in self._throttles.get(job.consumer, ()):
            now_ns = self._clock.monotonic_ns()
            start_ns = throttle.reserve(job.messages[0].key, now_ns, len(job.messages))
            if start_ns > now_ns:
                await asyncio.sleep((start_ns - now_ns) / 1e9)

    # Settling.

    async def _give_back(self, job: Job) -> None:
        """Give messages back, so that another consumer can receive them at once."""
        ours = [message for message in job.messages if message not in job.lost]
        try:
            await self._settle_as(job.consumer, GIVEN_BACK, ours)
        finally:
            self._let_go(job)

    async def _commit(self, job: Job, staged: StagedOutbox) -> BaseException | None:
        """Store what a handler has published, and ack its messages, together; settle those of a
        batch that failed by themselves. Returns what went wrong, if the messages are still ours."""
        done = [m for m in job.messages if m not in job.errors and m not in job.lost]
        try:
            if done:
                await asyncio.create_task(self._transact(staged, done), context=staged.context)
        except TransactionRefused as exc:
            if not is_too_late(exc):
                return exc
            ids = ", ".join(message.id for message in done)
            _logger.warning("%s: %s came too late: %s", self.name, ids, exc)
        except PenstockError as exc:
            return exc
        if job.errors:
            for message in done:
                job.lose(message)  # settled
            await self._settle(job, None)
        else:
            self._let_go(job)
        return None

    async def _transact(self, staged: StagedOutbox, done: Sequence[AsyncReceivedMessage]) -> None:
        async with self._ps.transaction() as tx:
            staged.stage(tx, done)

    async def _settle(self, job: Job, error: BaseException | None) -> None:
        """Each message by what became of it, those of one outcome together."""
        by_outcome: dict[Outcome, list[AsyncReceivedMessage]] = {}
        for message in job.messages:
            if message in job.lost:
                continue  # it is not ours to settle: another one may have it already
            own = job.errors.get(message, error)
            outcome = outcome_of(
                own, message.delivery_count, job.consumer.policy, self._retries_max
            )
            by_outcome.setdefault(outcome, []).append(message)
            if outcome.verdict != "acked":
                self._tell(job, message, outcome, own)
        try:
            for outcome, messages in by_outcome.items():
                await self._settle_as(job.consumer, outcome, messages)
        finally:
            self._let_go(job)

    async def _settle_as(
        self, consumer: Consumer, outcome: Outcome, messages: Sequence[AsyncReceivedMessage]
    ) -> None:
        if not messages:
            return
        receipts = [message.receipt for message in messages]
        try:
            match outcome.verdict:
                case "acked":
                    refused = await self._ps.ack(self._group, receipts)
                case "rejected":
                    refused = await self._ps.reject(self._group, receipts, reason=outcome.error)
                case "retried" | "given_up":
                    refused = await self._ps.nack(
                        self._group,
                        receipts,
                        delay=outcome.delay_s,
                        error=outcome.error,
                        retries=consumer.policy.retries if outcome.verdict == "given_up" else None,
                    )
            self._report(receipts, messages, refused)
            if outcome.is_dead_letter and consumer.results is not None:
                await consumer.results.publish_errors(
                    self._callers[consumer].publisher, messages, outcome.error
                )
        except PenstockError as exc:
            ids = ", ".join(message.id for message in messages)
            _logger.error("%s: %s could not be settled: %s", self.name, ids, exc)

    async def _ack_all(self) -> None:
        """Acks that are ready together go together: one slot does it for all."""
        self._acking = True
        try:
            if len(self._to_ack) < len(self._in_hand):
                await asyncio.sleep(0)  # others may be through in the same moment
            while self._to_ack:
                jobs, self._to_ack = self._to_ack[:_AT_ONCE_MAX], self._to_ack[_AT_ONCE_MAX:]
                ours = [m for job in jobs for m in job.messages if m not in job.lost]
                try:
                    await self._settle_as(jobs[0].consumer, ACKED, ours)
                finally:
                    self._in_hand.difference_update(jobs)
                    self._changed.set()
        finally:
            self._acking = False

    def _let_go(self, job: Job) -> None:
        self._in_hand.discard(job)
        self._changed.set()

    def _report(
        self,
        receipts: Sequence[str],
        messages: Sequence[AsyncReceivedMessage],
        refused: dict[str, DeliveryError],
    ) -> None:
        if refused:
            for receipt, message in zip(receipts, messages, strict=True):
                if error := refused.get(receipt):
                    _logger.warning("%s: %s came too late: %s", self.name, message.id, error)

    def _tell(self, job: Job, message: Any, outcome: Outcome, error: BaseException | None) -> None:
        _logger.warning(
            "%s: %s %s: %s",
            job.consumer.name,
            message.id,
            _FATES[outcome.verdict].format(message.delivery_count),
            outcome.error,
            exc_info=error if outcome.verdict != "rejected" else None,
        )
