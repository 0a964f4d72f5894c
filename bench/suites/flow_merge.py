"""The current state by key: a flow's round beside a plain MERGE of deltalake."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.figures import at_least
from bench.harness import Bench, Contender, Sample, stopwatch
from penstock.spark.flows.definition import Flow, FlowSource, FlowTarget
from penstock.spark.flows.tables import FlowTable
from penstock.spark.lake_table import TableChange

_KEYS, _KEYS_QUICK = 10_000_000, 500_000
_CHANGES, _CHANGES_QUICK = 1_000_000, 50_000
_FLOW, _PLAIN = "flow", "deltalake"


def run(bench: Bench) -> None:
    keys = _KEYS_QUICK if bench.quick else _KEYS
    count = _CHANGES_QUICK if bench.quick else _CHANGES
    with bench.folder() as home:
        table = home / "table"
        _flow_table(table).write(_rows(np.arange(keys), 0), 1, _change(1), {})
        chance = np.random.default_rng(1)
        # A tenth of the keys is new; each has one row, as a plain MERGE needs it.
        changes = _rows(chance.choice(keys + keys // 10, count, replace=False), keys)

        def flow(folder: Path) -> Sample:
            shutil.copytree(table, folder / "table")
            with stopwatch(count) as sample:
                _flow_table(folder / "table").write(changes, 2, _change(2), {"rows": count})
            return sample

        def plain(folder: Path) -> Sample:
            shutil.copytree(table, folder / "table")
            with stopwatch(count) as sample:
                merging = DeltaTable(str(folder / "table")).merge(
                    changes, "t.id = s.id", source_alias="s", target_alias="t"
                )
                merging.when_matched_update_all().when_not_matched_insert_all().execute()
            return sample

        race = bench.race(
            f"{count:,} changes into {keys:,} keys",
            [Contender(_FLOW, flow), Contender(_PLAIN, plain)],
            rounds=3,
        )
        appended = bench.race(
            f"{count:,} rows appended",
            [
                Contender(_FLOW, lambda folder: _append(folder, changes, count)),
                Contender(_PLAIN, lambda folder: _append_plain(folder, changes, count)),
            ],
            rounds=3,
        )
    bench.compare(race, _FLOW, _PLAIN, at_least(0.8), "rows", title="MERGE: a flow: deltalake")
    bench.compare(appended, _FLOW, _PLAIN, None, "rows", title="append: a flow: deltalake")
    bench.note(
        "A flow also finds the last row of each key, compares times, keeps offsets and counts in "
        "the commit, and brings it to stable storage; deltalake does none of that here."
    )


def _append(folder: Path, rows: pa.Table, count: int) -> Sample:
    table = FlowTable(_flow("append", folder / "table"))
    with stopwatch(count) as sample:
        table.write(rows, 1, _change(1), {"rows": count})
    return sample


def _append_plain(folder: Path, rows: pa.Table, count: int) -> Sample:
    with stopwatch(count) as sample:
        write_deltalake(str(folder / "table"), rows)
    return sample


def _flow_table(table: Path) -> FlowTable:
    return FlowTable(_flow("current", table))


def _flow(kind: str, table: Path) -> Flow:
    key = ["id"] if kind == "current" else []
    target = FlowTarget(kind=kind, table=str(table), key=key)  # type: ignore[arg-type]
    return Flow(name="bench", source=FlowSource(place="data", topic="t"), target=target)


def _change(end: int) -> TableChange:
    return TableChange(pa.schema([]), topic="t@1", ends={0: end})


def _rows(ids: np.ndarray, offset: int) -> pa.Table:
    offsets = np.arange(offset, offset + len(ids))
    return pa.table(
        {
            "id": ids,
            "amount": ids * 0.5,
            "city": pa.array([f"city {n}" for n in range(1000)]).take(pa.array(ids % 1000)),
            "_at": pa.array(offsets, pa.timestamp("us", tz="UTC")),
            "_offset": offsets,
            "_deleted": pa.repeat(pa.scalar(False), len(ids)),
        }
    )
