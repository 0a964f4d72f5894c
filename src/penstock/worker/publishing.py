"""Publishing from within an app: in handlers and hooks, async or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, TypeAlias

from penstock.client.client import AsyncClient, Client
from penstock.client.transactions import BaseTransaction
from penstock.errors import TransactionRefused
from penstock.model.published import Delayed, Published
from penstock.worker.bodies import MessageOptions, to_publish

Stored: TypeAlias = Published | Delayed


class Publication(Awaitable[Stored]):
    """A message on its way. In async code `await` it; elsewhere it is stored already."""

    def __init__(self, stored: Stored | asyncio.Task[Stored]) -> None:
        self._stored = stored
        if isinstance(stored, asyncio.Task):
            stored.add_done_callback(_looked_at)

    def done(self) -> bool:
        return not isinstance(self._stored, asyncio.Task) or self._stored.done()

    def result(self) -> Stored:
        """Where the message is, once it is stored; raises what went wrong."""
        return self._stored.result() if isinstance(self._stored, asyncio.Task) else self._stored

    def __await__(self) -> Generator[Any, None, Stored]:
        if isinstance(self._stored, asyncio.Task):
            return (yield from self._stored.__await__())
        return self._stored


class Publisher(Protocol):
    @property
    def owner(self) -> object:
        """The app. One app's handlers may publish by another app, which is not their affair."""

    def publish(self, topic: str, body: object, options: MessageOptions) -> Publication: ...


class LoopPublisher:
    """Publishes on the event loop of a worker. A thread waits for it, a coroutine may."""

    def __init__(self, owner: object, ps: AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self.owner = owner
        self._ps = ps
        self._loop = loop

    def publish(self, topic: str, body: object, options: MessageOptions) -> Publication:
        work = self._ps.publish(topic, **to_publish(body, options))
        if _running_loop() is self._loop:
            return Publication(self._loop.create_task(work))
        return Publication(asyncio.run_coroutine_threadsafe(work, self._loop).result())


class BlockingPublisher:
    """Publishes at once."""

    def __init__(self, owner: object, ps: Client) -> None:
        self.owner = owner
        self._ps = ps

    def publish(self, topic: str, body: object, options: MessageOptions) -> Publication:
        return Publication(self._ps.publish(topic, **to_publish(body, options)))


class Outbox:
    """What one call of a handler publishes. Its message is acked when all of it is stored."""

    __slots__ = ("_publisher", "pending")

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.pending: tuple[Publication, ...] = ()
        """What nobody has awaited yet."""

    @property
    def owner(self) -> object:
        return self._publisher.owner

    def publish(self, topic: str, body: object, options: MessageOptions) -> Publication:
        publication = self._publisher.publish(topic, body, options)
        if not publication.done():
            self.pending += (publication,)
        return publication

    async def flush(self) -> None:
        """Wait for all of it; raises the first error."""
        while self.pending:
            first, *rest = self.pending
            self.pending = tuple(rest)
            await first


class StagedOutbox(Outbox):
    """What one call of a handler publishes together with the ack of its message, in a transaction
    (`transactional=True`): kept until the handler is through."""

    __slots__ = ("context", "messages")

    def __init__(self, publisher: Publisher) -> None:
        super().__init__(publisher)
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.context: Context = copy_context()
        """In which the handler published: what it published belongs to its trace, although it is
        sent when the handler is through."""

    def publish(self, topic: str, body: object, options: MessageOptions) -> Publication:
        self.context = copy_context()
        self.messages.append((topic, to_publish(body, options)))
        return Publication(NOT_STORED_YET)

    def stage(self, tx: BaseTransaction, done: Sequence[Any]) -> None:
        """Have a transaction do it all, and ack these messages."""
        tx.ack(done)
        for topic, arguments in self.messages:
            tx.publish(topic, **arguments)


NOT_STORED_YET = Published(-1, -1, "")
"""What a message of a transaction is told to be before that is committed."""


def is_too_late(refused: TransactionRefused) -> bool:
    """Whether all that is wrong with a transaction is that its messages are not ours any more."""
    return all(reason.item.startswith("settle[") for reason in refused.reasons)


OUTBOX: ContextVar[Outbox | None] = ContextVar("outbox", default=None)
"""That of the handler or hook that runs."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _looked_at(task: asyncio.Task[Stored]) -> None:
    if not task.cancelled():
        task.exception()  # a handler that failed does not ask, and asyncio would complain
