"""A server, and boto3 as a program in front of it has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker, BrokerConfig
from penstock.log.local_engine import LocalEngine
from tests.integration.broker.world import QuickFiles
from tests.integration.server.running import RunningServer
from tests.integration.sqs.clients import client


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    config = BrokerConfig(free_bytes_min=0)
    with Broker(LocalEngine(tmp_path / "data", files=QuickFiles()), config) as broker:
        yield broker


@pytest.fixture
def server(broker: Broker) -> Iterator[RunningServer]:
    with RunningServer(broker, sqs_accounts="shop=111122223333") as server:
        yield server


@pytest.fixture(params=["json", "query"])
def sqs(server: RunningServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    """boto3, and boto3 with the older protocol."""
    found = client(server.url, query=request.param == "query")
    yield found
    found.close()


@pytest.fixture
def json_sqs(server: RunningServer) -> Iterator[Any]:
    found = client(server.url)
    yield found
    found.close()
