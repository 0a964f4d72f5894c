"""How far a streaming query is, in words: Spark names a Python source only by its Java object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.spark.stream_read import FROM, TOPICS


class SourceProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One source of a query, as its last progress has it."""

    name: str
    """Such as `penstock: orders, returns`."""
    rows: int
    """Of the last batch."""
    behind: dict[str, int]
    """Messages that are there and not read yet, by topic."""

    def __str__(self) -> str:
        total = sum(self.behind.values())
        return f"{self.name}: {self.rows:,} rows, {total:,} messages behind"


def source_progress(progress: Any) -> list[SourceProgress]:
    """The sources of a query that read messages: of `query.lastProgress`, or of the progress that a
    `StreamingQueryListener` is given."""
    if progress is None:
        return []
    told = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    return [
        _of_source(source)
        for source in told.get("sources", ())
        if TOPICS in (_offset(source.get("endOffset")) or {})
    ]


def _of_source(source: Mapping[str, Any]) -> SourceProgress:
    end, latest = _offset(source["endOffset"]), _offset(source.get("latestOffset"))
    topics = sorted(topic for topic in end if topic not in (FROM, TOPICS))
    behind = {
        topic: sum(
            max(0, there - end[topic].get(partition, 0))
            for partition, there in latest.get(topic, {}).items()
        )
        for topic in topics
    }
    return SourceProgress(
        name=f"penstock: {', '.join(topics)}",
        rows=source.get("numInputRows", 0),
        behind=behind,
    )


def _offset(told: Any) -> dict[str, Any]:
    """Spark gives an offset as an object, or as the text that it was."""
    found: dict[str, Any] = json.loads(told) if isinstance(told, str) else told or {}
    return found
