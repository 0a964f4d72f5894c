"""What the data source refuses, before any of it runs."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidInput
from penstock.spark.columns import read_schema
from penstock.spark.source import PenstockDataSource

SCHEMA = read_schema(include_headers=False)


def source(**options: str) -> PenstockDataSource:
    return PenstockDataSource({"path": "data", "subscribe": "orders", **options})


def test_what_is_for_streams_is_refused_in_a_batch_read() -> None:
    with pytest.raises(InvalidInput, match="mode=queue is for readStream"):
        source(mode="queue", group="g").reader(SCHEMA)
    with pytest.raises(InvalidInput, match="group is for readStream"):
        source(group="g").reader(SCHEMA)
    source(group="g").streamReader(SCHEMA)


@pytest.mark.parametrize("option", ["endingOffsets", "endingtimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    text = "latest" if option == "endingOffsets" else "1700000000000"
    with pytest.raises(InvalidInput, match=f"{option} is for batch reads"):
        source(**{option: text}).streamReader(SCHEMA)
    source(**{option: text}).reader(SCHEMA)
