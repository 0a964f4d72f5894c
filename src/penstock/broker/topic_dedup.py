"""The deduplication ids of a topic: what is published with one that is remembered is not stored.

The id is a header of the message, and so is its window if the call asked for one. Thus an id is
there exactly if its message is, and a restart finds both: in the partitions, and in the delay logs
while messages wait there. A message that is moved keeps its headers and its ULID, and the ULID says
when it was published.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from penstock.broker.partition import Partition
from penstock.broker.topic_delays import TopicDelays
from penstock.clock import Clock
from penstock.delivery.dedup import DedupWindow, Original, Sifted, digest_of
from penstock.model.published import Placed, place, place_of
from penstock.model.settings import TopicSettings
from penstock.record.batch import Batch, Message
from penstock.record.plain import Single
from penstock.record.schema import BITS
from penstock.record.single_with_header import SingleWithHeader

DEDUP_HEADER = "penstock-dedup-id"
WINDOW_HEADER = "penstock-dedup-window"
"""In milliseconds, on a message whose id is not remembered for the topic's window."""

_WAITS = 1 << 62
"""Added to the place of a message that was delayed: it is one in the delay log."""

Store: TypeAlias = Callable[[Batch, Sequence[int]], Iterator[Placed]]
"""Stores messages, of which the rows in the call are given, and tells of each part where it is as
soon as it is there: the next one may fail."""

_FIRST = (0,)


class StoredOnce(NamedTuple):
    """Where the messages of a call are that are new, or that repeat one of the same call; and by
    row which message had the id of one that was not stored."""

    placed: list[Placed]
    known: dict[int, Original]


class TopicDedup:
    def __init__(self, settings: TopicSettings, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._window = DedupWindow(settings.dedup_window_ms * 1_000_000, settings.dedup_ids_max)

    def change(self, settings: TopicSettings) -> None:
        self._window.window_ns = settings.dedup_window_ms * 1_000_000
        self._window.ids_max = settings.dedup_ids_max

    def store(
        self,
        batch: Batch,
        names: Sequence[bytes | None],
        window_ms: int,
        store: Store,
        *,
        delayed: bool,
    ) -> StoredOnce:
        """Store those messages whose id is not remembered. The ids are headers of the batch."""
        window_ns, waits = window_ms * 1_000_000, _WAITS if delayed else 0
        window = self._window
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            if len(names) == 1 and names[0] is not None:
                digest = digest_of(names[0])
                original = window.find(digest, now_ns)
                if original is not None:
                    return StoredOnce([], {0: original})
                (one,) = store(batch, _FIRST)
                at = place(one.partition, one.first_offset) | waits
                window.record((digest,), at, one.ulid, now_ns, window_ns)
                return StoredOnce([one], {})
            digests = [None if name is None else digest_of(name) for name in names]
            sifted = window.sift(digests, now_ns)
            placed: list[Placed] = []
            if sifted.new:
                chosen = batch if len(sifted.new) == len(batch) else batch.take(sifted.new)
                for each in store(chosen, sifted.new):
                    rows = [sifted.new[row] for row in each.rows]
                    at = place(each.partition, each.first_offset) | waits
                    window.record([digests[row] for row in rows], at, each.ulid, now_ns, window_ns)
                    placed += [_alone(each, nth, row) for nth, row in enumerate(rows)]
        by_row = {each.rows[0]: each for each in placed}
        for row, first in sifted.repeated.items():
            placed.append(_alone(by_row[first], 0, row, duplicate=True))
        return StoredOnce(placed, sifted.known)

    @contextmanager
    def sifting(
        self, batch_names: Sequence[bytes | None]
    ) -> Iterator[tuple[Sifted, Callable[[Sequence[int], int, int, int], None]]]:
        """Which of some messages are new, while nobody else stores any; and what to call when some
        of them are stored: with their rows, their place, the id of the first, and their window."""
        digests = [None if name is None else digest_of(name) for name in batch_names]
        with self._lock:
            now_ns = self._clock.monotonic_ns()

            def record(rows: Sequence[int], at: int, ulid: int, window_ms: int) -> None:
                named = [digests[row] for row in rows]
                self._window.record(named, at, ulid, now_ns, window_ms * 1_000_000)

            yield self._window.sift(digests, now_ns), record

    def cancel(self, cancel: Callable[[], Message | None]) -> bool:
        """Take a delayed message back, and its id with it: what comes next with that id is new."""
        with self._lock:
            message = cancel()
            if message is not None and (name := message.headers.get(DEDUP_HEADER)):
                self._window.forget(digest_of(name), message.ulid)
        return message is not None

    def rebuild(
        self, partitions: Iterable[Partition], delays: TopicDelays, longest_window_ms: int
    ) -> None:
        """Remember again what was published within the window, each id for the rest of its time."""
        wall_us, now_ns = self._clock.wall_ns() // 1000, self._clock.monotonic_ns()
        since_us = wall_us - longest_window_ms * 1000
        found = [_stored_since(partition, since_us) for partition in partitions]
        for at, name, window_ms, ulid in heapq.merge(*found, _waiting(delays), key=_published):
            # A ULID counts milliseconds: the message came at some time in that one.
            age_ns = max(0, wall_us - ((ulid >> 80) + 1) * 1000) * 1000
            window_ns = window_ms * 1_000_000
            if age_ns < (window_ns or self._window.window_ns):
                digest = digest_of(name)
                self._window.record((digest,), at, ulid, now_ns - age_ns, window_ns)


class _Named(NamedTuple):
    """A message that has an id."""

    place: int
    name: bytes
    window_ms: int  # 0: the topic's
    ulid: int


def place_of_delayed(at: int) -> int:
    """What is remembered as the place of a message that waits at a place in the delay logs."""
    return at | _WAITS


def waiting_at(original: Original) -> tuple[int, int] | None:
    """The partition and the offset in its delay log of a message that was delayed."""
    return place_of(original.place ^ _WAITS) if original.place & _WAITS else None


def with_dedup_ids(batch: Batch, names: Sequence[bytes | None], window_ms: int = 0) -> Batch:
    """Messages as they are stored: with their deduplication ids."""
    if type(batch) is Single and not window_ms and names[0]:
        return SingleWithHeader(
            batch.value,
            DEDUP_HEADER,
            names[0],
            timestamp_us=batch.timestamp_us,
            priority=batch.priority,
        )
    window = {WINDOW_HEADER: b"%d" % window_ms} if window_ms else {}
    return batch.with_headers([{DEDUP_HEADER: name, **window} if name else {} for name in names])


def _alone(together: Placed, nth: int, row: int, *, duplicate: bool = False) -> Placed:
    return Placed(
        together.partition,
        [row],
        together.first_offset + nth,
        together.ulid + nth,
        together.durable,
        duplicate,
    )


def _stored_since(partition: Partition, since_us: int) -> Iterator[_Named]:
    offset = partition.log.find(since_us)
    while offset < partition.log.end:
        read = partition.log.read(offset)
        for batch in read:
            if batch.columns & BITS["headers"]:
                for message in batch.messages():
                    yield from _named(message, place(partition.number, message.offset))
        offset = read.next_offset


def _waiting(delays: TopicDelays) -> Iterator[_Named]:
    after = 0
    while page := delays.pending(after, 1000):
        for at, waiting in page:
            yield from _named(waiting.message, at | _WAITS)
        after = page[-1][0] + 1


def _named(message: Message, at: int) -> Iterator[_Named]:
    name = message.headers.get(DEDUP_HEADER)
    if name:
        window = message.headers.get(WINDOW_HEADER) or b"0"
        yield _Named(at, name, int(window) if window.isdigit() else 0, message.ulid)


def _published(named: _Named) -> int:
    return named.ulid
