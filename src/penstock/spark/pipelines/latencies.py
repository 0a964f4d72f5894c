"""The table of latencies: how long messages waited and were worked on, minute by minute.

The broker counts them and keeps a week. Each run asks for the minutes from the last one on that the
table has, which was not over then, and puts what it hears in the place of what it knew. So a run
that is repeated changes nothing, and what the broker drops later stays in the table.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.log.files import DiskFiles, write_durably
from penstock.record.schema import TIMESTAMP, Priority

LATENCIES = pa.schema(
    [
        ("topic", pa.string()),
        ("group", pa.string()),
        ("priority", pa.int32()),
        ("minute", TIMESTAMP),
        ("kind", pa.string()),
        ("messages", pa.int64()),
        ("mean_s", pa.float64()),
        ("p50_s", pa.float64()),
        ("p95_s", pa.float64()),
        ("p99_s", pa.float64()),
        ("max_s", pa.float64()),
    ]
)
"""A row for all priorities together, where `priority` is null, and one for each that has any."""

Row: TypeAlias = dict[str, Any]


class LatencyTable:
    """One Parquet file, replaced as a whole."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows: dict[tuple[Any, ...], Row] = {}
        if os.path.exists(path):
            table = pq.read_table(path)
            minutes = table["minute"].cast(TIMESTAMP)  # Parquet says UTC in other words
            self._put(table.set_column(3, "minute", minutes).to_pylist())

    def update(self, client: Any, topics: Sequence[str]) -> None:
        """Hear from the broker what is new."""
        for topic in topics:
            known = [row["minute"] for row in self._rows.values() if row["topic"] == topic]
            self._put(
                [_row(topic, each) for each in client.latencies(topic, since=max(known, default=0))]
            )

    def write(self) -> None:
        made = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(self.rows(), schema=LATENCIES), made)
        files = DiskFiles()
        files.make_folder(os.path.dirname(self._path))
        write_durably(files, self._path, made.getvalue().to_pybytes())

    def rows(self) -> list[Row]:
        """In the order of time."""
        return [self._rows[place] for place in sorted(self._rows)]

    @property
    def minutes(self) -> int:
        return len({row["minute"] for row in self._rows.values()})

    def _put(self, rows: Sequence[Row]) -> None:
        for row in rows:
            priority = -1 if row["priority"] is None else row["priority"]
            place = (row["minute"], row["topic"], row["group"], row["kind"], priority)
            self._rows[place] = row


def _row(topic: str, latency: Any) -> Row:
    priority = latency.priority
    return {
        "topic": topic,
        "group": latency.group,
        "priority": None if priority is None else Priority[priority.upper()].value,
        "minute": datetime.fromtimestamp(latency.minute_us / 1e6, UTC),
        "kind": latency.kind,
        "messages": latency.count,
        "mean_s": latency.mean_us / 1e6,
        "p50_s": latency.p50_us / 1e6,
        "p95_s": latency.p95_us / 1e6,
        "p99_s": latency.p99_us / 1e6,
        "max_s": latency.max_us / 1e6,
    }
