"""Finding a message of a delay log by its id, without keeping the ids in memory.

Ids ascend with the offsets, since each begins with the time at which it was given. They do not
where the clock was set back: there a new run begins, and within a run the log is halved.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

from penstock.log.base import PartitionLog
from penstock.record.batch import Batch, Message
from penstock.record.schema import BITS

_UNREADABLE = 1 << 128  # more than any id


class DelayIds:
    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._run_starts: list[int] = []  # offsets
        self._last = 0

    def appended(self, first_offset: int, ulid: int, count: int = 1) -> None:
        """Messages were appended, or are there, whose ids count on from the first."""
        if ulid <= self._last or not self._run_starts:
            self._run_starts.append(first_offset)
        self._last = ulid + count - 1

    def read(self, batch: Batch) -> None:
        """The same of messages that were read, in the order of their offsets."""
        if not batch.columns & (BITS["id"] | BITS["offset"]):
            self.appended(batch.base_offset or 0, batch.ulid, len(batch))
            return
        ids = batch.ids.to_pylist()
        for offset, id_ in zip(batch.offset_numbers().tolist(), ids, strict=True):
            self.appended(offset, int.from_bytes(id_, "big"))

    def find(self, ulid: int) -> Message | None:
        """The message with this id, whether or not it waits still; None if there is none."""
        start, end = self._log.start, self._log.end
        starts = [max(start, at) for at in self._run_starts[self._first_run(start) :]]
        for first, last in pairwise([*starts, end]):
            run = range(first, last)
            nth = bisect_left(run, ulid, key=self._ulid_from)
            message = self._next(first + nth) if nth < len(run) else None
            if message is not None and message.ulid == ulid:
                return message
        return None

    def _first_run(self, offset: int) -> int:
        """The last run that begins at the offset or before."""
        return max(0, bisect_right(self._run_starts, offset) - 1)

    def _ulid_from(self, offset: int) -> int:
        message = self._next(offset)
        return _UNREADABLE if message is None else message.ulid

    def _next(self, offset: int) -> Message | None:
        """The first message from an offset on that can be read."""
        while offset < self._log.end:
            read = self._log.read(offset, 1)
            for batch in read:
                return batch.slice(0, 1).messages()[0]
            offset = read.next_offset
        return None
