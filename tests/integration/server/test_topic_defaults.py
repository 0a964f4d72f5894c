"""The settings that topics of a server have unless they are made with others."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.config import ServerConfig
from penstock.errors import InvalidInput
from penstock.model.settings import DEAD_LETTER_SETTINGS
from penstock.server import app
from tests.integration.server.process import ServerProcess


def test_new_topics_have_the_defaults_of_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, penstock.connect(server.url) as ps:
        ps.create_topic("before")
    defaults = {"max_retries": 8, "visibility": "5s", "partitions": 2}
    serving = ServerProcess(tmp_path, auto_create=True, topic_defaults=defaults)
    with serving as server, penstock.connect(server.url) as ps:
        ps.create_topic("new")
        ps.create_topic("other", max_retries=1)
        ps.publish("on-demand", b"x")
        found = {
            name: (each.max_retries, each.visibility_ms, each.partitions)
            for name in ("before", "new", "other", "on-demand")
            for each in [ps.describe_topic(name)]
        }
        assert found == {
            "before": (3, 30_000, 1),
            "new": (8, 5_000, 2),
            "other": (1, 5_000, 2),
            "on-demand": (8, 5_000, 2),
        }
        ps.create_topic("new.dlq")
        assert ps.describe_topic("new.dlq") == DEAD_LETTER_SETTINGS
    with ServerProcess(tmp_path) as server, penstock.connect(server.url) as ps:
        assert ps.describe_topic("new").max_retries == 8


def test_a_default_that_is_no_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="unknown topic setting 'retires'"):
        app(tmp_path, topic_defaults={"retires": 1})


def test_a_cluster_takes_no_defaults_that_its_topics_cannot_have() -> None:
    pytest.importorskip("nats")
    from penstock.server.cluster.run import node_config

    config = ServerConfig(
        cluster="nats://a", advertise="http://a", topic_defaults={"compacted": True}
    )
    with pytest.raises(InvalidInput, match="cannot be compacted; take it from topic_defaults"):
        node_config(config)
