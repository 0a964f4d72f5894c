"""Delta tables, through `deltalake`: no jar, and any Delta reader reads them.

How far a partition is stands in the table as an application transaction.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import InvalidInput, LakeConflict, MissingExtra
from penstock.log.files import DiskFiles
from penstock.spark.lake_table import (
    LakeFile,
    TableChange,
    changed_type,
    check_removed,
    is_ours,
    mark_of,
    rules_mark_of,
)

DELTA_LOG = "_delta_log"
_ATTEMPTS = 20
_COMMIT = re.compile(r"[0-9]{20}\.(json|checkpoint[-.\w]*)")


class DeltaLake:
    """A Delta table. A commit is one rename by its library, which a kill cannot split."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self._table: Any = None
        """As it was at the last look; the next commit follows that."""

    def exists(self) -> bool:
        """Who was killed while making a table leaves a log without a commit: there is none yet."""
        return bool(self._commits())

    def archived(self, topic: str, partitions: Iterable[int]) -> dict[int, int | None]:
        table = self._look()
        return {each: table.transaction_version(mark_of(topic, each)) for each in partitions}

    def rules(self, topic: str) -> int | None:
        version: int | None = self._look().transaction_version(rules_mark_of(topic))
        return version

    def files(self) -> list[LakeFile]:
        table = self._look()
        return [] if isinstance(table, _NoTable) else _files_of(table)

    def commit(self, change: TableChange) -> None:
        delta, actions = _deltalake(), import_module("deltalake.transaction")
        marks = change.marks()
        how = {
            "partition_by": ["date"],
            "commit_properties": delta.CommitProperties(
                app_transactions=[delta.Transaction(*each) for each in marks.items()]
            ),
        }
        schema = delta.Schema.from_arrow(change.schema.append(pa.field("date", pa.date32())))
        adds = _adds(change)
        table, self._table = self._table, None
        try:
            if not self.exists():
                seen = 0
                actions.create_table_with_add_actions(self.folder, schema, adds, **how)
            else:
                table = table or self._open()
                known = _versions(table, marks)
                if isinstance(table, _NoTable):  # somebody else has made it since
                    table = self._open()
                    if _versions(table, marks) != known:
                        raise LakeConflict(
                            f"{self.folder}: another pipeline archives the same topic"
                        )
                seen = table.version()
                for left in reversed(range(_ATTEMPTS)):
                    done = [*adds, *_removes(self.folder, table, change)]
                    try:
                        table.create_write_transaction(done, mode="append", schema=schema, **how)
                        break
                    except delta.exceptions.CommitFailedError:
                        # Somebody else was first. What they did may have nothing to do with it.
                        table = self._open()
                        if not left or _versions(table, marks) != known:
                            raise
        except delta.exceptions.DeltaError as exc:
            raise LakeConflict(f"{self.folder}: the commit was refused: {exc}") from exc
        finally:
            self._table = None
        self._sync_log(seen)

    def sync(self) -> None:
        """What came before the last checkpoint no reader needs."""
        names = self._commits()
        if names:
            points = [_version_of(name) for name in names if "checkpoint" in name]
            self._sync_log(max(points, default=0))

    def make_room_for(self, schema: pa.Schema) -> None:
        if not self.exists():
            return
        table = self._open()
        known = {field.name: field for field in table.schema().fields}
        given = _deltalake().Schema.from_arrow(schema).fields
        for field in given:
            if field.name in known and field.type != known[field.name].type:
                raise changed_type(self.folder, field.name, known[field.name].type, field.type)
        new = [field for field in given if field.name not in known]
        if new:
            seen = table.version()
            try:
                table.alter.add_columns(new)
            except _deltalake().exceptions.CommitFailedError as exc:
                raise LakeConflict(
                    f"{self.folder}: another pipeline wrote to it while it got columns. Try again."
                ) from exc
            self._sync_log(seen)

    def staged_folder(self) -> str:
        return self.folder  # Delta readers see only what was committed

    def garbage(self, older_s: float) -> list[str]:
        """Delta knows when a file was replaced: who reads an older version may still need it."""
        paths: list[str] = self._open().vacuum(
            retention_hours=int(older_s // 3600),
            dry_run=True,
            enforce_retention_duration=False,
            full=True,
        )
        return [os.path.join(self.folder, path) for path in paths if is_ours(path)]

    def _look(self) -> Any:
        """The table as it is now, or what says of everything that it is not there."""
        self._table = self._open() if self.exists() else _NoTable()
        return self._table

    def _open(self) -> Any:
        delta = _deltalake()
        try:
            return delta.DeltaTable(self.folder)
        except delta.exceptions.DeltaError as exc:
            raise InvalidInput(f"{self.folder} is no Delta table that can be read: {exc}") from exc

    def _sync_log(self, since: int) -> None:
        """The library leaves it to the system when its commits reach stable storage. Whoever wrote
        the one that was seen last may have been killed before it saw to that: it is synced too."""
        log = os.path.join(self.folder, DELTA_LOG)
        for name in self._commits():
            if _version_of(name) >= since:
                _sync_file(os.path.join(log, name))
        for folder in (log, self.folder, os.path.dirname(self.folder)):
            DiskFiles().sync_folder(folder)

    def _commits(self) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            names = os.listdir(os.path.join(self.folder, DELTA_LOG))
            return [name for name in names if _COMMIT.fullmatch(name)]
        return []


def _version_of(name: str) -> int:
    return int(name[:20])


class _NoTable:
    """In place of a table that nobody has made yet."""

    def transaction_version(self, mark: str) -> None:
        return None


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _versions(table: Any, marks: Iterable[str]) -> list[int | None]:
    return [table.transaction_version(mark) for mark in marks]


def _adds(change: TableChange) -> list[Any]:
    add = import_module("deltalake.transaction").AddAction
    now_ms = int(time.time() * 1000)
    return [
        add(each.path, each.size_bytes, {"date": each.date}, now_ms, True, _stats(each))
        for each in change.added
    ]


def _removes(folder: str, table: Any, change: TableChange) -> list[Any]:
    if not change.removed:
        return []
    known = {each.path: each for each in _files_of(table)}
    check_removed(folder, change.removed, known)
    remove = import_module("deltalake.transaction").RemoveAction
    now_ms = int(time.time() * 1000)
    return [
        remove(path, True, now_ms, known[path].size_bytes, {"date": known[path].date})
        for path in change.removed
    ]


def _files_of(table: Any) -> list[LakeFile]:
    return [
        LakeFile(
            row["path"],
            str(row.get("partition.date")),
            row["size_bytes"],
            row["num_records"] or 0,
            row.get("min.offset") or 0,
            row.get("max.offset") or 0,
        )
        for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    ]


def _stats(file: LakeFile) -> str:
    stats = {
        "numRecords": file.rows,
        "minValues": {"offset": file.offset_min},
        "maxValues": {"offset": file.offset_max},
        "nullCount": {"offset": 0},
    }
    return msgspec.json.encode(stats).decode()


def _deltalake() -> Any:
    try:
        return import_module("deltalake")
    except ModuleNotFoundError:
        raise MissingExtra("spark", "a Delta table") from None
