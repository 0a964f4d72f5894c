"""A data folder with a broker on it, and readers on the folder, without a Spark session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.client.client import Client
from tests.data_folder import folder, ps
from tests.inside import broker_of

__all__ = ["folder", "ps"]

pytest.importorskip("pyspark", reason="the data pipeline needs the extra 'spark'")


@pytest.fixture
def durable(ps: Client) -> Callable[[], None]:
    """See to it that readers outside see everything that was published."""

    def sync() -> None:
        for topic in broker_of(ps).open_topics():
            for partition in topic.partitions:
                partition.log.sync()

    return sync
