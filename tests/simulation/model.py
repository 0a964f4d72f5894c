"""What a log was given and what it promised: the plain model that a log is held against.

The model knows for every offset what was handed to `append`, which of it the log called written
(it survives a kill) and which durable (it survives a power cut), and what a trim or a compaction
was allowed to take away. `check` compares a log that was opened after a crash with all of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.log.base import Batches, Damage
from penstock.log.compact import TOMBSTONE_US
from penstock.record.batch import Message

LONG_AGO_US = -(1 << 63)


class Sent(NamedTuple):
    """A message as it was handed over. The values of a life are unique: none passes for another."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    priority: int
    timestamp_us: int
    expires_at_us: int | None


class ReadableLog(Protocol):
    """What a log and a reader outside the writing process have in common."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def damage(self) -> list[Damage]: ...

    def read(self, offset: int, max_bytes: int = ...) -> Batches: ...


class BrokenPromise(AssertionError):
    """The log does not keep what it promised."""


class LogModel:
    """Everything that the world outside a log knows about it."""

    def __init__(self) -> None:
        self.sent: dict[int, Sent] = {}
        """What may be found at an offset, and nothing else may."""
        self.written_end = 0
        """Below it `append` has returned: a kill takes none of it."""
        self.durable_end = 0
        """Below it the log, or a reader outside, has called it durable: a power cut takes none."""
        self.start = 0
        """Where the last trim that returned put the start."""
        self.start_max = 0
        """Where one that has not returned may have put it."""
        self.compacted_us = LONG_AGO_US
        """The time of the last compaction: what expired by then may be gone."""
        self.keyed = False
        """Whether a compaction may have dropped what a later message of its key replaces."""
        self._ulids: dict[int, int] = {}

    def copy(self) -> LogModel:
        twin = LogModel()
        twin.__dict__.update(self.__dict__)
        twin.sent = dict(self.sent)
        twin._ulids = dict(self._ulids)
        return twin

    # What is done to the log. `before_` comes before the log's own call: a crash may fall within.

    def before_append(self, first_offset: int, rows: Sequence[Sent]) -> None:
        assert first_offset == self.written_end
        for offset, row in enumerate(rows, start=first_offset):
            self.sent[offset] = row

    def appended(self, next_offset: int) -> None:
        self.written_end = next_offset

    def refused(self) -> None:
        """The last append stored nothing, and said so."""
        self.sent = {o: row for o, row in self.sent.items() if o < self.written_end}

    def before_trim(self, start_max: int) -> None:
        self.start_max = max(self.start_max, start_max)

    def trimmed(self, start: int) -> None:
        self.start = self.start_max = start

    def before_compact(self, now_us: int, *, keyed: bool) -> None:
        self.compacted_us = max(self.compacted_us, now_us)
        self.keyed = self.keyed or keyed

    def durable(self, durable_end: int) -> None:
        if durable_end > self.written_end:
            raise BrokenPromise(
                f"durable up to {durable_end}, but appended only up to {self.written_end}"
            )
        self.durable_end = max(self.durable_end, durable_end)

    # What must be true of it.

    def check(self, log: ReadableLog, promised_end: int) -> dict[int, Message]:
        """Hold a log against everything that is known of it; its messages by offset.

        `promised_end` is `written_end` after a kill and `durable_end` after a power cut.
        """
        _require(log.damage == [], f"damage on a disk that has none: {log.damage}")
        _require(
            self.start <= log.start <= max(self.start, self.start_max),
            f"starts at {log.start}; trims were up to {self.start}, at most {self.start_max}",
        )
        _require(log.end >= promised_end, f"ends at {log.end}; promised up to {promised_end}")
        _require(
            log.end <= max(self.sent, default=-1) + 1 or log.end == self.written_end,
            f"ends at {log.end}, which nobody wrote",
        )
        found = read_all(log)
        self.check_messages(found)
        self._check_gaps(found, log.start, log.end)
        return found

    def check_messages(self, found: dict[int, Message]) -> None:
        """No phantom: each message is the one that was sent there, and is named as before."""
        for offset, message in found.items():
            row = self.sent.get(offset)
            if row is None:
                raise BrokenPromise(f"phantom at {offset}: {message}")
            if row != _sent(message):
                raise BrokenPromise(f"offset {offset}: sent {row}, found {message}")
            if self._ulids.setdefault(offset, message.ulid) != message.ulid:
                raise BrokenPromise(f"the id of the message at {offset} has changed")

    def removable(self, found: dict[int, Message], start: int, end: int) -> set[int]:
        """The offsets that compaction may have taken: expired, or replaced by one that is there."""
        replaced_keys: set[bytes] = set()
        gone: set[int] = set()
        for offset in range(end - 1, start - 1, -1):
            row = self.sent.get(offset)
            if row is None:
                continue
            if self._expired(row) or (self.keyed and row.key in replaced_keys):
                gone.add(offset)
            if row.key is not None and (offset in found or offset in gone):
                replaced_keys.add(row.key)
        return gone

    def reopened(self, log: ReadableLog, found: dict[int, Message]) -> None:
        """Go on from a log that was checked: what it shows now is all there is, and is durable."""
        self.sent = {o: row for o, row in self.sent.items() if log.start <= o < log.end}
        self._ulids = {o: message.ulid for o, message in found.items()}
        self.written_end = self.durable_end = log.end
        self.start = self.start_max = log.start

    def _expired(self, row: Sent) -> bool:
        if row.expires_at_us is not None and row.expires_at_us <= self.compacted_us:
            return True
        deletes_key = self.keyed and row.key is not None and row.value is None
        return deletes_key and row.timestamp_us < self.compacted_us - TOMBSTONE_US

    def _check_gaps(self, found: dict[int, Message], start: int, end: int) -> None:
        missing = set(range(start, end)) - found.keys()
        lost = missing - self.removable(found, start, end) if missing else missing
        _require(not lost, f"offsets {sorted(lost)} are gone without a word")


def read_all(log: ReadableLog, max_bytes: int = 1 << 20) -> dict[int, Message]:
    """Every message of a log by its offset, read as a consumer does: from where the last read
    said to go on."""
    found: dict[int, Message] = {}
    offset = log.start
    while offset < log.end:
        batches = log.read(offset, max_bytes)
        _require(not batches.damage, f"damage on a disk that has none: {batches.damage}")
        for message in batches.messages():
            _require(
                offset <= message.offset < batches.next_offset,
                f"offset {message.offset} from a read of {offset} up to {batches.next_offset}",
            )
            _require(message.offset not in found, f"offset {message.offset} came twice")
            found[message.offset] = message
        _require(batches.next_offset > offset, f"a read at {offset} does not get on")
        offset = batches.next_offset
    _require(offset == log.end, f"read up to {offset}; the log ends at {log.end}")
    return found


def _sent(message: Message) -> Sent:
    return Sent(
        message.value,
        message.key,
        tuple(message.headers.items()),
        message.priority,
        message.timestamp_us,
        message.expires_at_us,
    )


def _require(kept: bool, broken: str) -> None:
    if not kept:
        raise BrokenPromise(broken)
