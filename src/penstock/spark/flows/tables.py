"""Delta tables of flows: rows, how far they are, and counts, in one commit.

What a commit keeps beside the rows are application transactions. A round that is repeated is
refused. The table may lie in an object store: deltalake writes it, not Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from penstock.errors import LakeConflict
from penstock.spark.delta_lake import DELTA_LOG, DeltaLake, statistics_property
from penstock.spark.flows.delta_columns import columns_of, fitted, make_room, plain
from penstock.spark.flows.marked_table import MarkedTable
from penstock.spark.flows.merging import (
    AT,
    DELETED,
    OFFSET,
    ORDER,
    having_keys,
    last_of_each,
    latest_of_each,
    with_intervals,
)
from penstock.spark.lake import open_lake
from penstock.spark.lake_table import TableChange
from penstock.spark.pipelines.lake_read import read_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class FlowTable(MarkedTable):
    """The Delta table of one flow."""

    def open(self) -> deltalake.DeltaTable | None:
        try:
            return deltalake.DeltaTable(self.uri, storage_options=(self.flow.storage or None))
        except TableNotFoundError:
            return None

    def marks(self, names: Iterable[str]) -> dict[str, int]:
        table = self.open()
        if table is None:
            return {}
        found = ((name, table.transaction_version(name)) for name in names)
        return {name: version for name, version in found if version is not None}

    def schema(self) -> pa.Schema | None:
        table = self.open()
        return None if table is None else columns_of(table)

    def committed_us(self) -> int | None:
        """When it was last committed to."""
        table = self.open()
        history = table.history(1) if table is not None else []
        return int(history[0]["timestamp"]) * 1000 if history else None

    def write(
        self, rows: pa.Table, number: int, change: TableChange, counts: dict[str, int]
    ) -> None:
        marks = change.marks() | self.noted(self.marks(self.names()), number, counts)
        # What is in every row today may not be in tomorrow's, nor in those that are there.
        rows = rows.cast(pa.schema([each.with_nullable(True) for each in rows.schema]))
        table = self.open()
        seen = 0 if table is None else table.version()
        if table is None:
            table = self._made(rows.schema)
        elif table.transaction_version(self.mark("round")) not in (None, number - 1):
            raise LakeConflict(f"{self.uri}: another run of flow {self.flow.name} is at work")
        try:
            make_room(table, self.stored(rows.schema), self.marks([self.mark("round")]))
            names = {ORDER: "valid_from"} if self.flow.target.kind == "history" else {}
            rows = fitted(rows, table, names)
            match self.flow.target.kind:
                case "current":
                    self._merge_current(table, rows, marks)
                case "history":
                    self._merge_history(table, rows, marks)
                case "aggregate":
                    self._merge_sums(table, rows, marks)
                case _:
                    self._append(table, rows, marks)
            # A merge that changes nothing commits nothing: then only the marks are left to say.
            table = self.open()
            assert table is not None
            if table.transaction_version(self.mark("round")) != number:
                self._append(table, rows.slice(0, 0), marks)
        except CommitFailedError as exc:
            raise LakeConflict(f"{self.uri}: the commit was refused: {exc}") from exc
        if "://" not in self.uri:
            _sync(self.uri, seen)

    def _made(self, schema: pa.Schema) -> deltalake.DeltaTable:
        open_lake(self.uri, "delta", self.flow.storage)  # which is not of the other kind
        return deltalake.DeltaTable.create(
            self.uri,
            deltalake.Schema.from_arrow(self.stored(schema)),
            mode="ignore",
            partition_by=self.flow.target.partition_by or None,
            configuration=self._properties() or None,
            storage_options=(self.flow.storage or None),
        )

    def _properties(self) -> dict[str, str]:
        """Of the table that is made: deltalake gathers the statistics that it says."""
        statistics = self.flow.target.statistics
        chosen = statistics_property(statistics) if statistics else {}
        return chosen | self.flow.target.properties

    def _append(self, table: deltalake.DeltaTable, rows: pa.Table, marks: dict[str, int]) -> None:
        if self.flow.target.kind == "history" and not len(rows):
            rows = pa.Table.from_pylist([], schema=self.stored(rows.schema))
        deltalake.write_deltalake(
            table,
            rows,
            mode="append",
            schema_mode="merge",
            commit_properties=_properties(marks),
        )

    def _merge_current(
        self, table: deltalake.DeltaTable, rows: pa.Table, marks: dict[str, int]
    ) -> None:
        keys = self.flow.target.key
        own = [*keys, AT, OFFSET, ORDER]
        rows = latest_of_each(rows, keys, lambda some: self._known(table, some, keys, own))
        (
            self._merging(table, rows, keys, marks)
            .when_matched_update_all(predicate=_is_later(bool(self.flow.target.order_by)))
            .when_not_matched_insert_all()
            .execute()
        )

    def _merge_history(
        self, table: deltalake.DeltaTable, rows: pa.Table, marks: dict[str, int]
    ) -> None:
        keys = self.flow.target.key
        rows = rows.rename_columns(
            ["valid_from" if name == ORDER else name for name in rows.column_names]
        )
        known = self._known(table, rows, keys, rows.column_names)
        rows = pa.concat_tables([known, rows], promote_options="default")
        rows = last_of_each(rows, [*keys, "valid_from"])
        rows = with_intervals(rows, keys)
        (
            self._merging(table, rows, [*keys, "valid_from"], marks)
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    def _known(
        self,
        table: deltalake.DeltaTable,
        rows: pa.Table,
        keys: Sequence[str],
        columns: Sequence[str],
    ) -> pa.Table:
        """Columns of what the table has of the keys of some rows."""
        there = [each.name for each in table.schema().fields if each.name in columns]
        wanted = pc.unique(rows[keys[0]])
        found = table.to_pyarrow_dataset().to_table(there, filter=pc.field(keys[0]).isin(wanted))
        found = found.cast(pa.schema([plain(each) for each in found.schema]))
        return found.filter(having_keys(found, rows, keys))

    def _merge_sums(
        self, table: deltalake.DeltaTable, rows: pa.Table, marks: dict[str, int]
    ) -> None:
        measures = self.flow.measures()
        groups = [name for name in rows.column_names if name not in measures]
        updates = {f"`{name}`": _added(name, kind) for name, (kind, _) in measures.items()}
        (
            self._merging(table, rows, groups, marks)
            .when_matched_update(updates)
            .when_not_matched_insert_all()
            .execute()
        )

    def _merging(
        self,
        table: deltalake.DeltaTable,
        rows: pa.Table,
        keys: Sequence[str],
        marks: dict[str, int],
    ) -> Any:
        has_nulls = self.flow.target.kind == "aggregate"  # and groups that are null are groups
        how = "is not distinct from" if has_nulls else "="
        same = " and ".join(f"(t.`{key}` {how} s.`{key}`)" for key in keys) or "true"
        return table.merge(
            rows, same, source_alias="s", target_alias="t", commit_properties=_properties(marks)
        )


def read_current(
    spark: SparkSession, table: str, storage: Mapping[str, str] | None = None
) -> DataFrame:
    """The rows of a `current` or `history` table, without keys that are deleted. `storage`: as for
    `read_lake`."""
    frame = read_lake(spark, table, storage)
    kept = frame.where("not coalesce(_deleted, false)") if DELETED in frame.columns else frame
    return kept.drop(AT, OFFSET, ORDER, DELETED)


def _is_later(is_ordered: bool) -> str:
    """Whether a row of the source is not before the one that the table has."""
    later = f"(s.{AT} > t.{AT} or (s.{AT} = t.{AT} and s.{OFFSET} >= t.{OFFSET}))"
    if not is_ordered:
        return later
    # What removes a key need not say when: then it is its publishing that counts.
    return (
        f"s.{ORDER} > t.{ORDER} or ((s.{ORDER} = t.{ORDER} or s.{ORDER} is null or "
        f"t.{ORDER} is null) and {later})"
    )


def _added(name: str, kind: str) -> str:
    here, there = f"t.`{name}`", f"s.`{name}`"
    if kind in ("count", "sum"):
        both = f"{here} + {there}"
    else:
        both = (
            f"case when {there} {'<' if kind == 'min' else '>'} {here} then {there} else {here} end"
        )
    return f"case when {here} is null then {there} when {there} is null then {here} else {both} end"


def _properties(marks: dict[str, int]) -> deltalake.CommitProperties:
    return deltalake.CommitProperties(
        app_transactions=[deltalake.Transaction(*each) for each in sorted(marks.items())]
    )


def _sync(folder: str, since: int) -> None:
    """Commits since a version, and their files, on stable storage: retention goes by them."""
    for place, _, names in os.walk(folder):
        if os.path.basename(place) == DELTA_LOG:
            continue
        paths = [os.path.join(place, name) for name in names if name.endswith(".parquet")]
        for path in paths:
            if os.path.getmtime(path) >= _SYNCED.get(folder, 0.0):
                _sync_path(path)
        _sync_path(place)
    _SYNCED[folder] = max(0.0, os.path.getmtime(os.path.join(folder, DELTA_LOG)) - 60)
    DeltaLake(folder)._sync_log(since)


_SYNCED: dict[str, float] = {}
"""By table, the time before which all files were synced by this process."""


def _sync_path(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
