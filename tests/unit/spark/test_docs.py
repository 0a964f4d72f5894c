"""The tables of the reference page are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.spark import columns, outgoing
from penstock.spark.options import READ_OPTIONS, SPLIT_BYTES, WRITE_OPTIONS
from penstock.spark.trace_read import trace_schema

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "spark.md"


def tables() -> list[dict[str, str]]:
    """Each table as its first column to its second."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text("utf-8"), re.MULTILINE):
        rows = [line.strip("| \n").split("|") for line in table.splitlines()[2:]]
        found.append({row[0].strip(" `"): row[1].strip(" `") for row in rows})
    return found


def test_the_tables_are_the_code() -> None:
    reads, read_columns, writes, written_columns, trace_columns = tables()
    assert trace_columns == {each.name: each.dataType.simpleString() for each in trace_schema()}
    assert list(reads) == sorted(READ_OPTIONS, key=list(reads).index)
    assert sorted(reads) == sorted(READ_OPTIONS)
    assert reads["maxBytesPerPartition"] == f"{SPLIT_BYTES >> 20}m"
    assert read_columns == {n: kind.simpleString() for n, kind in columns.COLUMNS.items()}
    assert sorted(writes) == sorted(WRITE_OPTIONS)
    assert list(written_columns) == list(outgoing.COLUMNS)
