"""A broker on a folder of the test's own, behind a server on a free port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.broker import Broker, BrokerConfig
from penstock.log.local_engine import LocalEngine
from tests.integration.broker.world import QuickFiles
from tests.integration.server.asking import Http
from tests.integration.server.running import RunningServer


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    config = BrokerConfig(free_bytes_min=0)
    with Broker(LocalEngine(tmp_path / "data", files=QuickFiles()), config) as broker:
        yield broker


@pytest.fixture
def server(broker: Broker) -> Iterator[RunningServer]:
    with RunningServer(broker) as server:
        yield server


@pytest.fixture
def http(server: RunningServer) -> Iterator[Http]:
    with Http(server.port) as http:
        yield http


@pytest.fixture
def ps(server: RunningServer) -> Iterator[Any]:
    with penstock.connect(server.url, retry_for="1s") as client:
        yield client
