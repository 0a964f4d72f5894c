"""An app at work: receives as many messages as it has hands for, and settles each when it is done.

Each consumer has a task that receives and one that keeps the leases of all that is in hand. A
message is in hand from the receive until its outcome is confirmed, so that it can be extended,
given back or lost at any moment in between, and counts against the concurrency all the time.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock import aio
from penstock.errors import DeliveryError, InvalidInput, PenstockError
from penstock.worker.outcomes import ACKED, Outcome, outcome_of
from penstock.worker.threads import Threads

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.received import AsyncReceivedMessage
    from penstock.worker.app import App, Consumer

_logger = logging.getLogger("penstock.worker")

_POLL_S = 20.0
_PAUSE_S = 0.5
_PAUSE_S_MAX = 30.0
_FATES = {
    "retried": "retried",
    "rejected": "rejected, and is a dead letter",
    "given_up": "given up after {} attempts, and is a dead letter",
}
_AT_ONCE_MAX = 1000  # messages of one receive, settlements of one call


class Runner:
    def __init__(self, app: App, grace_ns: int) -> None:
        self._app = app
        self._grace_s = grace_ns / 1e9

    async def run(self, stop: asyncio.Event | None = None) -> None:
        stopping, hurrying = stop or asyncio.Event(), asyncio.Event()
        app = self._app
        assert app.target is not None
        connecting = aio.connect(
            app.target, namespace=app.namespace, api_key=app.api_key, tls_ca=app.tls_ca
        )
        with _listening(stopping, hurrying):
            async with connecting as ps:
                feeders = [await Feeder.open(ps, app, consumer) for consumer in app.consumers]
                _logger.info("at work on %s: %s", app.target, ", ".join(f.name for f in feeders))
                try:
                    await _until_any_ends([f.feed() for f in feeders], stopping)
                finally:
                    _logger.info("stopping: %d messages in hand", sum(map(len, feeders)))
                    await asyncio.gather(*(f.finish(self._grace_s, hurrying) for f in feeders))
        _logger.info("stopped")


class Feeder:
    """Feeds one handler."""

    def __init__(
        self,
        ps: AsyncClient,
        consumer: Consumer,
        visibility_ns: int,
        retries_max: int | None,
        worker: str,
    ) -> None:
        self.name = consumer.name
        self._ps = ps
        self._consumer = consumer
        self._worker = worker
        self._visibility_s = visibility_ns / 1e9
        self._retries_max = retries_max  # of the topic, as it was when the app started
        self._in_hand: dict[AsyncReceivedMessage, asyncio.Task[None]] = {}
        self._lost: set[AsyncReceivedMessage] = set()
        self._room = asyncio.Semaphore(consumer.concurrency)
        self._threads = Threads(consumer.concurrency, consumer.handler.name)
        self._acks: list[tuple[AsyncReceivedMessage, asyncio.Future[None]]] = []
        self._acking: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, ps: AsyncClient, app: App, consumer: Consumer) -> Feeder:
        """Look at the topic first, so that what cannot work says so before it begins."""
        if app.auto_create:
            await ps.create_topic(consumer.topic, exist_ok=True)
        settings = await ps.describe_topic(consumer.topic)
        retries, allowed = consumer.policy.retries, settings.max_retries
        if retries is not None and allowed is not None and retries > allowed:
            raise InvalidInput(
                f"{consumer.name} wants {retries} retries, but topic {consumer.topic} gives up "
                f"after {allowed}; alter its max_retries, or ask for fewer"
            )
        visibility_ns = consumer.visibility_ns or settings.visibility_ms * 1_000_000
        return cls(ps, consumer, visibility_ns, allowed, app.name)

    def __len__(self) -> int:
        return len(self._in_hand)

    async def feed(self) -> None:
        """Receive and start handlers, for ever."""
        keeper = asyncio.create_task(self._keep_leases())
        pause_s = _PAUSE_S
        try:
            while True:
                room = await self._wait_for_room()
                try:
                    messages = await self._ps.receive(
                        self._consumer.topic,
                        self._consumer.group,
                        room,
                        wait=_POLL_S,
                        visibility=self._visibility_s,
                        consumer=self._worker,
                    )
                    pause_s = _PAUSE_S
                except PenstockError as exc:
                    if not exc.retriable:
                        raise
                    _logger.warning("%s cannot receive, and tries again: %s", self.name, exc)
                    messages = []
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _PAUSE_S_MAX)
                finally:
                    for _ in range(room):
                        self._room.release()
                for message in messages:
                    await self._room.acquire()  # there is room: it was waited for above
                    self._in_hand[message] = asyncio.create_task(self._handle(message))
        finally:
            keeper.cancel()

    async def finish(self, grace_s: float, hurrying: asyncio.Event) -> None:
        """Let what is in hand come to its end; give back what does not in time."""
        keeper = asyncio.create_task(self._keep_leases())
        hurry = asyncio.create_task(hurrying.wait())
        tasks = set(self._in_hand.values())
        if tasks:
            either: list[asyncio.Future[Any]] = [
                asyncio.gather(*tasks, return_exceptions=True),
                hurry,
            ]
            await asyncio.wait(either, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        keeper.cancel()
        hurry.cancel()
        self._threads.close()

    async def _wait_for_room(self) -> int:
        """How many messages can be taken, at least one."""
        await self._room.acquire()
        room = 1
        while not self._room.locked() and room < _AT_ONCE_MAX:
            await self._room.acquire()
            room += 1
        return room

    # One message.

    async def _handle(self, message: AsyncReceivedMessage) -> None:
        try:
            error = await self._call(message)
            policy, count = self._consumer.policy, message.delivery_count
            outcome = outcome_of(error, count, policy, self._retries_max)
            if outcome is not ACKED:
                _logger.warning(
                    "%s: %s %s: %s",
                    self.name,
                    message.id,
                    _FATES[outcome.verdict].format(count),
                    outcome.error,
                    exc_info=error if outcome.verdict != "rejected" else None,
                )
            await self._settle(message, outcome)
        except asyncio.CancelledError:
            if message in self._lost:
                return  # it is not ours to settle: another one may have it already
            # Told to stop, and it took too long. Whoever is next can have it at once.
            await self._settle(message, Outcome(verdict="retried", delay_ns=0, error="given back"))
        finally:
            del self._in_hand[message]
            self._lost.discard(message)
            self._room.release()

    async def _call(self, message: AsyncReceivedMessage) -> BaseException | None:
        handler = self._consumer.handler
        try:
            arguments = handler.arguments(message)
            if handler.is_async:
                await handler.function(**arguments)
            else:
                await self._threads.call(lambda: handler.function(**arguments))
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            return RuntimeError("the handler was cancelled")
        except Exception as exc:  # noqa: BLE001 - whatever it is, it decides what happens next
            return exc
        return None

    async def _settle(self, message: AsyncReceivedMessage, outcome: Outcome) -> None:
        try:
            match outcome.verdict:
                case "acked":
                    await self._ack(message)
                case "retried":
                    await message.nack(delay=outcome.delay_s, error=outcome.error)
                case "given_up":
                    await message.nack(
                        delay=outcome.delay_s,
                        error=outcome.error,
                        retries=self._consumer.policy.retries,
                    )
                case "rejected":
                    await message.reject(outcome.error)
        except DeliveryError as exc:
            _logger.warning("%s: %s came too late: %s", self.name, message.id, exc)
        except PenstockError as exc:
            _logger.error("%s: %s could not be settled: %s", self.name, message.id, exc)

    async def _ack(self, message: AsyncReceivedMessage) -> None:
        """Acks that are ready together go together."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acks.append((message, done))
        if self._acking is None or self._acking.done():
            self._acking = asyncio.create_task(self._ack_all())
        await done

    async def _ack_all(self) -> None:
        while self._acks:
            batch, self._acks = self._acks[:_AT_ONCE_MAX], self._acks[_AT_ONCE_MAX:]
            receipts = [message.receipt for message, _ in batch]
            refused: dict[str, DeliveryError] = {}
            failed: PenstockError | None = None
            try:
                refused = await self._ps.ack(self._consumer.group, receipts)
            except PenstockError as exc:
                failed = exc
            for receipt, (_, done) in zip(receipts, batch, strict=True):
                error = failed or refused.get(receipt)
                if not done.done():
                    done.set_exception(error) if error else done.set_result(None)

    # Leases.

    async def _keep_leases(self) -> None:
        """Hold what is in hand for longer, three times in each lease."""
        while True:
            await asyncio.sleep(self._visibility_s / 3)
            in_hand = {m.receipt: m for m in self._in_hand if m not in self._lost}
            if not in_hand:
                continue
            try:
                refused = await self._ps.extend(
                    self._consumer.group, list(in_hand), visibility=self._visibility_s
                )
            except PenstockError as exc:
                _logger.warning("%s cannot extend its leases: %s", self.name, exc)
                continue
            for receipt, error in refused.items():
                message = in_hand[receipt]
                if message in self._in_hand:  # not settled meanwhile
                    self._lost.add(message)
                    _logger.warning("%s: %s is lost: %s", self.name, message.id, error)
                    if self._consumer.handler.is_async:  # a thread cannot be stopped
                        self._in_hand[message].cancel()


async def _until_any_ends(work: Sequence[Any], stopping: asyncio.Event) -> None:
    """Run all until the event is set, or one fails, which is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    stop = asyncio.create_task(stopping.wait())
    try:
        done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (*tasks, stop):
            task.cancel()
        await asyncio.gather(*tasks, stop, return_exceptions=True)


@contextmanager
def _listening(stopping: asyncio.Event, hurrying: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set the first event, and then the second."""
    loop = asyncio.get_running_loop()

    def told() -> None:
        (hurrying if stopping.is_set() else stopping).set()

    numbers = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(RuntimeError, ValueError, NotImplementedError):  # not in the main thread
            loop.add_signal_handler(number, told)
            numbers.append(number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
