"""A node has an API of its own, for what is asked of it without a namespace."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from penstock.broker.api import Api
from penstock.config import ServerConfig
from penstock.server.application import Application
from penstock.server.cluster.node_api import NodeApi
from penstock.server.door import Door
from penstock.server.keys import KeyStore


def test_a_server_can_stand_in_front_of_it(tmp_path: Path) -> None:
    config = ServerConfig(data=str(tmp_path), port=0)
    door = Door(cast(Api, NodeApi(list, lambda _: None)), config, KeyStore.open(tmp_path))
    assert Application(door).dispatcher.door is door
    door.close()
