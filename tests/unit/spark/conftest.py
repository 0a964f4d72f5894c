"""A data folder with a broker on it, and readers on the folder, without a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.client import Client

pytest.importorskip("pyspark", reason="the data pipeline needs the extra 'spark'")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture
def ps(folder: str) -> Iterator[Client]:
    with penstock.connect(folder) as client:
        yield client


@pytest.fixture
def durable(ps: Client) -> Callable[[], None]:
    """See to it that readers outside see everything that was published."""

    def sync() -> None:
        for topic in ps._broker.open_topics():
            for partition in topic.partitions:
                partition.log.sync()

    return sync
