"""Jobs: a call of a handler with one message, or with those of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from penstock.worker.handlers import Delivery

if TYPE_CHECKING:
    from penstock.worker.consumers import Consumer
    from penstock.worker.publishing import StagedOutbox


_NO_ERRORS: Mapping[Any, BaseException] = {}  # shared: most jobs have none, and there are many
_NONE: Set[Any] = frozenset()


class Job:
    """What middleware sees. `errors` has the messages that failed by themselves."""

    __slots__ = (
        "_deliveries",
        "attempt",
        "begun",
        "consumer",
        "errors",
        "lost",
        "messages",
        "staged",
        "task",
    )

    def __init__(
        self, consumer: Consumer, messages: Sequence[Any], *, attempt: int | None = None
    ) -> None:
        self.consumer = consumer
        self.messages = messages
        self.attempt = attempt
        """In a stream, which does not count deliveries: how often it was tried, now included."""
        self.errors: Mapping[Any, BaseException] = _NO_ERRORS
        self.lost: Set[Any] = _NONE
        """Messages whose leases are over: they are not ours to settle."""
        self.begun = False
        self.task: asyncio.Task[Any] | None = None
        """The task that calls the handler, while it does."""
        self.staged: StagedOutbox | None = None
        """What a transactional handler has published, to be stored with the ack."""
        self._deliveries: list[Delivery] | None = None

    def fail(self, message: Any, error: BaseException) -> None:
        """A message that cannot be decoded, or for which there is no handler."""
        self.errors = {**self.errors, message: error}

    def lose(self, message: Any) -> None:
        self.lost = self.lost | {message}

    @property
    def handler(self) -> str:
        """The name of the handler."""
        return self.consumer.handler.name

    @property
    def delivery(self) -> Delivery:
        """The message, or the first one of a batch."""
        return self.deliveries[0]

    @property
    def deliveries(self) -> list[Delivery]:
        """The message, or those of a batch, without any that could not be decoded."""
        if self._deliveries is None or len(self._deliveries) + len(self.errors) > len(
            self.messages
        ):
            self._deliveries = [
                self.delivery_of(each) for each in self.messages if each not in self.errors
            ]
        return self._deliveries

    def delivery_of(self, message: Any) -> Delivery:
        consumer = self.consumer
        count = message.delivery_count if self.attempt is None else self.attempt
        return Delivery.of(message, consumer.topic, consumer.group, count)
