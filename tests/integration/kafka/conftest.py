"""A broker on a folder of the test's own, with a port for Kafka's clients and one for ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.broker import Broker, BrokerConfig
from penstock.log.local_engine import LocalEngine
from tests.integration.broker.world import QuickFiles
from tests.integration.server.running import RunningServer
from tests.left_open import left_open

__all__ = ["left_open"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    config = BrokerConfig(free_bytes_min=0, auto_create=True)
    with Broker(LocalEngine(tmp_path / "data", files=QuickFiles()), config) as broker:
        yield broker


@pytest.fixture
def server(broker: Broker) -> Iterator[RunningServer]:
    with RunningServer(broker, kafka=True, auto_create=True) as server:
        yield server


@pytest.fixture
def kafka(server: RunningServer) -> str:
    """The address for clients of Kafka."""
    return server.kafka


@pytest.fixture
def ps(server: RunningServer) -> Iterator[Any]:
    with penstock.connect(server.url, retry_for="1s") as client:
        yield client
