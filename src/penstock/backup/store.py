"""A folder of backups: contents by their hash, and a list of files for each backup.

`objects/<hash>` is what a file held; what several backups have in common is there once, so a backup
costs what was written since the last one. `backups/<name>.json` says which objects make up a data
folder. It appears when all of them are there, durably: a crash before leaves objects that nobody
names, which the next backup uses or removes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from calendar import timegm
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from penstock.backup.sweep import SweptFile, sweep
from penstock.errors import BackupDamaged, BackupFailed, InvalidInput

_CHUNK_BYTES = 1 << 20
_ATTEMPTS_MAX = 20
_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z")
_HASH = re.compile(r"[0-9a-f]{64}")
_TIME = "%Y%m%dT%H%M%S"
_VERSION = 1

Advance = Callable[[int], None]
"""Told of so many bytes that were copied or looked at."""


class BackupFile(msgspec.Struct, frozen=True):
    """One file of a backup."""

    path: str
    size_bytes: int
    sha256: str
    inode: int = 0
    """Of the original: a segment that has the same and is as long is the same."""


class BackupList(msgspec.Struct, frozen=True, kw_only=True):
    """One backup, as it is stored."""

    version: int = _VERSION
    made_at_us: int
    files: list[BackupFile]


class BackupMade(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup is, and what it cost."""

    name: str
    files: int
    size_bytes: int
    copied_bytes: int
    """What was not in another backup."""


class BackupStore:
    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.path.abspath(os.fspath(folder))
        self._objects = os.path.join(self.folder, "objects")
        self._lists = os.path.join(self.folder, "backups")

    def names(self) -> list[str]:
        """Of all backups, the oldest first."""
        try:
            listed = os.listdir(self._lists)
        except FileNotFoundError:
            return []
        names = (name.removesuffix(".json") for name in listed if name.endswith(".json"))
        return sorted(name for name in names if _NAME.fullmatch(name))

    def load(self, name: str | None = None) -> tuple[str, BackupList]:
        """A backup, by default the latest."""
        names = self.names()
        if name is None and names:
            name = names[-1]
        if name not in names or name is None:
            if not names:
                raise InvalidInput(f"there are no backups in {self.folder}")
            raise InvalidInput(
                f"{self.folder} has no backup {name!r}: there are {', '.join(names[-5:])}"
            )
        path = os.path.join(self._lists, f"{name}.json")
        try:
            with open(path, "rb") as file:
                found = msgspec.json.decode(file.read(), type=BackupList)
        except msgspec.MsgspecError as exc:
            raise BackupDamaged(path, str(exc)) from exc
        if found.version != _VERSION:
            raise BackupDamaged(path, f"version {found.version}; this Penstock knows {_VERSION}")
        for each in found.files:
            _check_path(path, each)
        return name, found

    def make(self, data: str | os.PathLike[str], advance: Advance = lambda _: None) -> BackupMade:
        """Back up a data folder, in use or not."""
        data = os.path.abspath(os.fspath(data))
        if os.path.commonpath([data, self.folder]) in (data, self.folder):
            raise InvalidInput("a folder of backups is neither in the data folder nor around it")
        os.makedirs(os.path.dirname(self.folder), exist_ok=True)
        for folder in (self.folder, self._objects, self._lists):  # nobody else's to look at
            os.makedirs(folder, mode=0o700, exist_ok=True)
        with self._alone():
            known = self._known()
            copied = 0
            for _ in range(_ATTEMPTS_MAX):
                swept = sweep(data)
                try:
                    files, bytes_new = self._store(data, swept, known, advance)
                except _Changed:
                    continue  # a segment was dropped meanwhile; what was copied stays
                copied += bytes_new
                break
            else:
                raise BackupFailed(f"{data}: segments are dropped faster than they are copied")
            _sync_folder(self._objects)
            name = self._write(BackupList(made_at_us=time.time_ns() // 1000, files=files))
        total = sum(file.size_bytes for file in files)
        return BackupMade(name=name, files=len(files), size_bytes=total, copied_bytes=copied)

    def verify(self, name: str | None = None, advance: Advance = lambda _: None) -> BackupMade:
        """Read every byte of a backup. Raises BackupDamaged."""
        name, found = self.load(name)
        for each in found.files:
            for chunk in self.read(each):
                advance(len(chunk))
        total = sum(each.size_bytes for each in found.files)
        return BackupMade(name=name, files=len(found.files), size_bytes=total, copied_bytes=0)

    def keep(self, count: int) -> list[str]:
        """Remove all but the latest; those that are gone."""
        if count < 1:
            raise InvalidInput(f"keep is {count}; at least one backup is kept")
        with self._alone():
            gone = self.names()[:-count]
            for name in gone:
                os.unlink(os.path.join(self._lists, f"{name}.json"))
            _sync_folder(self._lists)
            needed = {each.sha256 for name in self.names() for each in self.load(name)[1].files}
            for listed in os.listdir(self._objects):
                if listed not in needed:
                    os.unlink(os.path.join(self._objects, listed))
        return gone

    def read(self, file: BackupFile) -> Iterator[bytes]:
        """What a file held. Raises BackupDamaged at the end if that is not what was stored."""
        path, digest, size_bytes = os.path.join(self._objects, file.sha256), hashlib.sha256(), 0
        try:
            with open(path, "rb") as source:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    size_bytes += len(chunk)
                    yield chunk
        except FileNotFoundError:
            raise BackupDamaged(path, f"it is missing; {file.path} was in it") from None
        if digest.hexdigest() != file.sha256 or size_bytes != file.size_bytes:
            raise BackupDamaged(path, f"it does not hold what was stored of {file.path}")

    def _known(self) -> dict[tuple[str, int, int], str]:
        """Segments of the last backup, by what tells that they are the same still."""
        names = self.names()
        if not names:
            return {}
        files = self.load(names[-1])[1].files
        return {(each.path, each.size_bytes, each.inode): each.sha256 for each in files}

    def _store(
        self,
        data: str,
        swept: list[SweptFile],
        known: dict[tuple[str, int, int], str],
        advance: Advance,
    ) -> tuple[list[BackupFile], int]:
        files, copied = [], 0
        for file in swept:
            same = known.get((file.path, file.size_bytes, file.inode)) if file.only_grows else None
            if same is not None and self._holds(same, file.size_bytes):
                digest, bytes_new = same, 0
            elif file.content is not None:
                digest, bytes_new = self._put(iter((file.content,)))
            else:
                digest, bytes_new = self._put(_prefix(os.path.join(data, file.path), file))
            copied += bytes_new
            advance(file.size_bytes)
            files.append(BackupFile(file.path, file.size_bytes, digest, file.inode))
        return files, copied

    def _holds(self, digest: str, size_bytes: int) -> bool:
        with suppress(FileNotFoundError):
            return os.path.getsize(os.path.join(self._objects, digest)) == size_bytes
        return False

    def _put(self, chunks: Iterator[bytes]) -> tuple[str, int]:
        """Store a content, unless it is here; its hash, and how many bytes that took."""
        digest, size_bytes = hashlib.sha256(), 0
        new = os.path.join(self._objects, "new.tmp")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as out:
            for chunk in chunks:
                digest.update(chunk)
                out.write(chunk)
                size_bytes += len(chunk)
            name = digest.hexdigest()
            if self._holds(name, size_bytes):
                os.unlink(new)
                return name, 0
            out.flush()
            os.fsync(out.fileno())
        os.rename(new, os.path.join(self._objects, name))
        return name, size_bytes

    def _write(self, made: BackupList) -> str:
        names = self.names()
        now_ms = int(time.time() * 1000)
        if names:
            now_ms = max(now_ms, _ms_of(names[-1]) + 1)  # also if the clock was set back
        name = f"{time.strftime(_TIME, time.gmtime(now_ms // 1000))}.{now_ms % 1000:03d}Z"
        path = os.path.join(self._lists, f"{name}.json")
        fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.write(msgspec.json.encode(made))
            out.flush()
            os.fsync(out.fileno())
        os.rename(f"{path}.tmp", path)
        _sync_folder(self._lists)
        return name

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No two at a time."""
        fd = os.open(
            os.path.join(self.folder, "LOCK"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupFailed(f"another backup is being made in {self.folder}") from None
            yield
        finally:
            os.close(fd)


def _ms_of(name: str) -> int:
    seconds, _, ms = name.rstrip("Z").partition(".")
    return timegm(time.strptime(seconds, _TIME)) * 1000 + int(ms)


class _Changed(Exception):
    """A file is no longer what was swept."""


def _prefix(path: str, file: SweptFile) -> Iterator[bytes]:
    """A segment, as long as it was."""
    try:
        source = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise _Changed from None
    with source:
        if os.fstat(source.fileno()).st_ino != file.inode:
            raise _Changed
        left = file.size_bytes
        while left:
            chunk = source.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise _Changed
            left -= len(chunk)
            yield chunk


def _check_path(where: str, file: BackupFile) -> None:
    parts = file.path.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\0" in file.path:
        raise BackupDamaged(where, f"{file.path!r:.100} is no path in a data folder")
    if not _HASH.fullmatch(file.sha256):
        raise BackupDamaged(where, f"{file.sha256!r:.100} is no hash")


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
