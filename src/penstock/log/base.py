"""What a log is, whichever engine keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from penstock.config import LogConfig, Retention
from penstock.errors import LogError
from penstock.log.frames import FrameTable
from penstock.record.batch import Batch, Message
from penstock.record.frame import FrameHeader
from penstock.record.schema import READ_SCHEMA
from penstock.record.writing import NOBODY, FrameProducer


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


def all_durable(futures: Sequence[Future[None]]) -> Future[None]:
    """A future for when all of these are; it fails as soon as one of them does."""
    waiting = [future for future in futures if future is not DONE]
    if len(waiting) < 2:
        return waiting[0] if waiting else DONE
    together: Future[None] = Future()
    left = count(len(waiting) - 1, -1)

    def tell(future: Future[None]) -> None:
        error, is_last = future.exception(), next(left) == 0
        with suppress(InvalidStateError):  # another one has failed before
            if error is not None:
                together.set_exception(error)
            elif is_last:
                together.set_result(None)

    for future in waiting:
        future.add_done_callback(tell)
    return together


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


Int64Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
BoolArray: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


class Needs(Protocol):
    """What readers of a log still need, and what they do not: both of some offsets, as masks."""

    @property
    def has_unneeded(self) -> bool: ...

    def needed(self, offsets: Int64Array) -> BoolArray:
        """Which must stay even if they have expired."""
        ...

    def unneeded(self, offsets: Int64Array) -> BoolArray:
        """Which may go although nothing else says so."""
        ...


class Span(Protocol):
    """Neighbouring offsets of which a log knows something together, without reading them."""

    @property
    def next_offset(self) -> int:
        """One past the last."""
        ...

    @property
    def priorities(self) -> int:
        """A bit for each priority, and for expiry, that occurs."""
        ...

    @property
    def is_dense(self) -> bool:
        """Whether there is a message at each of the offsets."""
        ...


class PartitionLog(Protocol):
    """An append-only sequence of messages, each at its offset: what a broker uses of a log.

    Calls are synchronous and short; waiting for durability is a future. One thread at a time
    writes (appends are serialised), any number read without a lock.
    """

    @property
    def config(self) -> LogConfig: ...

    @property
    def folder(self) -> str:
        """Where it is, for messages to people."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why it takes no writes any more; None while it does."""
        ...

    def stop(self, error: LogError) -> None:
        """Take no more writes, and say this to who tries."""
        ...

    @property
    def start(self) -> int:
        """The first offset that is kept."""
        ...

    @property
    def end(self) -> int:
        """One past the last offset."""
        ...

    @property
    def may_expire(self) -> bool:
        """Whether something with a TTL is among the messages, as far as that is quickly known."""
        ...

    @property
    def durable_end(self) -> int:
        """What an fsync (or the cluster) has confirmed; everything below never changes."""
        ...

    @property
    def sealed_end(self) -> int:
        """Below it nothing is appended any more, and files are full: what compaction looks at."""
        ...

    @property
    def newest_us(self) -> int:
        """The largest timestamp of a message; before all times if there is none."""
        ...

    @property
    def size_bytes(self) -> int: ...
    @property
    def segment_count(self) -> int:
        """In how many files the messages lie."""
        ...

    @property
    def damage(self) -> list[Damage]:
        """What was found damaged since the log was opened, by offset."""
        ...

    # Writing.

    def append(
        self, batch: Batch, by: FrameProducer = NOBODY, *, keep_ids: bool = False
    ) -> Appended:
        """Store a batch as one. `keep_ids` is for messages that come from another log."""
        ...

    def append_value(self, value: bytes, *, is_entry: bool = False) -> Appended:
        """Append a message that is a value and no more. An entry of a journal has no id."""
        ...

    def sync(self) -> None:
        """Make everything durable that was appended so far, whatever the policy."""
        ...

    def sync_soon(self) -> Future[None]:
        """A future for when everything that was appended so far is durable."""
        ...

    def ordered(self) -> None:
        """What was appended here before must be durable before what is appended next, anywhere.

        An fsync where each log has files of its own; nothing where all logs share one order.
        """
        ...

    def roll(self) -> None:
        """Let what comes next begin a file of its own, so that all before can be dropped."""
        ...

    def reconfigure(self, config: LogConfig) -> None:
        """Go on with other settings, from the next append on."""
        ...

    def close(self) -> None: ...

    # Reading.

    def read(self, offset: int, max_bytes: int = 4 << 20) -> Batches:
        """Messages from an offset on: at least one frame's if there are any, up to `max_bytes`."""
        ...

    def frames(self, offset: int, max_bytes: int) -> FrameTable:
        """What frames there are from an offset on, without their messages: about `max_bytes`."""
        ...

    def find(self, timestamp_us: int) -> int:
        """The first offset whose message is at or after a time; `end` if there is none."""
        ...

    def headers(self, offset: int) -> Iterator[FrameHeader]:
        """The headers of the frames from the one of an offset on; for recoveries."""
        ...

    def span_at(self, offset: int) -> Span:
        """What is known of an offset and its neighbours."""
        ...

    def next_block(self, offset: int, priorities: int) -> int:
        """The first offset from here on near which one of these priorities may be."""
        ...

    def priorities_between(self, start: int, end: int) -> int:
        """A bit for each priority, and for expiry, that may occur; one too many is possible."""
        ...

    # Forgetting.

    def trim(self, before: int) -> None:
        """Forget every offset below `before`, for good."""
        ...

    def retain(self, retention: Retention, now_us: int) -> int:
        """Forget what the limits say; returns 0 if that was nothing."""
        ...

    def kept_from(self, retention: Retention, now_us: int) -> tuple[int, int]:
        """Where the log starts if the limits are applied, and how many files go."""
        ...

    def grows_old_us(self, retention: Retention) -> int | None:
        """When something reaches the age limit next; None: nothing that is here ever does."""
        ...

    def compact(
        self,
        now_us: int,
        *,
        keyed: bool = False,
        since: int = 0,
        needs: Needs | None = None,
        removed_share_min: float = 0,
    ) -> object:
        """Rewrite what is sealed without what nobody needs. Appends and reads go on meanwhile.

        `since`: only look at what begins at this offset or later. `removed_share_min`: where a file
        has less to lose than this share of its messages, it stays as it is.
        """
        ...


class Appendable(Protocol):
    """Where gathered messages can go."""

    config: LogConfig

    def append(self, batch: Batch) -> Appended: ...
