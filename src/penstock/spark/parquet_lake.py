"""Parquet tables: a folder of files that any reader reads, with a small log of our own."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress

import msgspec
import pyarrow as pa

from penstock.errors import LakeConflict
from penstock.log.files import DiskFiles, write_synced
from penstock.spark.lake_table import (
    LakeFile,
    TableChange,
    changed_type,
    check_removed,
    is_ours,
    mark_of,
    rules_mark_of,
)

COMMITS = "_penstock"
_STAGED = "_staged"


class _Commit(msgspec.Struct, frozen=True):
    added: list[LakeFile]
    removed: list[str]
    offsets: dict[str, int]
    columns: dict[str, str] = {}
    """The types of the columns of the files that are added."""


class ParquetLake:
    """A folder of Parquet files with a log `_penstock/<number>.json`.

    A commit is the creation of the next number, which only one can succeed in. Its files are then
    moved into place, and files that it replaces are removed; whoever opens the table next finishes
    that if it was cut short.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self._files = DiskFiles()
        self._commits: list[_Commit] = []
        self._look()

    def exists(self) -> bool:
        return bool(self._commits)

    def archived(self, topic: str, partitions: Iterable[int]) -> dict[int, int | None]:
        marks = self._marks()
        return {each: marks.get(mark_of(topic, each)) for each in partitions}

    def rules(self, topic: str) -> int | None:
        return self._marks().get(rules_mark_of(topic))

    def files(self) -> list[LakeFile]:
        self._look()
        return self._kept()

    def commit(self, change: TableChange) -> None:
        self._files.make_folder(os.path.join(self.folder, COMMITS))
        commit = _Commit(
            list(change.added),
            list(change.removed),
            change.marks(),
            {field.name: str(field.type) for field in change.schema},
        )
        seen = len(self._commits)
        while True:
            check_removed(self.folder, change.removed, {each.path for each in self._kept()})
            if any(other.offsets.keys() & commit.offsets for other in self._commits[seen:]):
                raise LakeConflict(f"{self.folder}: another pipeline archives the same topic")
            if self._append(commit):
                break
            self._look()  # somebody else was first; what they did may have nothing to do with it
        self._commits.append(commit)
        self._finish(commit)

    def sync(self) -> None:
        """A commit has its content before it has its name."""
        if self.exists():
            for folder in (os.path.join(self.folder, COMMITS), self.folder):
                self._files.sync_folder(folder)

    def make_room_for(self, schema: pa.Schema) -> None:
        """Readers put together the columns of all files; they only have to agree."""
        self._look()
        known = {name: kind for each in self._commits for name, kind in each.columns.items()}
        for field in schema:
            if known.get(field.name, str(field.type)) != str(field.type):
                raise changed_type(self.folder, field.name, known[field.name], field.type)

    def staged_folder(self) -> str:
        return os.path.join(self.folder, _STAGED)  # readers pass over names that begin with _

    def garbage(self, older_s: float) -> list[str]:
        """What was replaced went with the commit; left are files that were never committed."""
        old, staged, found = time.time() - older_s, self.staged_folder(), []
        for place, _, names in os.walk(staged):
            for path in (os.path.join(place, name) for name in names):
                with suppress(FileNotFoundError):  # a commit moves it just now
                    if is_ours(os.path.relpath(path, staged)) and os.path.getmtime(path) <= old:
                        found.append(path)
        return found

    def _marks(self) -> dict[str, int]:
        self._look()
        marks: dict[str, int] = {}
        for commit in self._commits:
            marks.update(commit.offsets)
        return marks

    def _kept(self) -> list[LakeFile]:
        kept: dict[str, LakeFile] = {}
        for commit in self._commits:
            kept.update({each.path: each for each in commit.added})
            for path in commit.removed:
                kept.pop(path, None)
        return list(kept.values())

    def _look(self) -> None:
        """Learn of commits since the last look."""
        with suppress(FileNotFoundError, NotADirectoryError):
            while True:
                data = self._files.read(self._path(len(self._commits)))
                self._commits.append(msgspec.json.decode(data, type=_Commit))
                self._finish(self._commits[-1])

    def _append(self, commit: _Commit) -> bool:
        """Make it the next commit; False if there is another one of that number."""
        path = self._path(len(self._commits))
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        write_synced(self._files, temporary, msgspec.json.encode(commit))
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        self._files.sync_folder(os.path.dirname(path))
        return True

    def _finish(self, commit: _Commit) -> None:
        for each in commit.added:
            place = os.path.join(self.folder, each.path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with suppress(FileNotFoundError):  # moved already, and perhaps removed since
                os.rename(os.path.join(self.staged_folder(), each.path), place)
        for path in commit.removed:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, path))

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, COMMITS, f"{number:020d}.json")
