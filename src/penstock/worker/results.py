"""Results: what handlers return goes to a topic, or to a store from which it can be asked for.

A result is a message with the key of the message that it is of, and that one's id in the header
`result-of`. The store is a topic, too: its messages expire, and it also has the errors of messages
that were given up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.durations import Duration, parse_ns
from penstock.errors import HandlerFailed, InvalidInput
from penstock.worker.bodies import decoder
from penstock.worker.jobs import Job
from penstock.worker.publishing import Publication, Publisher

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient, Client
    from penstock.model.topic_options import TopicOptions

STORE_SETTINGS: TopicOptions = {"ttl": "1h", "retention": "2h"}
"""Of the topic of a store, unless the app says otherwise."""
RESULT_OF = "result-of"
ERROR = "error"
_POLL_S = 0.05
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class ResultTopic(msgspec.Struct, frozen=True):
    topic: str
    is_store: bool

    def publish(self, publisher: Publisher, job: Job, result: Any) -> None:
        """What a handler returned, for the message, or for each one of a batch."""
        for message in job.messages:
            if message not in job.errors:
                self._put(publisher, message, result, {})

    async def publish_errors(
        self, publisher: Publisher, messages: Sequence[Any], error: str
    ) -> None:
        """The result of a message that was given up is an error, for those who wait for it."""
        if self.is_store:
            for message in messages:
                await self._put(publisher, message, None, {ERROR: error})

    def _put(
        self, publisher: Publisher, message: Any, result: Any, more: dict[str, str]
    ) -> Publication:
        headers: dict[str, bytes | str | None] = {RESULT_OF: message.id, **more}
        return publisher.publish(self.topic, result, {"key": message.key, "headers": headers})


def find_result(
    ps: Client, topic: str, message_id: str, kind: Any = bytes, *, wait: Duration = 0
) -> Any:
    """The result of a message. Raises HandlerFailed if it was given up, or TimeoutError."""
    search = _ResultSearch(ps.describe_topic(topic).partitions, message_id, kind)
    deadline = time.monotonic() + parse_ns(wait, "wait") / 1e9
    while True:
        for partition, at in search.places():
            search.look(partition, ps.read(topic, partition, at))
        if search.found:
            return search.result()
        if time.monotonic() >= deadline:
            raise TimeoutError(f"there is no result of {message_id} yet")
        time.sleep(_POLL_S)


async def find_result_async(
    ps: AsyncClient, topic: str, message_id: str, kind: Any = bytes, *, wait: Duration = 0
) -> Any:
    """The same on an event loop."""
    search = _ResultSearch((await ps.describe_topic(topic)).partitions, message_id, kind)
    deadline = time.monotonic() + parse_ns(wait, "wait") / 1e9
    while True:
        for partition, at in search.places():
            search.look(partition, await ps.read(topic, partition, at))
        if search.found:
            return search.result()
        if time.monotonic() >= deadline:
            raise TimeoutError(f"there is no result of {message_id} yet")
        await asyncio.sleep(_POLL_S)


class _ResultSearch:
    """Reads on in each partition, from the time at which the message was published."""

    def __init__(self, partitions: int, message_id: str, kind: Any) -> None:
        self._id = message_id.encode()
        self._decode = decoder(kind)
        self._at: dict[int, Any] = dict.fromkeys(range(partitions), _time_of(message_id))
        self.found: Any = None

    def places(self) -> Iterator[tuple[int, Any]]:
        return iter(list(self._at.items()))

    def look(self, partition: int, read: Any) -> None:
        for message in read.messages():
            if message.headers.get(RESULT_OF) == self._id:
                self.found = message
        self._at[partition] = read.next_offset

    def result(self) -> Any:
        error = self.found.headers.get(ERROR)
        if error is not None:
            raise HandlerFailed(error.decode())
        return self._decode(self.found.value)


def _time_of(message_id: str) -> datetime:
    """Ids are ULIDs: the first ten characters are milliseconds."""
    if len(message_id) != 26 or not set(message_id) <= set(_ALPHABET):
        raise InvalidInput(f"{message_id!r:.100} is no id of a message")
    ms = 0
    for letter in message_id[:10]:
        ms = ms * 32 + _ALPHABET.index(letter)
    return datetime.fromtimestamp(ms / 1000, UTC)
