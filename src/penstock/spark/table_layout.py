"""How the files of a lake table are partitioned, and what the table says of them.

The columns by which a table is partitioned are decided when it is made. Those whose least and
greatest values stand in its commits may change; `offset` is always one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvalidInput

DATE = "date"
_TEXT_MAX = 256
"""Longer texts are not worth their room in every commit."""


class TableLayout(msgspec.Struct, frozen=True):
    """Of one table."""

    partition_by: list[str] = msgspec.field(default_factory=lambda: [DATE])
    """Rows of a file have the same values here."""
    statistics: list[str] = []
    """What a reader may skip files by, besides `offset`."""
    properties: dict[str, str] = {}
    """More with which the table is made."""

    @property
    def has_dated_paths(self) -> bool:
        return DATE in self.partition_by


class ColumnRange(NamedTuple):
    """The values of a column in a file; None of both if they are not known."""

    least: Any
    most: Any
    nulls: int


def check_layout(layout: TableLayout, schema: pa.Schema) -> None:
    """InvalidInput if a table with these columns, and `date`, cannot be laid out so."""
    for what, names, can in (
        ("partition_by", layout.partition_by, _can_partition),
        ("statistics", layout.statistics, _has_range),
    ):
        for name in names:
            kind = pa.date32() if name == DATE and DATE not in schema.names else None
            if kind is None and name not in schema.names:
                raise InvalidInput(
                    f"{what}: the table has no column {name!r}; it has {', '.join(schema.names)}"
                )
            kind = kind or schema.field(name).type
            if not can(kind):
                raise InvalidInput(f"{what}: column {name!r} is of type {kind}, which cannot be")
    if len(layout.partition_by) != len(set(layout.partition_by)):
        raise InvalidInput(f"partition_by names a column twice: {layout.partition_by}")


def _can_partition(kind: pa.DataType) -> bool:
    fits = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)
    return _is_text(kind) or any(each(kind) for each in fits)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _has_range(kind: pa.DataType) -> bool:
    return _can_partition(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)


def partition_text(value: Any) -> str | None:
    """A value of a partition column as tables name it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def partition_value(text: str | None, kind: pa.DataType) -> Any:
    """What `partition_text` made a text of."""
    if text is None or _is_text(kind):
        return text
    if pa.types.is_boolean(kind):
        return text == "true"
    return date.fromisoformat(text) if pa.types.is_date(kind) else int(text)


def ranges_of(metadata: pq.FileMetaData, names: Iterable[str]) -> dict[str, ColumnRange]:
    """What a Parquet file says of some of its columns."""
    numbers = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
    found = {}
    for name in names:
        if name in numbers:
            groups = [
                metadata.row_group(group).column(numbers[name]).statistics
                for group in range(metadata.num_row_groups)
            ]
            if all(groups):
                found[name] = _range_of(groups)
    return found


def _range_of(groups: Sequence[Any]) -> ColumnRange:
    nulls = sum(each.null_count for each in groups)
    filled = [each for each in groups if each.num_values]
    if not filled or not all(each.has_min_max for each in filled):
        return ColumnRange(None, None, nulls)
    least, most = min(each.min for each in filled), max(each.max for each in filled)
    if isinstance(most, str) and max(len(least), len(most)) > _TEXT_MAX:
        return ColumnRange(None, None, nulls)
    return ColumnRange(least, most, nulls)
