"""Lake tables: folders of Parquet files by date, and what is in them, as one truth.

A table is committed to by whole files, together with how far the log is in it: for each partition
of the topic the next offset. Both change at once or not at all, so a pipeline that is killed goes
on where the table says, and nothing is in it twice. Delta tables keep the offsets as application
transactions (`penstock:<topic>:<partition>`); Parquet tables have a small log of their own.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Container, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal, Protocol, get_args

import msgspec
import pyarrow as pa

from penstock.errors import InvalidInput, LakeConflict, MissingExtra
from penstock.log.files import DiskFiles, write_synced

LakeFormat = Literal["delta", "parquet"]

_DELTA_LOG = "_delta_log"
_COMMITS = "_penstock"
_STAGED = "_staged"


class LakeFile(msgspec.Struct, frozen=True):
    """A Parquet file, by its path in the table."""

    path: str
    date: str
    size_bytes: int
    rows: int
    offset_min: int = 0
    offset_max: int = 0


class Lake(Protocol):
    """One table."""

    folder: str

    def exists(self) -> bool: ...

    def archived(self, topic: str, partition: int) -> int | None:
        """The next offset that is not in the table; None if the partition never was."""
        ...

    def files(self) -> list[LakeFile]: ...

    def commit(
        self,
        schema: pa.Schema,
        added: Sequence[LakeFile],
        *,
        removed: Sequence[str] = (),
        offsets: dict[tuple[str, int], int] | None = None,
    ) -> None:
        """All of it or nothing. LakeConflict if the table has changed since it was looked at."""
        ...

    def make_room_for(self, schema: pa.Schema) -> None:
        """Add the columns that are new. InvalidInput if one that is known has another type."""
        ...

    def staged_folder(self) -> str:
        """Where files wait that are to be committed."""
        ...

    def garbage(self, older_s: float) -> list[str]:
        """Files that no reader of this long ago, and nobody since, has a use for."""
        ...


def open_lake(folder: str, lake_format: LakeFormat = "delta") -> Lake:
    """A table that is there or is to be. InvalidInput if it is there and of the other kind."""
    if lake_format not in get_args(LakeFormat):
        raise InvalidInput(f"lake format {lake_format!r} is not one of delta, parquet")
    for other, mark in (("delta", _DELTA_LOG), ("parquet", _COMMITS)):
        if other != lake_format and os.path.isdir(os.path.join(folder, mark)):
            raise InvalidInput(
                f"{folder} is a {other} table; choose the format {other}, or another folder"
            )
    return DeltaLake(folder) if lake_format == "delta" else ParquetLake(folder)


def found_lake(folder: str) -> Lake:
    """A table that is there, whichever kind it is."""
    for kind in (DeltaLake, ParquetLake):
        lake: Lake = kind(folder)
        if lake.exists():
            return lake
    raise InvalidInput(f"there is no lake table in {folder}")


def new_file_name(date: str) -> str:
    return os.path.join(f"date={date}", f"part-{uuid.uuid4().hex}.parquet")


class DeltaLake:
    """A Delta table, through `deltalake`: no jar, and any Delta reader reads it."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self._table: Any = None

    def exists(self) -> bool:
        return os.path.isdir(os.path.join(self.folder, _DELTA_LOG))

    def archived(self, topic: str, partition: int) -> int | None:
        version = (
            self._open().transaction_version(_app(topic, partition)) if self.exists() else None
        )
        return None if version is None else int(version)

    def files(self) -> list[LakeFile]:
        return self._files_of(self._open()) if self.exists() else []

    def _files_of(self, table: Any) -> list[LakeFile]:
        actions = pa.table(table.get_add_actions(flatten=True))
        found = []
        for row in actions.to_pylist():
            date = row.get("partition.date")
            found.append(
                LakeFile(
                    row["path"],
                    str(date),
                    row["size_bytes"],
                    row["num_records"] or 0,
                    row.get("min.offset") or 0,
                    row.get("max.offset") or 0,
                )
            )
        return found

    def commit(
        self,
        schema: pa.Schema,
        added: Sequence[LakeFile],
        *,
        removed: Sequence[str] = (),
        offsets: dict[tuple[str, int], int] | None = None,
    ) -> None:
        delta, actions = _deltalake(), import_module("deltalake.transaction")
        properties = delta.CommitProperties(
            app_transactions=[
                delta.Transaction(_app(*place), offset) for place, offset in (offsets or {}).items()
            ],
        )
        adds = [
            actions.AddAction(
                each.path,
                each.size_bytes,
                {"date": each.date},
                int(time.time() * 1000),
                True,
                _stats(each),
            )
            for each in added
        ]
        schema = schema.append(pa.field("date", pa.date32()))
        try:
            if not self.exists():
                actions.create_table_with_add_actions(
                    self.folder,
                    delta.Schema.from_arrow(schema),
                    adds,
                    partition_by=["date"],
                    commit_properties=properties,
                )
                return
            table = self._table or self._open()  # as it was when the caller looked at it
            known = {each.path: each for each in self._files_of(table)} if removed else {}
            _check_removed(self.folder, removed, known)
            removes = [
                actions.RemoveAction(
                    path,
                    True,
                    int(time.time() * 1000),
                    known[path].size_bytes,
                    {"date": known[path].date},
                )
                for path in removed
            ]
            table.create_write_transaction(
                [*adds, *removes],
                mode="append",
                schema=delta.Schema.from_arrow(schema),
                partition_by=["date"],
                commit_properties=properties,
            )
        except delta.exceptions.DeltaError as exc:
            raise LakeConflict(f"{self.folder}: the commit was refused: {exc}") from exc
        finally:
            self._table = None

    def make_room_for(self, schema: pa.Schema) -> None:
        if not self.exists():
            return
        table = self._open()
        known = {field.name: field for field in table.schema().fields}
        given = _deltalake().Schema.from_arrow(schema).fields
        for field in given:
            if field.name in known and field.type != known[field.name].type:
                raise _changed(self.folder, field.name, known[field.name].type, field.type)
        new = [field for field in given if field.name not in known]
        if new:
            table.alter.add_columns(new)

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
        return [os.path.join(self.folder, path) for path in paths if _is_ours(path)]

    def _open(self) -> Any:
        self._table = _deltalake().DeltaTable(self.folder)
        return self._table


class _ParquetCommit(msgspec.Struct, frozen=True):
    added: list[LakeFile]
    removed: list[str]
    offsets: dict[str, int]
    columns: dict[str, str] = {}
    """The types of the columns of the files that are added."""


class ParquetLake:
    """A folder of Parquet files that any reader reads, with a log `_penstock/<number>.json`.

    A commit is the creation of the next number, which only one can succeed in. Its files are then
    moved into place, and files that it replaces are removed; whoever opens the table next finishes
    that if it was cut short.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self._files = DiskFiles()
        self._commits: list[_ParquetCommit] = []
        self._look()

    def exists(self) -> bool:
        return bool(self._commits)

    def archived(self, topic: str, partition: int) -> int | None:
        self._look()
        for commit in reversed(self._commits):
            if _app(topic, partition) in commit.offsets:
                return commit.offsets[_app(topic, partition)]
        return None

    def files(self) -> list[LakeFile]:
        self._look()
        return self._kept()

    def _kept(self) -> list[LakeFile]:
        kept: dict[str, LakeFile] = {}
        for commit in self._commits:
            kept.update({each.path: each for each in commit.added})
            for path in commit.removed:
                kept.pop(path, None)
        return list(kept.values())

    def commit(
        self,
        schema: pa.Schema,
        added: Sequence[LakeFile],
        *,
        removed: Sequence[str] = (),
        offsets: dict[tuple[str, int], int] | None = None,
    ) -> None:
        self._files.make_folder(os.path.join(self.folder, _COMMITS))
        _check_removed(self.folder, removed, {each.path for each in self._kept()})
        known = {_app(*place): offset for place, offset in (offsets or {}).items()}
        columns = {field.name: str(field.type) for field in schema}
        commit = _ParquetCommit(list(added), list(removed), known, columns)
        path = self._path(len(self._commits))
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        write_synced(self._files, temporary, msgspec.json.encode(commit))
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise LakeConflict(f"{self.folder}: another pipeline wrote to this table") from None
        finally:
            os.unlink(temporary)
        self._files.sync_folder(os.path.dirname(path))
        self._commits.append(commit)
        self._finish(commit)

    def make_room_for(self, schema: pa.Schema) -> None:
        """Readers put together the columns of all files; they only have to agree."""
        self._look()
        known = {name: kind for each in self._commits for name, kind in each.columns.items()}
        for field in schema:
            if known.get(field.name, str(field.type)) != str(field.type):
                raise _changed(self.folder, field.name, known[field.name], field.type)

    def staged_folder(self) -> str:
        return os.path.join(self.folder, _STAGED)  # readers pass over names that begin with _

    def garbage(self, older_s: float) -> list[str]:
        """What was replaced went with the commit; left are files that were never committed."""
        old = time.time() - older_s
        found = (
            os.path.join(place, name)
            for place, _, names in os.walk(self.staged_folder())
            for name in names
        )
        return [path for path in found if _is_ours(path) and os.path.getmtime(path) <= old]

    def _look(self) -> None:
        """Learn of commits since the last look."""
        with suppress(FileNotFoundError):
            while True:
                data = self._files.read(self._path(len(self._commits)))
                self._commits.append(msgspec.json.decode(data, type=_ParquetCommit))
                self._finish(self._commits[-1])

    def _finish(self, commit: _ParquetCommit) -> None:
        for each in commit.added:
            place = os.path.join(self.folder, each.path)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with suppress(FileNotFoundError):  # moved already, and perhaps removed since
                os.rename(os.path.join(self.staged_folder(), each.path), place)
        for path in commit.removed:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, path))

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, _COMMITS, f"{number:020d}.json")


def remove_garbage(lake: Lake, older_s: float = 24 * 3600) -> int:
    """Remove files of attempts that failed, and that were replaced, long ago; how many."""
    paths = lake.garbage(older_s) if lake.exists() else []
    for path in paths:
        os.unlink(path)
    return len(paths)


def _is_ours(path: str) -> bool:
    return re.fullmatch(r"part-[0-9a-f]{32}\.parquet", os.path.basename(path)) is not None


def _changed(folder: str, column: str, known: object, given: object) -> InvalidInput:
    return InvalidInput(
        f"column {column!r} of the table {folder} is of type {known}, not {given}: keep the type, "
        "or archive to another table"
    )


def _check_removed(folder: str, removed: Sequence[str], known: Container[str]) -> None:
    if not all(path in known for path in removed):
        raise LakeConflict(f"{folder}: another pipeline has replaced these files. Try again.")


def _app(topic: str, partition: int) -> str:
    return f"penstock:{topic}:{partition}"


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
