"""The files of a shard on one node, as they follow its stream record by record.

A standby follows all the time. Who takes a shard over follows up to its own term, and then works on
the same files as the owner.
"""

from __future__ import annotations

import os
from collections import OrderedDict

from penstock.clock import Clock
from penstock.cluster.directory import Directory
from penstock.cluster.fold import Fold
from penstock.cluster.position import CachePosition, read_position, this_boot, write_position
from penstock.cluster.records import MORE, Record, RecordKind, decode
from penstock.cluster.shard_log import ShardLog
from penstock.config import LogConfig
from penstock.errors import ShardDamaged
from penstock.log.commit import Committer
from penstock.log.files import FileSystem
from penstock.log.watermarks import write_start
from penstock.record.frame import read_header

_OPEN_MAX = 64
_CONFIG = LogConfig(fsync="never", free_bytes_min=0, segment_bytes=64 << 20)


class Replica:
    """One thread at a time uses it. Raises CacheDamaged if the files cannot be gone on with."""

    def __init__(
        self,
        folder: str,
        stream: str,
        *,
        clock: Clock,
        files: FileSystem,
        committer: Committer,
    ) -> None:
        """Lock the folder of a shard, and go on in it, or begin anew if that cannot be."""
        self.folder = folder
        self.stream = stream
        self.clock, self.files, self.committer = clock, files, committer
        files.make_folder(folder)
        self.lock = files.lock(folder, f"process {os.getpid()}")
        self._logs: OrderedDict[int, ShardLog] = OrderedDict()
        self._begun: dict[int, int] = {}
        self._parts: dict[int, list[memoryview]] = {}
        position = read_position(files, folder)
        if position is None or (position.stream, position.boot) != (stream, this_boot()):
            self.wipe()
        else:
            self.fold = Fold(position.seq, position.term, position.crc, position.voids)
            self.directory = Directory(position.directory)
            self._begun.update(position.begun)
            self._saved_seq = position.seq
            self._remove_strays()

    def wipe(self) -> None:
        """Forget all files, and begin with the first record."""
        self._close_logs()
        for name in self.files.list(self.folder):
            if name != "LOCK":
                _remove(self.files, os.path.join(self.folder, name))
        self.fold = Fold()
        self.directory = Directory()
        self._begun = {}
        self._saved_seq = 0
        self._parts.clear()

    def path(self, number: int) -> str:
        return log_path(self.folder, number)

    def take(self, seq: int, data: bytes) -> bool:
        """The next record of the stream; whether it counts."""
        record = decode(data, seq)
        if not self.fold.take(seq, record):
            return False
        match record.kind:
            case RecordKind.TERM:
                self._parts.clear()  # the one before did not finish what it began
            case RecordKind.CREATED:
                self.directory.create(record.log, record.text)
            case RecordKind.FRAMES:
                self._take_frames(record)
            case RecordKind.TRIMMED:
                if record.log in self.directory:
                    self._trim(record.log, record.offset)
            case RecordKind.REMOVED:
                self._remove(record.logs)
            case RecordKind.RENAMED:
                old, _, new = record.text.partition("\0")
                if self.directory.under(old):
                    self.directory.rename(old, new)
        return True

    def check_same(self, seq: int, data: bytes) -> None:
        """The last record that was taken is still there, or purged; not another one."""
        record = decode(data, seq)
        counted = seq not in self.fold.voids
        if seq == self.fold.seq and counted and record.crc != self.fold.crc:
            raise ShardDamaged(seq, "another one was committed there: the stream lost its end")

    def check_whole(self) -> None:
        """Called once all that is committed was taken. Raises ShardDamaged if a part is missing."""
        for number, offset in self._begun.items():
            raise ShardDamaged(
                self.fold.seq,
                f"the messages of {self.directory.numbers()[number]} below {offset} are not there, "
                "and were not dropped",
            )

    def save(self) -> None:
        """Note how far the files are, if they got on."""
        if self.fold.seq != self._saved_seq and not self._parts:
            write_position(self.files, self.folder, self.position())
            self._saved_seq = self.fold.seq

    def position(self) -> CachePosition:
        return CachePosition(
            stream=self.stream,
            boot=this_boot(),
            seq=self.fold.seq,
            term=self.fold.term,
            crc=self.fold.crc,
            directory=self.directory.state(),
            voids=self.fold.voids,
            begun=self._begun,
        )

    def hand_over(self) -> None:
        """The owner goes on with the files, under the same lock."""
        self.save()
        self._close_logs()

    def close(self) -> None:
        try:
            self.save()
            self._close_logs()
        finally:
            self.lock.release()

    # Inside.

    def _take_frames(self, record: Record) -> None:
        number = record.log
        if record.flags & MORE:
            self._parts.setdefault(number, []).append(record.body)
            return
        parts = self._parts.pop(number, None)
        if number not in self.directory:
            return
        body = record.body if parts is None else memoryview(b"".join([*parts, record.body]))
        log, first = self._log(number), read_header(body).base_offset
        if first > log.end:  # what lies between was trimmed, as a record says that is still to come
            log = self._begin_at(number, first)
            self._begun[number] = first
        log.take(body, record.flags)

    def _log(self, number: int) -> ShardLog:
        log = self._logs.get(number)
        if log is None:
            if len(self._logs) >= _OPEN_MAX:
                self._logs.popitem(last=False)[1].close()
            log = self._logs[number] = self._open(number)
        self._logs.move_to_end(number)
        return log

    def _begin_at(self, number: int, offset: int) -> ShardLog:
        """Go on with an empty log from an offset on."""
        log, path = self._logs.pop(number, None), self.path(number)
        if log is not None:
            log.close()
        self.files.remove_folder(path)
        self.files.make_folder(path)
        write_start(self.files, path, offset)
        return self._log(number)

    def _open(self, number: int) -> ShardLog:
        return ShardLog.of_shard(
            self.path(number),
            number,
            _CONFIG,
            clock=self.clock,
            files=self.files,
            committer=self.committer,
            order=None,
        )

    def _trim(self, number: int, before: int) -> None:
        if before >= self._begun.get(number, before + 1):
            del self._begun[number]
        log = self._log(number)
        if log.end < before:  # what lies between was purged
            self._begin_at(number, before)
            return
        if before == log.end:
            log.roll()
        log.trim(before)

    def _remove(self, numbers: list[int]) -> None:
        gone = self.directory.remove(numbers)
        for number in gone:
            self._begun.pop(number, None)
            log = self._logs.pop(number, None)
            if log is not None:
                log.close()
        if gone:
            self.save()  # before the files go: what is read again must not miss them
            for number in gone:
                self.files.remove_folder(self.path(number))

    def _remove_strays(self) -> None:
        """Logs that were made and never committed, or removed before a crash."""
        try:
            found = self.files.list(os.path.join(self.folder, "logs"))
        except FileNotFoundError:
            return
        for name in found:
            if name.isdigit() and int(name) not in self.directory:
                # Of one that the stream is still to tell of, the files come again.
                self.files.remove_folder(os.path.join(self.folder, "logs", name))

    def _close_logs(self) -> None:
        while self._logs:
            self._logs.popitem()[1].close()


def log_path(folder: str, number: int) -> str:
    return os.path.join(folder, "logs", f"{number:08d}")


def _remove(files: FileSystem, path: str) -> None:
    """A file, or a folder with all that is in it."""
    try:
        files.list(path)
    except (FileNotFoundError, NotADirectoryError):
        files.remove(path)
    else:
        files.remove_folder(path)
