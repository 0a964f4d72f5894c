"""Feeds a stream handler: the messages of its partitions in order, one at a time.

There is no lease and no dead letter in a stream. A message that fails is tried again, after the
backoff, before the next one; one that is rejected is passed over; and when retries are used up the
worker ends with the error, because to go on would break the order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock
from penstock.delivery.backoff import Backoff
from penstock.errors import HandlerFailed, PenstockError
from penstock.worker.calls import Caller
from penstock.worker.jobs import Job
from penstock.worker.outcomes import Outcome, outcome_of
from penstock.worker.rate_limit import throttles

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.worker.consumers import Consumer

_logger = logging.getLogger("penstock.worker")
_PAUSE_S = 1.0
_BACKOFF = Backoff()


def stream_outcome(error: BaseException | None, attempt: int, consumer: Consumer) -> Outcome:
    """As for a queue, with a backoff that is always there."""
    outcome = outcome_of(error, attempt, consumer.policy)
    if outcome.verdict == "retried" and outcome.delay_ns is None:
        delay_ns = _BACKOFF.delay_ms(attempt) * 1_000_000
        return Outcome(verdict="retried", error=outcome.error, delay_ns=delay_ns)
    return outcome


def given_up(consumer: Consumer, outcome: Outcome) -> HandlerFailed:
    return HandlerFailed(f"{consumer.name} cannot go on: {outcome.error}")


def open_stream(ps: Any, consumer: Consumer) -> Any:
    """A member of the group, blocking or not, as the client is."""
    assert consumer.stream is not None
    return ps.stream(
        consumer.topic,
        consumer.group,
        start=consumer.stream.start,
        commit_every=consumer.stream.commit_every,
    )


class StreamFeeder:
    """One member of a stream group."""

    def __init__(
        self,
        ps: AsyncClient,
        caller: Caller,
        clock: Clock,
        on_exit: Callable[[BaseException], None],
    ) -> None:
        self.name = caller.consumer.name
        self._consumer = caller.consumer
        self._ps = ps
        self._caller = caller
        self._clock = clock
        self._on_exit = on_exit
        self._throttles = throttles(caller.consumer.rate_limits)
        self._stopping = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._waiting = False  # for a message
        self._busy = False

    def __len__(self) -> int:
        return int(self._busy)

    async def feed(self) -> None:
        """For ever."""
        self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def finish(self, grace_s: float, hurrying: asyncio.Event) -> None:
        """Let the message in hand come to its end; if it does not in time, it comes again."""
        self._stopping.set()
        if self._reading is not None:
            if self._waiting:
                self._reading.cancel()
            hurry = asyncio.create_task(hurrying.wait())
            await asyncio.wait(
                {self._reading, hurry}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
            )
            self._reading.cancel()
            hurry.cancel()
            await asyncio.gather(self._reading, hurry, return_exceptions=True)
        self._caller.close()

    async def _read(self) -> None:
        stream = open_stream(self._ps, self._consumer)
        async with stream:
            while (message := await self._next(stream)) is not None:
                self._busy = True
                done = await self._handle(message)
                self._busy = False
                if not done:
                    await stream.leave(failed=True)
                    return

    async def _next(self, stream: Any) -> Any:
        """None when it is time to stop. Waits for a server that is away."""
        self._waiting = True
        try:
            while not self._stopping.is_set():
                try:
                    message = await stream.next()
                    if message is not None:
                        return message
                except PenstockError as exc:
                    if not exc.retriable:
                        raise
                    _logger.warning("%s cannot read, and tries again: %s", self.name, exc)
                    await asyncio.sleep(_PAUSE_S)
        except asyncio.CancelledError:  # nothing was handed out: that is what it waited for
            if not self._stopping.is_set():
                raise
        finally:
            self._waiting = False
        return None

    async def _handle(self, message: Any) -> bool:
        """Whether it is done, by whichever attempt."""
        attempt = 0
        while True:
            attempt += 1
            error: BaseException | None = None
            if not await self._has_its_turn(message):
                return False
            try:
                await self._caller.call(Job(self._consumer, [message], attempt=attempt))
            except asyncio.CancelledError:
                raise
            except BaseException as exc:  # noqa: BLE001 - whatever it is, it decides what is next
                error = exc
            outcome = stream_outcome(error, attempt, self._consumer)
            if outcome.verdict == "acked":
                return True
            _logger.warning("%s: %s %s: %s", self.name, message.id, outcome.verdict, outcome.error)
            assert error is not None
            if outcome.verdict == "rejected":
                return True
            if isinstance(error, SystemExit | KeyboardInterrupt):
                self._on_exit(error)
                return False
            if outcome.verdict == "given_up":
                self._on_exit(given_up(self._consumer, outcome))
                return False
            if await self._stopped_within(outcome.delay_s or 0):
                return False

    async def _has_its_turn(self, message: Any) -> bool:
        """Waits for it; False if it is time to stop before."""
        for throttle in self._throttles:
            now_ns = self._clock.monotonic_ns()
            start_ns = throttle.reserve(message.key, now_ns)
            if start_ns > now_ns and await self._stopped_within((start_ns - now_ns) / 1e9):
                return False
        return True

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True
