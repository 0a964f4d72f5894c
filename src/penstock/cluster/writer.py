"""How the owner of a shard appends to its stream: many records under way, confirmed in order.

Pure: what is to be sent is asked for with `next_records`, and what came of it is told with `acked`;
who does so, and over which network, is somebody else's matter.

Every record is sent with the sequence number that the stream must have before it. So a record is
taken only right behind the one before, or refused; but right behind might be the term of another
owner, who took the place of a record that was lost. A record therefore counts as committed only if
all before it were confirmed, one after the other, each at the number that was predicted for it:
then what is confirmed lies before the term of whoever comes next. The first confirmation that is
not as predicted ends the writer. Nobody knows then what became of the records under way; who owns
the shard next finds out by reading the stream.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from penstock.cluster.records import MORE, VERSION, Draft, RecordKind, encode
from penstock.errors import DiskFull, LogError, ShardLost, Unavailable
from penstock.log.base import DONE
from penstock.record.writing import Buffer

WINDOW_BYTES = 16 << 20
"""Under way at a time: what a stream's leader has to keep in memory for us."""
WINDOW_RECORDS = 256
RECORD_BYTES = 512 << 10
"""Frames of one log that wait are joined up to this length."""
HELD_BYTES_MAX = 256 << 10
"""The last record that waits is held back until it is half as long as all that is under way, but
not beyond this length: more frames of its log may join it, and a record costs the servers as much
as many frames do. So many callers share a few records, and none waits for two of them in turn."""
WAITING_BYTES_MAX = 64 << 20
"""That wait to be sent; who would add more is told to come again."""
_OF_NAMES = (RecordKind.CREATED, RecordKind.REMOVED, RecordKind.RENAMED)


class Outgoing(NamedTuple):
    """A record to be sent: it must become `seq`, and so the last one must be the one before."""

    seq: int
    kind: RecordKind
    log: int
    data: bytes


class _Waiting:
    """A record that waits, or is under way, and what to do once it is committed."""

    __slots__ = (
        "crc",
        "end",
        "flags",
        "future",
        "kind",
        "log",
        "parts",
        "seq",
        "size_bytes",
        "then",
    )

    def __init__(
        self, draft: Draft, size_bytes: int, then: Callable[[int], None] | None = None
    ) -> None:
        self.kind, self.log, self.flags, self.end = draft.kind, draft.log, draft.flags, draft.end
        self.parts: list[Buffer] = list(draft.parts)
        self.size_bytes = size_bytes
        self.then = then
        self.future: Future[None] = Future()
        self.seq = self.crc = 0


class ShardWriter:
    """Any thread may append. One at a time sends, and tells of confirmations."""

    def __init__(
        self,
        shard: int,
        term: int,
        last_seq: int,
        last_crc: int,
        record_bytes: int = RECORD_BYTES,
        version: int = VERSION,
    ) -> None:
        """`last_seq`, `last_crc`: of the term record with which this owner began."""
        self.shard = shard
        self.term = term
        self.committed_seq = last_seq
        self.failure: LogError | None = None
        self.on_work: Callable[[], None] = lambda: None
        """Called when there may be something to send."""
        self.on_failed: Callable[[], None] = lambda: None
        self.is_full: Callable[[], bool] = lambda: False
        """Whether the stream has no room for messages."""
        self.committed_bytes = 0
        self._settled = last_seq, last_crc
        """Whose commit was told to who appended it, and which is not the first part of a frame."""
        self._sent_seq, self._sent_crc = last_seq, last_crc
        self._record_bytes = record_bytes
        self._version = version
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._under_way: deque[_Waiting] = deque()
        self._waiting_bytes = self._under_way_bytes = 0

    def check_room(self, size_bytes: int, *, for_messages: bool) -> None:
        """Raise what an append would have to: to be asked before anything is written."""
        if self.failure is not None:
            raise self.failure
        if for_messages and self.is_full():
            raise DiskFull(
                f"shard {self.shard}: its stream is nearly as long as it may be; publishing goes "
                "on when messages are dropped, or with a larger cluster_shard_bytes"
            )
        if self._waiting_bytes + size_bytes > WAITING_BYTES_MAX and self._waiting:
            raise Unavailable(
                f"shard {self.shard}: {self._waiting_bytes >> 20} MB wait for a commit; try again"
            )

    def append(
        self, draft: Draft, size_bytes: int = 0, then: Callable[[int], None] | None = None
    ) -> Future[None]:
        """A future for when it is committed; `then` is called right before, with its number.

        Frames join those of the same log that wait, and `then` stands for all of them. A frame that
        is too long for one record becomes several, which count once the last is there.
        """
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if size_bytes > self._record_bytes:
                return self._append_long(draft, size_bytes, then)
            last = self._waiting[-1] if self._waiting else None
            self._waiting_bytes += size_bytes
            if (
                last is not None
                and draft.kind is RecordKind.FRAMES
                and last.kind is RecordKind.FRAMES
                and last.log == draft.log
                and not draft.flags
                and not last.flags & MORE
                and last.size_bytes + size_bytes <= self._record_bytes
            ):
                last.parts += draft.parts
                last.end = draft.end
                last.size_bytes += size_bytes
                last.then = then
                entry = last
            else:
                entry = _Waiting(draft, size_bytes, then)
                self._waiting.append(entry)
            # Two: the one before may have been held. More: somebody was told already.
            is_work = len(self._waiting) <= 2 and not self._is_held(self._under_way_bytes)
        if is_work:
            self.on_work()
        return entry.future

    def _append_long(
        self, draft: Draft, size_bytes: int, then: Callable[[int], None] | None
    ) -> Future[None]:
        """The lock is held."""
        may_be_held = len(self._waiting) < 2
        whole = memoryview(b"".join(map(bytes, draft.parts)))
        step = self._record_bytes
        for start in range(0, size_bytes, step):
            flags = draft.flags | (MORE if start + step < size_bytes else 0)
            piece = whole[start : start + step]
            self._waiting.append(_Waiting(draft._replace(parts=[piece], flags=flags), len(piece)))
        self._waiting_bytes += size_bytes
        entry = self._waiting[-1]
        entry.then = then
        if may_be_held:
            self.on_work()
        return entry.future

    def barrier(self) -> Future[None]:
        """A future for when all that was appended so far is committed."""
        with self._lock:
            if self.failure is not None:
                failed: Future[None] = Future()
                failed.set_exception(self.failure)
                return failed
            if self._waiting:
                return self._waiting[-1].future
            if self._under_way:
                return self._under_way[-1].future
        return DONE

    def settled(self) -> tuple[int, int] | None:
        """Number and checksum of a record up to which all is committed, and after which nothing but
        frames and trims was appended; None if there is no such record now."""
        with self._lock:
            if self.failure is not None:
                return None
            if any(each.kind in _OF_NAMES for each in (*self._under_way, *self._waiting)):
                return None
            return self._settled

    @property
    def is_idle(self) -> bool:
        """Whether all that was appended is committed."""
        return not self._waiting and not self._under_way

    @property
    def has_waiting(self) -> bool:
        """Whether there is something to send, now or once more is confirmed."""
        return bool(self._waiting)

    @property
    def under_way(self) -> int:
        """How many records were sent and are not confirmed."""
        return len(self._under_way)

    def next_records(self) -> list[Outgoing]:
        """What may be sent now, in the order in which it has to be."""
        found: list[Outgoing] = []
        under_way_bytes = self._under_way_bytes
        while True:
            with self._lock:
                if (
                    self.failure is not None
                    or not self._waiting
                    or self._is_held(under_way_bytes)
                    or len(self._under_way) >= WINDOW_RECORDS
                    or self._under_way_bytes >= WINDOW_BYTES
                ):
                    return found
                entry = self._waiting.popleft()
                self._waiting_bytes -= entry.size_bytes
                self._under_way.append(entry)
                self._under_way_bytes += entry.size_bytes
                entry.seq = self._sent_seq = self._sent_seq + 1
            draft = Draft(entry.kind, entry.log, entry.parts, entry.flags, entry.end)
            data, self._sent_crc = encode(draft, self.term, self._sent_crc, self._version)
            entry.crc = self._sent_crc
            entry.parts = []
            found.append(Outgoing(entry.seq, entry.kind, entry.log, data))

    def _is_held(self, under_way_bytes: int) -> bool:
        """Whether what is next may still grow, and should. The lock is held."""
        entry = self._waiting[0]
        return (
            entry.size_bytes < under_way_bytes // 2
            and entry.size_bytes < HELD_BYTES_MAX
            and len(self._waiting) == 1
            and entry.kind is RecordKind.FRAMES
        )

    def acked(self, seq: int, stored_seq: int | None, problem: str = "") -> None:
        """What was sent as `seq` is stored as `stored_seq`, or not: None, and the problem."""
        with self._lock:
            if self.failure is not None or not self._under_way:
                return
            expected = self._under_way[0].seq
            as_predicted = seq == expected and stored_seq == seq
            if as_predicted:
                entry = self._under_way.popleft()
                self._under_way_bytes -= entry.size_bytes
                self.committed_seq = seq
                self.committed_bytes += entry.size_bytes
        if not as_predicted:
            told = problem or f"record {seq} was stored as {stored_seq}, and {expected} was next"
            self.fail(ShardLost(self.shard, told))
            return
        if entry.then is not None:
            entry.then(seq)
        if not entry.flags & MORE:
            self._settled = seq, entry.crc
        entry.future.set_result(None)

    def fail(self, error: LogError) -> None:
        """Send and confirm nothing more: whoever waits gets the error."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
            left = [*self._under_way, *self._waiting]
            self._under_way.clear()
            self._waiting.clear()
            self._waiting_bytes = self._under_way_bytes = 0
        self.on_failed()
        for entry in left:
            entry.future.set_exception(error)
