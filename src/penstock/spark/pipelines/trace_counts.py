"""The table of traces: how many messages were published, delivered, retried, dead-lettered ...,
minute by minute, of those that were traced.

Events are read from where the last run ended, and the table's file says where that is, so both
change at once: a run that is killed has counted nothing or everything. What the broker drops later
stays in the table.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.log.files import DiskFiles, write_durably
from penstock.record.schema import TIMESTAMP
from penstock.trace.events import TraceBlock

TRACES = pa.schema(
    [
        ("topic", pa.string()),
        ("group", pa.string()),
        ("event", pa.string()),
        ("minute", TIMESTAMP),
        ("messages", pa.int64()),
    ]
)
"""`group` is null where an event is of none, as a publish is."""

_NEXT = b"penstock.traces"
_MINUTE_US = 60_000_000

Counts: TypeAlias = dict[tuple[int, str, str, str], int]
"""Messages by minute, topic, group and event."""


class TraceTable:
    """One Parquet file, replaced as a whole."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._next = 0
        self._counts: Counts = {}
        self.new_events = 0
        """Events of messages that this run has counted."""
        if os.path.exists(path):
            table = pq.read_table(path)
            self._next = int(table.schema.metadata[_NEXT])
            minutes = table["minute"].cast(TIMESTAMP).cast(pa.int64()).to_pylist()
            for minute, row in zip(minutes, table.to_pylist(), strict=True):
                place = minute, row["topic"], row["group"] or "", row["event"]
                self._counts[place] = row["messages"]

    def update(self, client: Any) -> str | None:
        """Read what is new; a note, if the events are not those of the run before. All topics of
        the namespace are counted: a dead letter is an event of the dead-letter topic."""
        note = None
        if client.trace_blocks(stop=0).end < self._next:
            note = "the log of traces begins anew: it is another one"
            self._next = 0
        while True:
            page = client.trace_blocks(self._next)
            for block in page.blocks:
                self._count(block)
            if page.next <= self._next:
                return note
            self._next = page.next

    def write(self) -> None:
        schema = TRACES.with_metadata({_NEXT: str(self._next)})
        made = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(self.rows(), schema=schema), made)
        files = DiskFiles()
        files.make_folder(os.path.dirname(self._path))
        write_durably(files, self._path, made.getvalue().to_pybytes())

    def rows(self) -> list[dict[str, Any]]:
        """In the order of time."""
        return [
            {
                "topic": topic,
                "group": group or None,
                "event": event,
                "minute": datetime.fromtimestamp(minute / 1e6, UTC),
                "messages": messages,
            }
            for (minute, topic, group, event), messages in sorted(self._counts.items())
        ]

    @property
    def is_empty(self) -> bool:
        return not self._counts

    def _count(self, block: bytes) -> None:
        data = TraceBlock(block).record_batch()
        names = ("topic", "group", "event", "count")
        columns = [data.column(name).to_pylist() for name in names]
        minutes = data.column("at").view(pa.int64()).to_pylist()
        for at_us, topic, group, event, count in zip(minutes, *columns, strict=True):
            short = topic.rpartition("/")[2]  # without the namespace, which is that of all
            place = at_us - at_us % _MINUTE_US, short, group or "", event
            self._counts[place] = self._counts.get(place, 0) + count
            self.new_events += count
