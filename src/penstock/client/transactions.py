"""Transactions: what is published, settled and committed in a block, all of it or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from penstock.client.arguments import Messages, Value
from penstock.client.base import AsyncCalls, BaseClient, SyncCalls
from penstock.client.lease_keeping import KeptLeases, LeaseThread, keep_on_loop
from penstock.client.link import Link
from penstock.client.stream_reader import StreamReader
from penstock.client.streams import AsyncStream, Stream
from penstock.client.transaction_contents import Settleable, StagedResult, TransactionContents
from penstock.client.waiting import Steps, run, run_async
from penstock.durations import Duration, Moment
from penstock.errors import InvalidInput
from penstock.model import calls
from penstock.model.transactions import StagedOffsets, TransactionOutcome
from penstock.record.batch import HeaderMap, Payload

_PAGE = 1000


class BaseTransaction:
    """What both have: everything but what waits."""

    def __init__(
        self, link: Link, namespace: str, producer: str | None, epochs: dict[str, int]
    ) -> None:
        self._link = link
        self._namespace = namespace
        self._producer = producer
        self._epochs = epochs
        self._contents = TransactionContents(namespace)
        self._streams: list[tuple[StreamReader, StagedOffsets]] = []
        self._is_over = False
        self.outcome: TransactionOutcome | None = None
        """What became of it, once it is committed."""

    @property
    def id(self) -> str:
        """A ULID: by it the transaction can be found later."""
        return self._contents.id

    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        delay: Duration | None = None,
        deliver_at: Moment | None = None,
        partition: int | None = None,
        dedup_id: str | bytes | None = None,
        dedup_window: Duration | None = None,
    ) -> StagedResult:
        """Publish a message when the transaction is committed; the arguments are as with the
        client. What returns tells where it is, once it is there."""
        self._check_open()
        return self._contents.publish(
            topic,
            value,
            key,
            headers,
            priority,
            ttl,
            delay,
            deliver_at,
            partition,
            dedup_id,
            dedup_window,
        )

    def publish_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        delay: Duration | None = None,
        deliver_at: Moment | Sequence[Moment] | None = None,
        partition: int | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        dedup_window: Duration | None = None,
    ) -> StagedResult:
        """Publish many messages when the transaction is committed."""
        self._check_open()
        return self._contents.publish_batch(
            topic,
            messages,
            keys,
            headers,
            priority,
            ttl,
            delay,
            deliver_at,
            partition,
            dedup_ids,
            dedup_window,
        )

    def ack(self, what: Settleable | Sequence[Settleable], *, group: str | None = None) -> None:
        """Messages are done when the transaction is committed: a message, a batch, or several.
        Until then their leases are extended. Receipts need a `group`."""
        self._check_open()
        self._contents.ack(what, group)
        self._hold()

    def nack(
        self,
        what: Settleable | Sequence[Settleable],
        *,
        group: str | None = None,
        delay: Duration | None = None,
        error: str = "",
        retries: int | None = None,
    ) -> None:
        """Give messages back with the transaction, to be tried again after a delay."""
        self._check_open()
        self._contents.nack(what, group, delay, error, retries)
        self._hold()

    def reject(
        self,
        what: Settleable | Sequence[Settleable],
        *,
        group: str | None = None,
        reason: str = "",
    ) -> None:
        """Give messages up with the transaction: straight to the dead letters."""
        self._check_open()
        self._contents.reject(what, group, reason)
        self._hold()

    def _hold(self) -> None:
        """See to it that leases are extended from now on."""
        raise NotImplementedError

    def _stage_commit(self, stream: StreamReader) -> Steps[None]:
        self._check_open()
        offsets = yield from stream.stage_commit_steps()
        if offsets is not None:
            self._streams = [each for each in self._streams if each[0] is not stream]
            self._streams.append((stream, offsets))

    def _begin(self) -> Steps[None]:
        """Take the producer's name, the first time that this client uses it."""
        name = self._producer
        if name is not None and name not in self._epochs:
            call = calls.BeginProducer(namespace=self._namespace, producer=name)
            self._epochs[name] = (yield from self._link.ask(call)).epoch

    def _commit(self) -> Steps[None]:
        self._check_open()
        self._is_over = True
        for _, offsets in self._streams:
            self._contents.commit(offsets)
        if self._contents.is_empty:
            return
        epoch = self._epochs.get(self._producer or "", 0)
        staged = self._contents.transaction(self._producer, epoch)
        self.outcome = yield from self._link.transact(staged)
        self._contents.committed(self.outcome)
        for stream, offsets in self._streams:
            stream.committed_by_transaction(offsets)

    def _check_open(self) -> None:
        if self._is_over:
            raise InvalidInput("this transaction is over: begin another one")


class Transaction(BaseTransaction):
    """A block whose messages, acks and offsets are done together at its end, or, after an
    exception, not at all."""

    def __init__(
        self,
        link: Link,
        namespace: str,
        producer: str | None,
        epochs: dict[str, int],
        leases: LeaseThread,
    ) -> None:
        super().__init__(link, namespace, producer, epochs)
        self._leases = leases
        self._kept: KeptLeases | None = None

    def commit(self, stream: Stream) -> None:
        """Commit what was read of a stream with the transaction: all up to the message that was
        handed out last. The stream is made with `commit_every=None`."""
        run(self._stage_commit(stream))

    def __enter__(self) -> Self:
        run(self._begin())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc is None:
                run(self._commit())
        finally:
            self._is_over = True
            if self._kept is not None:
                self._leases.remove(self._kept)

    def _hold(self) -> None:
        if self._kept is None:
            self._kept = KeptLeases(self._link, self._contents.leases)
            self._leases.add(self._kept)


class AsyncTransaction(BaseTransaction):
    """The same for `async with`."""

    def __init__(
        self, link: Link, namespace: str, producer: str | None, epochs: dict[str, int]
    ) -> None:
        super().__init__(link, namespace, producer, epochs)
        self._keeping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def commit(self, stream: AsyncStream) -> None:
        """Commit what was read of a stream with the transaction: all up to the message that was
        handed out last. The stream is made with `commit_every=None`."""
        await run_async(self._stage_commit(stream))

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await run_async(self._begin())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc is None:
                await run_async(self._commit())
        finally:
            self._is_over = True
            if self._keeping is not None:
                self._keeping.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([self._keeping])

    def _hold(self) -> None:
        if self._keeping is None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._start_keeping)

    def _start_keeping(self) -> None:
        if self._keeping is None and not self._is_over:
            kept = KeptLeases(self._link, self._contents.leases)
            self._keeping = asyncio.create_task(keep_on_loop(kept))


class _TransactionRequests(BaseClient):
    def _page(self, before: int | None, limit: int) -> calls.ListTransactions:
        return calls.ListTransactions(
            namespace=self._namespace, before=before, limit=min(limit, _PAGE)
        )

    def _describe(self, id_: str) -> calls.DescribeTransaction:
        return calls.DescribeTransaction(namespace=self._namespace, id=id_)

    def _listed(self, limit: int) -> Steps[list[TransactionOutcome]]:
        found: list[TransactionOutcome] = []
        before = None
        while len(found) < limit:
            page = yield from self._link.ask(self._page(before, limit - len(found)))
            found += page.transactions
            before = page.next
            if before is None:
                break
        return found


class TransactionCalls(_TransactionRequests, SyncCalls):
    def transaction(self, producer: str | None = None) -> Transaction:
        """Do everything in a `with` block together, or nothing of it.

        What is published, acked and committed by way of the transaction is kept until the end of
        the block, and then done at once. After an exception nothing leaves. If something cannot be
        done, TransactionRefused tells why, and nothing is. `producer` is a name that one client at
        a time holds: the newest. A transaction of one that held it before raises ProducerFenced.
        """
        return Transaction(
            self._link, self._namespace, producer, self._epochs, self._transaction_leases
        )

    def transactions(self, limit: int = 100) -> list[TransactionOutcome]:
        """The last transactions, the newest first: committed ones of 24 hours, and refused ones
        since the broker began."""
        return self._run(self._listed(limit))

    def describe_transaction(self, id: str) -> TransactionOutcome:
        """What became of a transaction. Raises TransactionNotFound."""
        return self._ask(self._describe(id))


class AsyncTransactionCalls(_TransactionRequests, AsyncCalls):
    def transaction(self, producer: str | None = None) -> AsyncTransaction:
        """Do everything in an `async with` block together, or nothing of it.

        What is published, acked and committed by way of the transaction is kept until the end of
        the block, and then done at once. After an exception nothing leaves. If something cannot be
        done, TransactionRefused tells why, and nothing is. `producer` is a name that one client at
        a time holds: the newest. A transaction of one that held it before raises ProducerFenced.
        """
        return AsyncTransaction(self._link, self._namespace, producer, self._epochs)

    def transactions(self, limit: int = 100) -> Coroutine[Any, Any, list[TransactionOutcome]]:
        """The last transactions, the newest first: committed ones of 24 hours, and refused ones
        since the broker began."""
        return self._run(self._listed(limit))

    async def describe_transaction(self, id: str) -> TransactionOutcome:
        """What became of a transaction. Raises TransactionNotFound."""
        return await self._ask(self._describe(id))
