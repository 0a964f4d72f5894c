"""Where `penstock consume` takes messages from: a queue, or a stream."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Protocol

import msgspec
import pyarrow as pa

from penstock.cli import values
from penstock.cli.writers import stream_table
from penstock.client.client import Client
from penstock.client.received import ReceivedBatch
from penstock.durations import parse_ns
from penstock.errors import DeliveryError


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say."""

    topic: str
    group: str
    follow: bool
    wait_s: float
    count_max: int | None
    batch: int
    visibility: str | None
    partition: int | None
    start: str
    is_remote: bool


class MessageSource(Protocol):
    """Where messages come from. What was not kept is given back."""

    def take(self, count: int, wait_s: float) -> pa.Table | None: ...

    def keep(self) -> None:
        """Everything that was taken is safe elsewhere."""
        ...

    def hold(self) -> None:
        """Everything that was taken is still being worked on."""
        ...

    def give_back(self) -> None: ...


class QueueSource:
    """Messages under leases."""

    def __init__(self, ps: Client, wanted: Wanted) -> None:
        self._ps = ps
        self._wanted = wanted
        visibility = wanted.visibility or f"{ps.describe_topic(wanted.topic).visibility_ms}ms"
        self._visibility = visibility
        self._extend_every_s = parse_ns(visibility, "visibility") / 3e9
        self._held: list[ReceivedBatch] = []
        self._extended = time.monotonic()

    def take(self, count: int, wait_s: float) -> pa.Table | None:
        batch = self._ps.receive_batch(
            self._wanted.topic,
            self._wanted.group,
            count,
            wait=wait_s,
            visibility=self._visibility,
            consumer="penstock consume",
            partition=self._wanted.partition,
        )
        if not len(batch):
            return None
        if not self._held:
            self._extended = time.monotonic()
        self._held.append(batch)
        return batch.table()

    def keep(self) -> None:
        while self._held:
            self._held[0].ack()
            self._held.pop(0)

    def hold(self) -> None:
        if time.monotonic() - self._extended > self._extend_every_s:
            self._extended = time.monotonic()
            for batch in self._held:
                batch.extend(self._visibility)

    def give_back(self) -> None:
        for batch in self._held:
            with suppress(DeliveryError):  # its lease may be over, which comes to the same
                batch.nack(delay=0)
        self._held.clear()


class StreamSource:
    """Messages in order; what was kept is committed."""

    def __init__(self, ps: Client, wanted: Wanted) -> None:
        start = values.position(wanted.start, "from")
        self._stream = ps.stream(wanted.topic, wanted.group, start=start, commit_every=None)

    def take(self, count: int, wait_s: float) -> pa.Table | None:
        first = self._stream.next(wait_s)
        if first is None:
            return None
        messages = [first]
        while len(messages) < count and (message := self._stream.next(0)) is not None:
            messages.append(message)
        return stream_table(messages)

    def keep(self) -> None:
        self._stream.commit()

    def hold(self) -> None:
        pass  # the group does not move on before the commit

    def give_back(self) -> None:
        self._stream.leave(failed=True)
