"""Iceberg tables, through `pyiceberg`: no jar, and any Iceberg reader reads them.

How far a partition is stands in the properties of the table, which change in the same commit as its
files. Tables are those of the catalog `penstock`, if pyiceberg is configured to know one; otherwise
a table in a folder has a catalog of its own in there, `catalog.db`.

A commit always makes a snapshot, also where it changes no more than the marks: pyiceberg refuses
one whose snapshot does not follow the one that was seen, and of properties it asks nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from importlib import import_module
from typing import Any, Literal

import pyarrow as pa

from penstock.errors import InvalidInput, LakeConflict, MissingExtra
from penstock.log.files import DiskFiles
from penstock.spark.lake_table import (
    LakeFile,
    TableChange,
    changed_type,
    check_partitions,
    check_removed,
    is_ours,
    message_column,
)
from penstock.spark.options import in_object_store
from penstock.spark.table_layout import (
    ColumnRange,
    TableLayout,
    partition_text,
    partition_value,
)

CATALOG = "penstock"
_CATALOG_FILE = "catalog.db"
_ATTEMPTS = 20
_FILES = "penstock.spark.iceberg_files.SyncedFiles"
_PROPERTIES = {
    "commit.retry.num-retries": "0",  # what pyiceberg tries again, it does not look at the marks
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_METRICS = "write.metadata.metrics."
_EPOCH = date(1970, 1, 1)
_STORE_SETTINGS = {
    "aws_endpoint_url": "s3.endpoint",
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
    "aws_region": "s3.region",
}


class IcebergLake:
    """An Iceberg table."""

    kind: Literal["delta", "iceberg"] = "iceberg"

    def __init__(self, folder: str, storage: Mapping[str, str] | None = None) -> None:
        self.folder = folder if in_object_store(folder) else os.path.abspath(folder)
        self.storage = dict(storage or {})
        self._table: Any = None
        """As it was at the last look; the next commit follows that."""
        self._looked = False

    def may_exist(self) -> bool:
        return os.path.exists(os.path.join(self.folder, _CATALOG_FILE)) or _is_configured()

    def exists(self) -> bool:
        return self.may_exist() and self._open() is not None

    def marks(self, names: Iterable[str]) -> dict[str, int]:
        return _marks(self._look(), names)

    def files(self) -> list[LakeFile]:
        table = self._look()
        return [] if table is None else [self._file_of(table, each) for each in _entries(table)]

    def schema(self) -> pa.Schema:
        columns: pa.Schema = self._open().schema().as_arrow()
        return columns

    def committed_us(self) -> int | None:
        """When it was last committed to."""
        table = self._open() if self.may_exist() else None
        return None if table is None else int(table.metadata.last_updated_ms) * 1000

    def commit(self, change: TableChange) -> None:
        errors = import_module("pyiceberg.exceptions")
        marks = change.marks()
        table, looked = self._table, self._looked
        self._table, self._looked = None, False
        if not looked:
            table = self._open()
        known = _marks(table, marks)
        if table is None:
            table = self._made(change)
            if change.collides(known, _marks(table, marks)):
                raise LakeConflict(f"{self.folder}: another pipeline archives the same topic")
        for left in reversed(range(_ATTEMPTS)):
            try:
                self._append(table, change, marks)
                return
            except errors.CommitFailedException as exc:
                # Somebody else was first. What they did may have nothing to do with it.
                table = self._open()
                if not left or change.collides(known, _marks(table, marks)):
                    raise LakeConflict(f"{self.folder}: the commit was refused: {exc}") from exc

    def sync(self) -> None:
        """The catalog names only what was on stable storage before; it syncs itself."""

    def layout(self) -> TableLayout | None:
        table = self._open() if self.may_exist() else None
        if table is None:
            return None
        offset = _offset_of(table)
        chosen = [
            name.removeprefix(f"{_METRICS}column.")
            for name, how in table.properties.items()
            if name.startswith(_METRICS) and how == "full"
        ]
        return TableLayout(
            [name for name, _ in _parts_of(table)],
            [name for name in chosen if offset is None or name != offset.name],
        )

    def describe(self, statistics: Sequence[str]) -> None:
        errors, table = import_module("pyiceberg.exceptions"), self._open()
        offset = _offset_of(table)
        chosen = _described([*([offset.name] if offset else []), *statistics])
        former = {name for name in table.properties if name.startswith(_METRICS)}
        try:
            with table.transaction() as transaction:
                transaction.remove_properties(*(former - set(chosen)))
                transaction.set_properties(chosen)
        except errors.CommitFailedException as exc:
            raise LakeConflict(f"{self.folder}: another pipeline wrote to it. Try again.") from exc

    def make_room_for(self, schema: pa.Schema) -> None:
        """New columns and fields; and types that hold all of what the former did."""
        table = self._open() if self.may_exist() else None
        if table is None:
            return
        errors = import_module("pyiceberg.exceptions")
        before = table.schema()
        update = table.update_schema()
        for field in schema:
            try:
                update.union_by_name(pa.schema([field]))
            except (errors.ResolveError, errors.ValidationError, ValueError) as exc:
                known = before.find_field(field.name).field_type
                raise changed_type(self.folder, field.name, known, field.type) from exc
        try:
            update.commit()
        except errors.CommitFailedException as exc:
            raise LakeConflict(
                f"{self.folder}: another pipeline wrote to it while it got columns. Try again."
            ) from exc

    def garbage(self, older_s: float) -> list[str]:
        """Files that no snapshot of this long ago, and none since, has; the older ones go."""
        table = self._look()
        if table is None or in_object_store(self.folder):
            return []
        since = time.time() - older_s
        snapshots = sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms)
        ended_ms = [each.timestamp_ms for each in snapshots[1:]]
        old = [
            each.snapshot_id
            for each, end_ms in zip(snapshots, ended_ms, strict=False)
            if end_ms <= since * 1000 and each.snapshot_id != table.metadata.current_snapshot_id
        ]
        kept = {
            self._path_of(entry.data_file.file_path)
            for snapshot in snapshots
            if snapshot.snapshot_id not in old
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        }
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        return [path for path in _parts_before(self.folder, since) if path not in kept]

    def _append(self, table: Any, change: TableChange, marks: dict[str, int]) -> None:
        entries = {self._path_of(each.file_path): each for each in _entries(table)}
        check_removed(self.folder, change.removed, entries)
        check_partitions(self.folder, change, [name for name, _ in _parts_of(table)])
        with table.transaction() as transaction:
            transaction.set_properties({name: str(value) for name, value in marks.items()})
            how = transaction.update_snapshot()
            with how.overwrite() if change.removed else how.fast_append() as snapshot:
                for path in change.removed:
                    snapshot.delete_data_file(entries[path])
                for each in change.added:
                    snapshot.append_data_file(self._data_file(table, each))

    def _look(self) -> Any:
        self._table, self._looked = self._open() if self.may_exist() else None, True
        return self._table

    def _open(self) -> Any:
        """None: there is none."""
        errors = import_module("pyiceberg.exceptions")
        try:
            return self._catalog().load_table(self._name)
        except (errors.NoSuchTableError, errors.NoSuchNamespaceError):
            return None

    def _made(self, change: TableChange) -> Any:
        catalog, errors = self._catalog(), import_module("pyiceberg.exceptions")
        spec = import_module("pyiceberg.partitioning")
        transforms = import_module("pyiceberg.transforms")
        catalog.create_namespace_if_not_exists(self._name[0])
        columns = change.columns()
        numbered = import_module("pyiceberg.schema").assign_fresh_schema_ids
        with_ids = numbered(catalog._convert_schema_if_needed(columns, 2))
        parts = [
            spec.PartitionField(
                with_ids.find_field(name).field_id, number, transforms.IdentityTransform(), name
            )
            for number, name in enumerate(change.layout.partition_by, 1000)
        ]
        statistics, offset = change.layout.statistics, message_column("offset", columns.names)
        chosen = _described([offset, *statistics]) if statistics else {}
        try:
            made = catalog.create_table(
                self._name,
                with_ids,
                location=self.folder,
                partition_spec=spec.PartitionSpec(*parts),
                properties=_PROPERTIES | chosen | change.layout.properties,
            )
        except errors.TableAlreadyExistsError:
            return self._open()
        # Files have no ids of columns: their names say which is which.
        mapping = made.schema().name_mapping.model_dump_json()
        with made.transaction() as transaction:
            transaction.set_properties({"schema.name-mapping.default": mapping})
        return made

    @property
    def _name(self) -> tuple[str, str]:
        """In the catalog: the lake, and the table in it. Catalogs of others know no other signs."""
        lake, name = self.folder.rstrip("/").split("/")[-2:]
        return tuple(re.sub(r"\W", "_", each) or "lake" for each in (lake, name))  # type: ignore[return-value]

    def _catalog(self) -> Any:
        store = {
            _STORE_SETTINGS[name.lower()]: value
            for name, value in self.storage.items()
            if name.lower() in _STORE_SETTINGS
        }
        if _is_configured():
            return _pyiceberg("catalog").load_catalog(CATALOG, **store)
        if in_object_store(self.folder):
            raise InvalidInput(
                f"an Iceberg table in {self.folder} needs a catalog: tell pyiceberg of one by the "
                f"name {CATALOG!r}, in .pyiceberg.yaml or by PYICEBERG_CATALOG__PENSTOCK__URI"
            )
        DiskFiles().make_folder(self.folder)
        return _pyiceberg("catalog.sql").SqlCatalog(
            CATALOG,
            uri=f"sqlite:///{os.path.join(self.folder, _CATALOG_FILE)}",
            warehouse=self.folder,
            **{"py-io-impl": _FILES},
        )

    def _data_file(self, table: Any, file: LakeFile) -> Any:
        manifest = import_module("pyiceberg.manifest")
        kinds = table.schema().as_arrow()
        values = [
            partition_value(file.partition[name], kinds.field(name).type)
            for name, _ in _parts_of(table)
        ]
        return manifest.DataFile.from_args(
            content=manifest.DataFileContent.DATA,
            file_path=os.path.join(self.folder, file.path),
            file_format=manifest.FileFormat.PARQUET,
            partition=import_module("pyiceberg.typedef").Record(*map(_as_stored, values)),
            record_count=file.rows,
            file_size_in_bytes=file.size_bytes,
            spec_id=table.metadata.default_spec_id,
            **_bounds(table, file),
        )

    def _file_of(self, table: Any, entry: Any) -> LakeFile:
        offset = _offset_of(table)
        least = most = 0
        if offset is not None and offset.field_id in (entry.lower_bounds or {}):
            from_bytes = import_module("pyiceberg.conversions").from_bytes
            least = from_bytes(offset.field_type, entry.lower_bounds[offset.field_id])
            most = from_bytes(offset.field_type, entry.upper_bounds[offset.field_id])
        return LakeFile(
            self._path_of(entry.file_path),
            {
                name: partition_text(_as_read(value, kind))
                for (name, kind), value in zip(_parts_of(table), entry.partition, strict=False)
            },
            entry.file_size_in_bytes,
            entry.record_count,
            least,
            most,
        )

    def _path_of(self, path: str) -> str:
        return path.removeprefix("file://").removeprefix(f"{self.folder}/")


def _marks(table: Any, names: Iterable[str]) -> dict[str, int]:
    properties = {} if table is None else table.properties
    return {name: int(properties[name]) for name in names if name in properties}


def _parts_of(table: Any) -> list[tuple[str, Any]]:
    """The columns by which a table is partitioned, with their types."""
    schema = table.schema()
    fields = [schema.find_field(each.source_id) for each in table.spec().fields]
    return [(each.name, each.field_type) for each in fields]


def _as_stored(value: Any) -> Any:
    return (value - _EPOCH).days if isinstance(value, date) else value


def _as_read(value: Any, kind: Any) -> Any:
    is_days = isinstance(value, int) and str(kind) == "date"
    return _EPOCH + timedelta(days=value) if is_days else value


def _bounds(table: Any, file: LakeFile) -> dict[str, dict[int, Any]]:
    """What a file of the table says of its columns."""
    to_bytes = import_module("pyiceberg.conversions").to_bytes
    offset, schema = _offset_of(table), table.schema()
    ranges = {schema.find_field(name): each for name, each in file.ranges.items()}
    if offset is not None:
        ranges[offset] = ColumnRange(file.offset_min, file.offset_max, 0)
    known = {field: each for field, each in ranges.items() if each.least is not None}
    return {
        "lower_bounds": {f.field_id: to_bytes(f.field_type, r.least) for f, r in known.items()},
        "upper_bounds": {f.field_id: to_bytes(f.field_type, r.most) for f, r in known.items()},
        "null_value_counts": {f.field_id: r.nulls for f, r in ranges.items()},
        "value_counts": {f.field_id: file.rows for f in ranges},
    }


def _described(columns: Sequence[str]) -> dict[str, str]:
    """The properties by which other writers know of a choice, too."""
    return {f"{_METRICS}default": "none"} | {f"{_METRICS}column.{each}": "full" for each in columns}


def _offset_of(table: Any) -> Any:
    """The column, if there is one."""
    columns = {each.name: each for each in table.schema().fields}
    return columns.get(message_column("offset", columns))


def _entries(table: Any) -> Iterator[Any]:
    """The files of a table as it was loaded."""
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file


def _parts_before(folder: str, since: float) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for path in (os.path.join(place, name) for name in names):
            inside = os.path.relpath(path, folder)
            if is_ours(inside) and os.path.getmtime(path) <= since:
                yield inside


def _is_configured() -> bool:
    """Whether pyiceberg knows a catalog of our name."""
    try:
        config = import_module("pyiceberg.utils.config")
    except ModuleNotFoundError:
        return False
    return config.Config().get_catalog_config(CATALOG) is not None


def _pyiceberg(module: str) -> Any:
    try:
        return import_module(f"pyiceberg.{module}")
    except ModuleNotFoundError:
        raise MissingExtra("iceberg", "an Iceberg table") from None
