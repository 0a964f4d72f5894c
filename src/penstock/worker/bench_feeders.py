"""Feeds the handlers of a test bench: one message after the other, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from penstock.client.client import Client
from penstock.clock import ManualClock
from penstock.errors import PenstockError, TopicNotFound
from penstock.worker.calls import Caller
from penstock.worker.dispatch import HandlerRouter
from penstock.worker.handlers import Delivery
from penstock.worker.jobs import Job
from penstock.worker.outcomes import Outcome, Verdict, outcome_of
from penstock.worker.publishing import StagedOutbox
from penstock.worker.rate_limit import throttles
from penstock.worker.streams import given_up, open_stream, stream_outcome

_EXITS = (SystemExit, KeyboardInterrupt)


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a handler was called with, and what became of it."""

    handler: str
    delivery: Delivery
    verdict: Verdict
    error: BaseException | None = None
    """What the handler raised, or why its body could not be made."""
    result: Any = None
    """What the handler returned."""


class BenchFeeder:
    """The handlers of one topic and queue group."""

    def __init__(
        self, ps: Client, clock: ManualClock, callers: Sequence[Caller], worker: str
    ) -> None:
        consumers = [caller.consumer for caller in callers]
        self._ps = ps
        self._clock = clock
        self._worker = worker
        self._topic, self._group = consumers[0].topic, consumers[0].group
        self._batch = consumers[0].batch
        self._callers = {caller.consumer: caller for caller in callers}
        self._dispatcher = HandlerRouter(consumers)
        self._throttles = {consumer: throttles(consumer.rate_limits) for consumer in consumers}
        self._waiting: list[tuple[int, Job, int]] = []
        """For their rate limits: the moment at which each passes, and how many it has passed."""

    @property
    def next_ns(self) -> int | None:
        """When there is something to do that the broker does not know of."""
        return min((start_ns for start_ns, _, _ in self._waiting), default=None)

    def hold(self, duration_ns: int) -> None:
        """Before the clock is moved on: a worker would extend the leases meanwhile."""
        for _, job, _ in self._waiting:
            for message in job.messages:
                message.extend(visibility=duration_ns / 1e9 + 60)

    async def run_ready(self) -> list[Handled]:
        """Call the handlers with what is ready."""
        now_ns = self._clock.monotonic_ns()
        due = [(job, passed) for start_ns, job, passed in self._waiting if start_ns <= now_ns]
        self._waiting = [each for each in self._waiting if each[0] > now_ns]
        due += [(job, 0) for job in self._receive()]
        ready = [job for job, passed in due if self._may_begin(job, passed, now_ns)]
        handled: list[Handled] = []
        while ready:
            job = ready.pop(0)
            try:
                handled += await self._handle(job)
            except _EXITS:
                for each in ready:
                    self._settle(each, Outcome(verdict="retried", delay_ns=0), each.messages)
                raise
        return handled

    def _may_begin(self, job: Job, passed: int, now_ns: int) -> bool:
        for number, throttle in enumerate(self._throttles[job.consumer][passed:], passed + 1):
            start_ns = throttle.reserve(job.messages[0].key, now_ns, len(job.messages))
            if start_ns > now_ns:
                self._waiting.append((start_ns, job, number))
                return False
        return True

    def _receive(self) -> list[Job]:
        try:
            messages = self._ps.receive(
                self._topic, self._group, self._batch or 1000, consumer=self._worker
            )
        except TopicNotFound:  # a handler has deleted it
            return []
        if self._batch is not None:
            (consumer,) = self._callers
            return [Job(consumer, messages)] if messages else []
        jobs = []
        for message in messages:
            try:
                job = Job(self._dispatcher.find(message), [message])
            except Exception as exc:  # noqa: BLE001 - no handler takes it, or a filter failed
                job = Job(next(iter(self._callers)), [message])
                job.fail(message, exc)
            jobs.append(job)
        return jobs

    async def _handle(self, job: Job) -> list[Handled]:
        result, error = None, job.errors.get(job.messages[0])
        if error is None:
            result, error = await call(self._callers[job.consumer], job, self._clock)
        committed = False
        if error is None and job.staged is not None:
            error = self._commit(job, job.staged)
            committed = error is None
        retries_max = None
        with suppress(TopicNotFound):
            retries_max = self._ps.describe_topic(self._topic).max_retries
        handled = []
        for message in job.messages:
            own = job.errors.get(message, error)
            outcome = outcome_of(own, message.delivery_count, job.consumer.policy, retries_max)
            handled.append(
                Handled(
                    handler=job.handler,
                    delivery=job.delivery_of(message),
                    verdict=outcome.verdict,
                    error=own,
                    result=None if own else result,
                )
            )
            if not (committed and own is None):
                self._settle(job, outcome, [message])
            if outcome.is_dead_letter and job.consumer.results is not None:
                publisher = self._callers[job.consumer].publisher
                await job.consumer.results.publish_errors(publisher, [message], outcome.error)
        if isinstance(error, _EXITS):
            raise error
        return handled

    def _commit(self, job: Job, staged: StagedOutbox) -> BaseException | None:
        """As a worker does: what was published, and the ack, together."""
        done = [message for message in job.messages if message not in job.errors]
        try:
            if done:
                staged.context.run(self._transact, staged, done)
        except PenstockError as exc:
            return exc
        return None

    def _transact(self, staged: StagedOutbox, done: Sequence[Any]) -> None:
        with self._ps.transaction() as tx:
            staged.stage(tx, done)

    def _settle(self, job: Job, outcome: Outcome, messages: Sequence[Any]) -> None:
        for message in messages:
            match outcome.verdict:
                case "acked":
                    message.ack()
                case "rejected":
                    message.reject(outcome.error)
                case "retried":
                    message.nack(delay=outcome.delay_s, error=outcome.error)
                case "given_up":
                    retries = job.consumer.policy.retries
                    message.nack(delay=outcome.delay_s, error=outcome.error, retries=retries)


class BenchStream:
    """A stream handler."""

    def __init__(self, ps: Client, clock: ManualClock, caller: Caller) -> None:
        self._clock = clock
        self._caller = caller
        self._consumer = caller.consumer
        self._throttles = throttles(caller.consumer.rate_limits)
        self._stream = open_stream(ps, caller.consumer)
        self._message: Any = None
        self._attempt = 0
        self._start_ns = 0

    @property
    def next_ns(self) -> int | None:
        return None if self._message is None else self._start_ns

    def hold(self, duration_ns: int) -> None:
        """Nothing is leased."""

    async def run_ready(self) -> list[Handled]:
        handled: list[Handled] = []
        while self._is_ready():
            self._attempt += 1
            job = Job(self._consumer, [self._message], attempt=self._attempt)
            result, error = await call(self._caller, job, self._clock)
            outcome = stream_outcome(error, self._attempt, self._consumer)
            handled.append(
                Handled(
                    handler=job.handler,
                    delivery=job.delivery,
                    verdict=outcome.verdict,
                    error=error,
                    result=result,
                )
            )
            if isinstance(error, _EXITS):
                raise error
            if outcome.verdict == "given_up":
                raise given_up(self._consumer, outcome) from error
            if outcome.verdict == "retried":
                self._start_ns = self._clock.monotonic_ns() + (outcome.delay_ns or 0)
            else:
                self._message = None
        return handled

    def _is_ready(self) -> bool:
        """Whether there is a message that may begin."""
        now_ns = self._clock.monotonic_ns()
        if self._message is None:
            self._message = self._stream.next(wait=0)
            if self._message is None:
                return False
            self._attempt = 0
            self._start_ns = now_ns
            for throttle in self._throttles:
                self._start_ns = throttle.reserve(self._message.key, self._start_ns)
        return self._start_ns <= now_ns


async def call(caller: Caller, job: Job, clock: ManualClock) -> tuple[Any, BaseException | None]:
    """What the handler returned or raised. Its time is that of the test's clock, too."""
    began_ns = clock.monotonic_ns()
    try:
        result = await caller.call(job)
        if caller.consumer.time_limit is not None:
            caller.consumer.time_limit.check(clock.monotonic_ns() - began_ns)
    except BaseException as exc:  # noqa: BLE001 - whatever it is, it decides what happens next
        return None, exc
    return result, None
