"""The delayed messages of a topic: each waits in the partition to which it will go.

A partition's delays are opened when the first message is delayed there, or with the topic if there
were any before, so that a topic without any has no file for them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.broker.delays import Delays
from penstock.broker.partition import Partition
from penstock.delivery.offsets import Int64s
from penstock.log.base import Appended, PartitionLog
from penstock.model.messages import DelayedMessage
from penstock.model.published import CallId, place_of
from penstock.model.stats import DelayStats
from penstock.record.batch import Batch, Message
from penstock.record.schema import parse_ulid

_EARLIER_ID = re.compile(r"[0-9]{1,19}-[0-9A-Za-z]{26}")
"""As ids were given out by earlier versions: with the place where the message waits."""


class TopicDelays:
    def __init__(
        self,
        partitions: Sequence[Partition],
        open_delays: Callable[[Partition], Delays],
    ) -> None:
        """`partitions` are the topic's, and may become more."""
        self._partitions = partitions
        self._open_delays = open_delays
        self._lock = threading.Lock()
        self._delays: dict[int, Delays] = {}

    def of(self, number: int) -> Delays:
        """Those of a partition; from now on it has some."""
        delays = self._delays.get(number)
        if delays is None:
            with self._lock:
                delays = self._delays.get(number)
                if delays is None:
                    delays = self._open_delays(self._partitions[number])
                    self._delays = dict(sorted({**self._delays, number: delays}.items()))
        return delays

    def logs(self) -> Iterator[tuple[PartitionLog, PartitionLog]]:
        """Each log, with the log of its journal."""
        for delays in self._delays.values():
            yield delays.log, delays.journal.log

    def add(
        self,
        number: int,
        batch: Batch,
        deliver_at_us: int | Int64s,
        call: CallId | None = None,
    ) -> Appended:
        return self.of(number).add(batch, deliver_at_us, call)

    def cancel(self, id_: str) -> Message | None:
        """Forget a message that is not due yet; None if it is gone already."""
        if _EARLIER_ID.fullmatch(id_ if isinstance(id_, str) else ""):
            id_ = id_.partition("-")[2]
        ulid = parse_ulid(id_)
        for delays in self._delays.values():
            message = delays.cancel(ulid)
            if message is not None:
                return message
        return None

    def pending(
        self, after: int, limit: int, bytes_max: int | None = None
    ) -> list[tuple[int, DelayedMessage]]:
        """Messages that wait, by place, from one past `after` on; the last is the one with which
        they have `bytes_max` bytes or more."""
        first, offset = place_of(after)
        found: list[tuple[int, DelayedMessage]] = []
        for number, delays in self._delays.items():
            if number >= first and len(found) < limit:
                left = None
                if bytes_max is not None:
                    left = bytes_max - sum(each.message.nbytes for _, each in found)
                    if left <= 0:
                        break
                found += delays.pending(offset if number == first else 0, limit - len(found), left)
        return found

    def move_due(self, news: Callable[[], None]) -> int:
        """Bring what fell due to its partition; how many messages that were."""
        return sum(delays.move_due(news) for delays in self._delays.values())

    def next_deadline(self, now_ns: int) -> int | None:
        """When to look again, by the monotonic clock."""
        deadlines = [delays.next_deadline(now_ns) for delays in self._delays.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def stats(self) -> DelayStats:
        return sum_of([delays.stats() for delays in self._delays.values()])

    def purge(self) -> int:
        """Cancel everything that waits."""
        return sum(delays.purge() for delays in self._delays.values())

    def ordered(self) -> None:
        """What was moved is known to be, before what comes next."""
        for delays in self._delays.values():
            delays.ordered()

    @contextmanager
    def at_rest(self, number: int) -> Iterator[None]:
        """Nothing is being moved to a partition, and what was moved is durably known to be."""
        delays = self._delays.get(number)
        if delays is None:
            yield
        else:
            with delays.at_rest():
                yield

    def checkpoint(self) -> None:
        """Drop from disk what is moved or cancelled."""
        for delays in self._delays.values():
            delays.checkpoint()

    def close(self) -> None:
        for delays in self._delays.values():
            delays.close()


def sum_of(each: Sequence[DelayStats]) -> DelayStats:
    """Of several partitions, or topics, together."""
    due_us = [stats.next_due_us for stats in each if stats.next_due_us is not None]
    return DelayStats(
        sum(stats.pending for stats in each),
        min(due_us, default=None),
        delivered=sum(stats.delivered for stats in each),
        cancelled=sum(stats.cancelled for stats in each),
        expired=sum(stats.expired for stats in each),
    )
