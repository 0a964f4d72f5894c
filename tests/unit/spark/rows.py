"""What the tasks of a read give together."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def rows_of(reader: Any, splits: list[Any]) -> list[dict[str, Any]]:
    batches: list[pa.RecordBatch] = [b for split in splits for b in reader.read(split)]
    return [row for batch in batches for row in batch.to_pylist()]
