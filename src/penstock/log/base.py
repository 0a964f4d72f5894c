"""What a log is, whichever engine keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa

from penstock.config import LogConfig
from penstock.record.batch import Batch, Message
from penstock.record.schema import READ_SCHEMA
from penstock.record.writing import NOBODY, Writer


class Appended(msgspec.Struct, frozen=True):
    """Where a batch went, and a future for when the log's fsync policy calls it durable.

    With `always` that is after an fsync; with the other policies when the operating system has
    it, which is when `append` returns. The future raises LogFailed if the fsync fails.
    """

    first_offset: int
    next_offset: int
    timestamp_us: int
    ulid: int
    durable: Future[None]


DONE: Future[None] = Future()
"""The future of what is durable already."""
DONE.set_result(None)


class Damage(NamedTuple):
    """Offsets that a log should hold and cannot give, and why."""

    segment: str
    position: int
    first_offset: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        if self.first_offset == self.next_offset:
            return f"{self.segment}: {self.reason}"
        return (
            f"{self.segment} at byte {self.position}: offsets {self.first_offset} up to "
            f"{self.next_offset} are lost: {self.reason}"
        )


class Batches:
    """What a read brought: batches in order, where to go on, and what was damaged on the way."""

    __slots__ = ("batches", "damage", "next_offset")

    def __init__(
        self, batches: Sequence[Batch], next_offset: int, damage: Sequence[Damage] = ()
    ) -> None:
        self.batches = batches
        self.next_offset = next_offset
        self.damage = damage

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def __len__(self) -> int:
        """How many messages."""
        return sum(map(len, self.batches))

    def table(self) -> pa.Table:
        """All messages as one Arrow table, without a copy of the values."""
        return pa.Table.from_batches([b.record_batch() for b in self.batches], READ_SCHEMA)

    def messages(self) -> list[Message]:
        return [message for batch in self.batches for message in batch.messages()]


class Log(Protocol):
    """An append-only sequence of messages, each at its offset.

    Calls are synchronous and short; waiting for durability is a future. One thread at a time
    writes (appends are serialised), any number read without a lock.
    """

    @property
    def start(self) -> int:
        """The first offset that is kept."""
        ...

    @property
    def end(self) -> int:
        """One past the last offset."""
        ...

    @property
    def durable_end(self) -> int:
        """What an fsync (or the cluster) has confirmed; everything below never changes."""
        ...

    def append(
        self,
        batch: Batch,
        by: Writer = NOBODY,
        *,
        keep_ids: bool = False,
    ) -> Appended: ...

    def read(self, offset: int, max_bytes: int = 4 << 20) -> Batches:
        """Messages from an offset on: at least one frame's if there are any, up to `max_bytes`."""
        ...

    def find(self, timestamp_us: int) -> int:
        """The first offset whose message is at or after a time; `end` if there is none."""
        ...

    def trim(self, before: int) -> None:
        """Forget every offset below `before`, for good."""
        ...


class Appendable(Protocol):
    """Where gathered messages can go."""

    config: LogConfig

    def append(self, batch: Batch) -> Appended: ...
