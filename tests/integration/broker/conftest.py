"""Worlds for the behaviour suite: `world` is entered by every door in turn, `sync` by one,
`here` by those that need no server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker.doors import DOORS
from tests.integration.broker.world import World


@pytest.fixture(params=sorted(DOORS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """For what a client can ask: the same scenario through each door."""
    world = World(tmp_path / "data", request.param)
    yield world
    world.close_all()


@pytest.fixture(params=["sync", "async"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """For what differs far away: the broker closes under the client, time jumps past a session."""
    world = World(tmp_path / "data", request.param)
    yield world
    world.close_all()


@pytest.fixture
def sync(tmp_path: Path) -> Iterator[World]:
    """For what lies behind the doors, where one of them is enough."""
    world = World(tmp_path / "data")
    yield world
    world.close_all()


@pytest.fixture
def ps(world: World) -> Any:
    return world.ps
