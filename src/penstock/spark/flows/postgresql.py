"""Flows into PostgreSQL: rows, how far they are, and counts, in one transaction.

    penstock_flows (flow, name, value)     what a Delta table keeps as application transactions

Rows are copied to a temporary table and brought into the table from there. The row of the round is
locked first, so of two runs of a flow one waits, and then is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.flows.definition import Flow
from penstock.spark.flows.marked_table import COUNTS
from penstock.spark.flows.merging import AT, OFFSET, ORDER, having_keys, latest_of_each
from penstock.spark.lake_table import TableChange

_MARKS = "penstock_flows"
_DRIVER = "psycopg"
"""Of the user's own, as for the outbox: it is in no extra."""
_TYPES: list[tuple[Any, str]] = [
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_integer, "integer"),
    (pa.types.is_float32, "real"),
    (pa.types.is_floating, "double precision"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_date, "date"),
]
_WIDER = {("integer", "bigint"), ("real", "double precision")}
"""Types of columns that get those of the rows."""


class PostgresTable:
    """The table of one flow in a database."""

    def __init__(self, flow: Flow) -> None:
        if flow.target.kind not in ("append", "current", "aggregate"):
            raise InvalidInput(f"a target of kind {flow.target.kind} is not for a database")
        if flow.target.partition_by or flow.target.statistics or flow.target.properties:
            raise InvalidInput("partition_by, statistics and properties are for lake tables")
        self.flow = flow
        self.uri = flow.target.table

    def marks(self, names: Iterable[str]) -> dict[str, int]:
        with self._connected() as connection, connection.cursor() as cursor:
            cursor.execute("select to_regclass(%s)", (_MARKS,))
            if cursor.fetchone()[0] is None:
                return {}
            cursor.execute(
                f"select name, value from {_MARKS} where flow = %s and name = any(%s)",
                (self.flow.name, list(names)),
            )
            return dict(cursor.fetchall())

    def mark(self, what: str) -> str:
        return what

    @property
    def round(self) -> int:
        return self.marks(["round"]).get("round", 0)

    def counts(self) -> dict[str, int]:
        found = self.marks(COUNTS)
        return {each: found.get(each, 0) for each in COUNTS}

    def definition(self) -> int | None:
        return self.marks(["definition"]).get("definition")

    def columns(self) -> list[str] | None:
        """Those of the table; None: there is none yet."""
        with self._connected() as connection, connection.cursor() as cursor:
            return list(_columns(cursor, self.uri)) or None

    def committed_us(self) -> int | None:
        return self.marks(["committed_us"]).get("committed_us")

    def write(
        self, rows: pa.Table, number: int, change: TableChange, counts: dict[str, int]
    ) -> None:
        """One transaction: the rows of a round as the kind of target says, and the marks."""
        with self._connected() as connection, connection.transaction():
            cursor = connection.cursor()
            before = self._lock(cursor, number)
            self._make_room(cursor, rows.schema)
            if self.flow.target.kind == "current":
                rows = latest_of_each(
                    rows, self.flow.target.key, lambda some: self._known(cursor, some)
                )
            self._bring(cursor, rows)
            cursor.execute("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
            marks = {
                **change.marks(),
                "definition": self.flow.number,
                "committed_us": cursor.fetchone()[0],
                **{name: before.get(name, 0) + counts.get(name, 0) for name in COUNTS},
            }
            cursor.executemany(
                f"insert into {_MARKS} (flow, name, value) values (%s, %s, %s) "
                "on conflict (flow, name) do update set value = excluded.value",
                [(self.flow.name, *each) for each in marks.items()],
            )

    def _lock(self, cursor: Any, number: int) -> dict[str, int]:
        """Make this round the present one, or LakeConflict; the counts so far."""
        cursor.execute(
            f"create table if not exists {_MARKS} (flow text, name text, value bigint not null, "
            "primary key (flow, name))"
        )
        # Whoever comes second waits here for the first, and then finds that the round is done.
        cursor.execute(
            f"insert into {_MARKS} (flow, name, value) values (%s, 'round', 0) "
            "on conflict (flow, name) do nothing",
            (self.flow.name,),
        )
        cursor.execute(
            f"update {_MARKS} set value = %s where flow = %s and name = 'round' and value = %s",
            (number, self.flow.name, number - 1),
        )
        if cursor.rowcount != 1:
            raise LakeConflict(
                f"{self.uri}: another run of flow {self.flow.name} is at work, or has done this"
            )
        cursor.execute(f"select name, value from {_MARKS} where flow = %s", (self.flow.name,))
        return dict(cursor.fetchall())

    def _make_room(self, cursor: Any, schema: pa.Schema) -> None:
        known = _columns(cursor, self.uri)
        columns = {each.name: _type_of(each) for each in schema}
        if not known:
            parts = [f"{_quoted(name)} {kind}" for name, kind in columns.items()]
            cursor.execute(f"create table {_quoted(self.uri)} ({', '.join(parts)})")
            if names := self._unique(schema):
                how = (
                    "nulls not distinct " if cursor.connection.info.server_version >= 150000 else ""
                )
                quoted = ", ".join(map(_quoted, names))
                cursor.execute(f"create unique index on {_quoted(self.uri)} ({quoted}) {how}")
            return
        for name, kind in columns.items():
            if name not in known:
                cursor.execute(f"alter table {_quoted(self.uri)} add column {_quoted(name)} {kind}")
            elif (known[name], kind) in _WIDER:
                change = f"alter column {_quoted(name)} type {kind}"
                cursor.execute(f"alter table {_quoted(self.uri)} {change}")

    def _known(self, cursor: Any, rows: pa.Table) -> pa.Table:
        """When the rows are that the table has of the keys of some rows."""
        keys = self.flow.target.key
        some = rows.select([*keys, AT, OFFSET, ORDER])
        names = ", ".join(map(_quoted, some.column_names))
        cursor.execute(
            f"select {names} from {_quoted(self.uri)} where {_quoted(keys[0])} = any(%s)",
            (some[keys[0]].unique().to_pylist(),),
        )
        known = [dict(zip(some.column_names, row, strict=True)) for row in cursor.fetchall()]
        found = pa.Table.from_pylist(known, schema=some.schema)
        return found.filter(having_keys(found, some, keys))

    def _unique(self, schema: pa.Schema) -> list[str]:
        """By which rows are the same."""
        if self.flow.target.kind == "aggregate":
            return [name for name in schema.names if name not in self.flow.measures()]
        return list(self.flow.target.key)

    def _bring(self, cursor: Any, rows: pa.Table) -> None:
        if not len(rows):
            return
        names = ", ".join(map(_quoted, rows.column_names))
        table = _quoted(self.uri)
        cursor.execute(
            f"create temporary table penstock_round on commit drop as select {names} from {table} "
            "with no data"
        )
        nested = [pa.types.is_nested(each.type) for each in rows.schema]
        with cursor.copy(f"copy penstock_round ({names}) from stdin") as copy:
            for batch in rows.to_batches(10_000):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copy.write_row(
                        [
                            json.dumps(value, default=str)
                            if is_nested and value is not None
                            else value
                            for value, is_nested in zip(row, nested, strict=True)
                        ]
                    )
        cursor.execute(
            f"insert into {table} as t ({names}) select {names} from penstock_round as s "
            f"{self._on_conflict(rows.schema)}"
        )

    def _on_conflict(self, schema: pa.Schema) -> str:
        unique = ", ".join(map(_quoted, self._unique(schema)))
        if self.flow.target.kind == "append":
            return ""
        if self.flow.target.kind == "aggregate":
            sums = [
                f"{_quoted(name)} = {_added(_quoted(name), kind)}"
                for name, (kind, _) in self.flow.measures().items()
            ]
            return f"on conflict ({unique}) do update set {', '.join(sums)}"
        sets = [f"{_quoted(name)} = excluded.{_quoted(name)}" for name in schema.names]
        later = "(excluded._at, excluded._offset) >= (t._at, t._offset)"
        if self.flow.target.order_by:
            later = (
                f"excluded._order > t._order or (excluded._order is not distinct from t._order "
                f"or excluded._order is null or t._order is null) and {later}"
            )
        return f"on conflict ({unique}) do update set {', '.join(sets)} where {later}"

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        try:
            psycopg = import_module(_DRIVER)
        except ModuleNotFoundError:
            raise InvalidInput(
                "a flow to PostgreSQL needs its driver: pip install 'psycopg[binary]'"
            ) from None
        try:
            url = os.path.expandvars(self.flow.target.database)
            with closing(psycopg.connect(url, autocommit=True)) as connection:
                yield connection
        except psycopg.errors.SerializationFailure as exc:
            raise LakeConflict(f"{self.uri}: {exc}") from exc
        except psycopg.Error as exc:
            raise InvalidInput(f"PostgreSQL refuses table {self.uri}: {exc}") from exc


def _columns(cursor: Any, table: str) -> dict[str, str]:
    """By name, their types."""
    cursor.execute(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute "
        "where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum",
        (_quoted(table),),
    )
    return dict(cursor.fetchall())


def _added(name: str, kind: str) -> str:
    if kind in ("count", "sum"):
        return f"coalesce(t.{name} + excluded.{name}, t.{name}, excluded.{name})"
    return f"{'least' if kind == 'min' else 'greatest'}(t.{name}, excluded.{name})"


def _type_of(field: pa.Field) -> str:
    if pa.types.is_timestamp(field.type):
        return "timestamptz" if field.type.tz else "timestamp"
    if pa.types.is_decimal(field.type):
        return f"numeric({field.type.precision}, {field.type.scale})"
    if pa.types.is_nested(field.type):
        return "jsonb"
    for fits, kind in _TYPES:
        if fits(field.type):
            return kind
    raise InvalidInput(f"column {field.name!r} is of type {field.type}, which no database has")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
