"""Delta tables, through `deltalake`: no jar, and any Delta reader reads them.

How far a partition is stands in the table as an application transaction.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal

import msgspec
import pyarrow as pa

from penstock.errors import InvalidInput, LakeConflict, MissingExtra, Unavailable
from penstock.log.files import DiskFiles
from penstock.spark.lake_table import (
    LakeFile,
    TableChange,
    changed_type,
    check_all_removed,
    check_partitions,
    check_removed,
    fits,
    is_narrower,
    is_ours,
    message_column,
)
from penstock.spark.options import in_object_store
from penstock.spark.table_layout import ColumnRange, TableLayout, partition_text

DELTA_LOG = "_delta_log"
_ATTEMPTS = 20
_STATISTICS = "delta.dataSkippingStatsColumns"
_TICKED = re.compile(r"`((?:[^`]|``)+)`|([^,`\s]+)")
_DRAWN = re.compile("\x1b\\[\\d+m|\u21b3")
"""The library draws the errors of a store as trees, in red."""
_COMMIT = re.compile(r"[0-9]{20}\.(json|checkpoint[-.\w]*)")


class DeltaLake:
    """A Delta table. A commit is one rename by its library, which a kill cannot split; in an object
    store it is one conditional put."""

    kind: Literal["delta", "iceberg"] = "delta"

    def __init__(self, folder: str, storage: Mapping[str, str] | None = None) -> None:
        self._is_local = not in_object_store(folder)
        self.folder = os.path.abspath(folder) if self._is_local else folder
        self.storage = dict(storage or {})
        self._table: Any = None
        """As it was at the last look; the next commit follows that."""

    def exists(self) -> bool:
        """Who was killed while making a table leaves a log without a commit: there is none yet."""
        if self._is_local:
            return bool(self._commits())
        try:
            return bool(_deltalake().DeltaTable.is_deltatable(self.folder, self.storage))
        except OSError as exc:  # the first look, where a wrong address or key shows itself
            why = " ".join(_DRAWN.sub("", str(exc)).split())
            raise Unavailable(
                f"{self.folder} cannot be looked at: {why}. Check the address of the store, and "
                "the key for it, in the environment (such as AWS_ACCESS_KEY_ID) or in the storage "
                "options"
            ) from exc

    def marks(self, names: Iterable[str]) -> dict[str, int]:
        return _marks(self._look(), names)

    def files(self) -> list[LakeFile]:
        table = self._look()
        return [] if isinstance(table, _NoTable) else _files_of(table)

    def schema(self) -> pa.Schema:
        return pa.schema(self._open().schema().to_arrow())

    def commit(self, change: TableChange) -> None:
        delta, actions = _deltalake(), import_module("deltalake.transaction")
        marks = change.marks()
        how = {
            "partition_by": change.layout.partition_by,
            "commit_properties": delta.CommitProperties(
                app_transactions=[delta.Transaction(*each) for each in marks.items()]
            ),
        }
        schema = delta.Schema.from_arrow(change.columns())
        adds = _adds(change)
        table, self._table = self._table, None
        try:
            if not self.exists():
                seen = 0
                actions.create_table_with_add_actions(
                    *(self.folder, schema, adds),
                    configuration=_chosen(change),
                    storage_options=self.storage,
                    **how,
                )
            else:
                table = table or self._open()
                known = _marks(table, marks)
                if isinstance(table, _NoTable):  # somebody else has made it since
                    table = self._open()
                    if change.collides(known, _marks(table, marks)):
                        raise LakeConflict(
                            f"{self.folder}: another pipeline archives the same topic"
                        )
                seen = table.version()
                how["partition_by"] = table.metadata().partition_columns
                check_partitions(self.folder, change, how["partition_by"])
                for left in reversed(range(_ATTEMPTS)):
                    done = [*adds, *_removes(self.folder, table, change)]
                    try:
                        table.create_write_transaction(
                            done,
                            mode="overwrite" if change.rewrites else "append",
                            schema=schema,
                            **how,
                        )
                        break
                    except delta.exceptions.CommitFailedError:
                        # Somebody else was first. What they did may have nothing to do with it.
                        table = self._open()
                        if _has_all(table, change):
                            break  # it was us: the store has taken it, and its answer was lost
                        if not left or change.collides(known, _marks(table, marks)):
                            raise
        except delta.exceptions.DeltaError as exc:
            raise LakeConflict(f"{self.folder}: the commit was refused: {exc}") from exc
        finally:
            self._table = None
        self._sync_log(seen)

    def sync(self) -> None:
        """What came before the last checkpoint no reader needs. A store has what it has said that
        it took."""
        names = self._commits()
        if names:
            points = [_version_of(name) for name in names if "checkpoint" in name]
            self._sync_log(max(points, default=0))

    def layout(self) -> TableLayout | None:
        if not self.exists():
            return None
        table = self._open()
        said = table.metadata()
        statistics = _TICKED.findall(said.configuration.get(_STATISTICS) or "")
        names = [ticked.replace("``", "`") or plain for ticked, plain in statistics]
        return TableLayout(said.partition_columns, [n for n in names if n != _offset_of(table)])

    def describe(self, statistics: Sequence[str]) -> None:
        table = self._open()
        seen = table.version()
        chosen = statistics_property([_offset_of(table), *statistics])
        table.alter.set_table_properties(chosen, raise_if_not_exists=False)
        self._sync_log(seen)

    def make_room_for(self, schema: pa.Schema) -> None:
        if not self.exists():
            return
        table, delta = self._open(), _deltalake()
        known = pa.schema(table.schema().to_arrow())
        new = []
        for field in pa.schema(delta.Schema.from_arrow(schema).to_arrow()):
            if field.name not in known.names:
                new.append(field)
                continue
            there = known.field(field.name).type
            if not fits(there, field.type):
                raise changed_type(
                    *(self.folder, field.name, there, field.type),
                    is_wider=is_narrower(there, field.type),
                )
            if there != field.type and not is_narrower(field.type, there):
                new.append(field)  # with more inside
        if new:
            seen = table.version()
            by = [known.field(name) for name in table.metadata().partition_columns]
            rows = pa.Table.from_pylist([], schema=pa.schema([*new, *by]))
            try:
                delta.write_deltalake(table, rows, mode="append", schema_mode="merge")
            except _deltalake().exceptions.CommitFailedError as exc:
                raise LakeConflict(
                    f"{self.folder}: another pipeline wrote to it while it got columns. Try again."
                ) from exc
            self._sync_log(seen)

    def garbage(self, older_s: float) -> list[str]:
        """Delta knows when a file was replaced: who reads an older version may still need it."""
        paths: list[str] = self._open().vacuum(
            retention_hours=int(older_s // 3600),
            dry_run=True,
            enforce_retention_duration=False,
            full=True,
        )
        return [path for path in paths if is_ours(path)]

    def _look(self) -> Any:
        """The table as it is now, or what says of everything that it is not there."""
        self._table = self._open() if self.exists() else _NoTable()
        return self._table

    def _open(self) -> Any:
        delta = _deltalake()
        try:
            return delta.DeltaTable(self.folder, storage_options=self.storage)
        except delta.exceptions.DeltaError as exc:
            raise InvalidInput(f"{self.folder} is no Delta table that can be read: {exc}") from exc

    def _sync_log(self, since: int) -> None:
        """The library leaves it to the system when its commits reach stable storage. Whoever wrote
        the one that was seen last may have been killed before it saw to that: it is synced too."""
        if not self._is_local:
            return
        log = os.path.join(self.folder, DELTA_LOG)
        for name in self._commits():
            if _version_of(name) >= since:
                _sync_file(os.path.join(log, name))
        for folder in (log, self.folder, os.path.dirname(self.folder)):
            DiskFiles().sync_folder(folder)

    def _commits(self) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):  # also: in an object store
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


def _marks(table: Any, names: Iterable[str]) -> dict[str, int]:
    found = ((name, table.transaction_version(name)) for name in names)
    return {name: version for name, version in found if version is not None}


def _adds(change: TableChange) -> list[Any]:
    add = import_module("deltalake.transaction").AddAction
    now_ms, offset = int(time.time() * 1000), message_column("offset", change.schema.names)
    return [
        add(each.path, each.size_bytes, each.partition, now_ms, True, _stats(each, offset))
        for each in change.added
    ]


def _has_all(table: Any, change: TableChange) -> bool:
    """Whether the files of a change, whose names are nobody else's, are in a table."""
    return bool(change.added) and {each.path for each in change.added} <= {
        each.path for each in _files_of(table)
    }


def _removes(folder: str, table: Any, change: TableChange) -> list[Any]:
    if not change.removed:
        return []
    known = {each.path: each for each in _files_of(table)}
    if change.rewrites:  # the library removes them itself: all that it knows of
        check_all_removed(folder, change.removed, known)
        return []
    check_removed(folder, change.removed, known)
    remove = import_module("deltalake.transaction").RemoveAction
    now_ms = int(time.time() * 1000)
    return [
        remove(path, True, now_ms, known[path].size_bytes, known[path].partition)
        for path in change.removed
    ]


def _offset_of(table: Any) -> str:
    return message_column("offset", [field.name for field in table.schema().fields])


def _files_of(table: Any) -> list[LakeFile]:
    by, offset = table.metadata().partition_columns, _offset_of(table)
    return [
        LakeFile(
            row["path"],
            {name: partition_text(row.get(f"partition.{name}")) for name in by},
            row["size_bytes"],
            row["num_records"] or 0,
            row.get(f"min.{offset}") or 0,
            row.get(f"max.{offset}") or 0,
        )
        for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    ]


def _stats(file: LakeFile, offset: str) -> str:
    ranges = {**file.ranges, offset: ColumnRange(file.offset_min, file.offset_max, 0)}
    known = {name: each for name, each in ranges.items() if each.least is not None}
    ordered = {name: each for name, each in known.items() if not isinstance(each.least, bool)}
    stats = {
        "numRecords": file.rows,
        "minValues": {name: each.least for name, each in ordered.items()},
        "maxValues": {name: each.most for name, each in ordered.items()},
        "nullCount": {name: each.nulls for name, each in ranges.items()},
    }
    return msgspec.json.encode(stats).decode()


def _chosen(change: TableChange) -> dict[str, str]:
    statistics = change.layout.statistics
    offset = message_column("offset", change.schema.names)
    chosen = statistics_property([offset, *statistics]) if statistics else {}
    return chosen | change.layout.properties


def statistics_property(columns: Sequence[str]) -> dict[str, str]:
    """The property by which other writers know of a choice, too."""
    ticked = ["`" + name.replace("`", "``") + "`" for name in columns]
    return {_STATISTICS: ",".join(ticked)}


def _deltalake() -> Any:
    try:
        return import_module("deltalake")
    except ModuleNotFoundError:
        raise MissingExtra("spark", "a Delta table") from None
