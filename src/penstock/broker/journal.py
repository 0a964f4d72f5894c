"""A journal: a log of small entries whose fold is some state, and a checkpoint to start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

from penstock.config import LogConfig
from penstock.log.base import PartitionLog
from penstock.record.plain import Single
from penstock.record.singles import Singles

_FRAME_BYTES = 264  # that an entry has around it


class Journal:
    """Entries in the order in which they were believed.

    A checkpoint is an entry that stands for all before it. They are dropped only once it is
    durable, so whatever a crash leaves begins with a whole state.
    """

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.bytes_since_checkpoint = log.size_bytes
        self.checkpoint_bytes = 0

    def append(self, entry: bytes) -> Future[None]:
        """Store an entry. When this returns the operating system has it; the future is for more."""
        self.bytes_since_checkpoint += _FRAME_BYTES + len(entry)
        return self.log.append_value(entry, is_entry=True).durable

    def entries(self) -> Iterator[bytes]:
        """Every entry since the last checkpoint, that one first."""
        offset = self.log.start
        while offset < self.log.end:
            batches = self.log.read(offset)
            for batch in batches:
                if isinstance(batch, Single | Singles):
                    entries: Sequence[bytes] = batch.payloads
                else:  # too long to be copied out of its frame
                    entries = batch.values.to_pylist()
                if batch.base_offset == self.log.start:
                    self.checkpoint_bytes = len(entries[0])
                    self.bytes_since_checkpoint = max(self.log.size_bytes - len(entries[0]), 0)
                yield from entries
            offset = batches.next_offset

    def checkpoint(self, entry: bytes) -> None:
        """Replace everything so far by one entry."""
        self.drop_before(self.mark(entry))

    def mark(self, entry: bytes) -> int:
        """Store an entry that stands for all before it, which may then be dropped."""
        self.log.roll()  # so that what is before lies in files of its own
        appended = self.log.append(Single(entry))
        self.bytes_since_checkpoint = 0
        self.checkpoint_bytes = len(entry)
        return appended.first_offset

    def drop_before(self, checkpoint: int) -> None:
        """Takes some fsyncs. What is appended meanwhile does no harm."""
        self.log.ordered()  # `trim` asks for what it drops to be durable, not for what is left
        self.log.trim(checkpoint)

    def close(self) -> None:
        self.log.close()


class LazyJournal:
    """A journal that is made with its first entry. Its user locks."""

    def __init__(self, open_journal: Callable[[bool], Journal | None]) -> None:
        """`open_journal`: told not to make one, it gives None if there is none."""
        self._open = open_journal
        self.opened = open_journal(False)

    def made(self) -> Journal:
        if self.opened is None:
            self.opened = self._open(True)
            assert self.opened is not None
        return self.opened

    def entries(self) -> Iterator[bytes]:
        return iter(()) if self.opened is None else self.opened.entries()

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()


def journal_config(config: LogConfig) -> LogConfig:
    """How a journal is kept that goes with a log: as durable, and in smaller files.

    Acks and commits go on while the disk is too full for messages: they make room.
    """
    return LogConfig(
        fsync=config.fsync,
        fsync_interval_ms=config.fsync_interval_ms,
        fsync_batch_writes=config.fsync_batch_writes,
        segment_bytes=16 << 20,
        message_bytes_max=100 << 20,
        free_bytes_min=0,
    )
