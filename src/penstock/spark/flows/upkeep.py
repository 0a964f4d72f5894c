"""Keeping the table of a flow in order: fewer files, sorted, and none that nobody reads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from deltalake.exceptions import CommitFailedError

from penstock.durations import Duration, parse_ns
from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.flows.definition import Flow, load_flow
from penstock.spark.flows.iceberg_table import IcebergFlowTable
from penstock.spark.flows.run import table_of_flow
from penstock.spark.flows.tables import FlowTable


class Optimized(msgspec.Struct, kw_only=True):
    """What was done to a table."""

    flow: str
    files_added: int = 0
    files_removed: int = 0
    vacuumed: int = 0
    """Files that no version in the kept time needs; they are gone."""
    seconds: float = 0.0


def optimize_flow(
    flow: str | Mapping[str, Any] | Flow,
    *,
    z_order: Sequence[str] = (),
    vacuum: Duration | None = None,
) -> Optimized:
    """Rewrite small files of a flow's table as large ones. Needs no Spark.

    `z_order`: columns by which rows that are alike lie together, so that readers pass over files;
    in Iceberg they are sorted by these, one after the other.
    `vacuum`: remove files of versions that are older than this.
    """
    declared = load_flow(flow)
    if declared.target.kind == "topic" or declared.target.database:
        raise InvalidInput(f"flow {declared.name} does not write to a lake table")
    table = table_of_flow(declared)
    known = table.columns()
    if known is None:
        raise InvalidInput(f"there is no table {table.uri} yet: apply the flow first")
    for name in z_order:
        if name not in known:
            raise InvalidInput(
                f"the table has no column {name!r}; it has {', '.join(sorted(known))}"
            )
    older_s = None if vacuum is None else parse_ns(vacuum, "vacuum") / 1e9
    began = time.monotonic()
    if isinstance(table, IcebergFlowTable):
        added, removed, vacuumed = table.compact(z_order, older_s)
    else:
        assert isinstance(table, FlowTable)
        added, removed, vacuumed = _optimized(table, z_order, older_s)
    return Optimized(
        flow=declared.name,
        files_added=added,
        files_removed=removed,
        vacuumed=vacuumed,
        seconds=time.monotonic() - began,
    )


def _optimized(
    flow_table: FlowTable, z_order: Sequence[str], older_s: float | None
) -> tuple[int, int, int]:
    """By Delta's library."""
    table = flow_table.open()
    assert table is not None, "it has columns"
    try:
        found = table.optimize.z_order(list(z_order)) if z_order else table.optimize.compact()
    except CommitFailedError as exc:
        raise LakeConflict(f"{flow_table.uri} was written to meanwhile; try again") from exc
    gone = []
    if older_s is not None:
        gone = table.vacuum(
            retention_hours=int(older_s // 3600), dry_run=False, enforce_retention_duration=False
        )
    return found["numFilesAdded"], found["numFilesRemoved"], len(gone)
