"""Topics of a live Kafka, which here is a Penstock that speaks its protocol."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.broker import Broker
from penstock.errors import InvalidInput, Unavailable
from penstock.server.keys import KeyStore
from penstock.transfer.importing import Importer
from penstock.transfer.kafka import KafkaTopics
from tests.integration.kafka.conftest import broker, kafka, ps, server  # noqa: F401 - fixtures
from tests.integration.server.running import RunningServer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_topics_come_over_with_the_offsets_of_groups(
    tmp_path: Path,
    kafka: str,  # noqa: F811
    ps: Any,  # noqa: F811
) -> None:
    ps.create_topic("orders", partitions=2)
    for partition in range(2):
        numbers = [b"%d" % n for n in range(2500)]
        ps.publish_batch("orders", numbers, keys=numbers, partition=partition)
    ps.publish("orders", None, key="gone", headers={"h": b"\xff", "n": None}, partition=0)
    ps.set_stream_offsets("billing", {"orders": {0: 2498, 1: 7}})

    def imported(client: Any) -> int:
        with closing(KafkaTopics(kafka, ["orders"], ["billing"])) as source:
            return sum(each.messages for each in Importer(client, source).run())

    with penstock.connect(tmp_path / "copy") as copy:
        assert imported(copy) == 5001
        got = copy.receive("orders", "billing", 100, partition=0)
        assert [m.value for m in got] == [b"2498", b"2499", None]
        assert got[-1].key == b"gone"
        assert (got[-1].headers["h"], got[-1].headers["n"]) == (b"\xff", None)
        assert copy.receive("orders", "billing", 1, partition=1)[0].value == b"7"
        ps.publish("orders", b"new", partition=1)
        assert imported(copy) == 1
        assert imported(copy) == 0
        assert copy.stats("orders").messages == 5002
    with (
        closing(KafkaTopics(kafka, ["nothing"])) as source,
        pytest.raises(InvalidInput, match="no topic 'nothing'"),
    ):
        source.topics()
    with pytest.raises(Unavailable, match="no Kafka answers"):
        KafkaTopics("127.0.0.1:1", bootstrap_timeout_ms=500)
    assert not [each for each in threading.enumerate() if each.name.startswith("kafka-io")]
    with pytest.raises(InvalidInput, match="must be larger than"):
        KafkaTopics("127.0.0.1:1", request_timeout_ms=1)


def test_a_cluster_that_wants_a_password(
    tmp_path: Path,
    broker: Broker,  # noqa: F811
) -> None:
    keys = KeyStore.open(broker.folder)
    token = keys.create("admin", "admin").token
    settings = tmp_path / "kafka.toml"
    settings.write_text(
        'security_protocol = "SASL_PLAINTEXT"\n'
        'sasl_mechanism = "PLAIN"\n'
        'sasl_plain_username = "shop"\n'
        f'sasl_plain_password = "{token}"\n'
    )
    copy = tmp_path / "copy"
    with RunningServer(broker, keys, kafka=True) as running:
        with penstock.connect(running.url, api_key=token, namespace="shop") as ps:
            ps.publish("orders", b"one")
        command = [
            *(sys.executable, "-m", "penstock", "import", "kafka", running.kafka),
            *("--settings", str(settings), "--data", str(copy)),
        ]
        subprocess.run(command, check=True, timeout=120)
        settings.write_text("security_protocol")
        told = subprocess.run(command, check=False, timeout=120, capture_output=True, text=True)
    assert "is not TOML" in told.stderr
    with penstock.connect(copy) as client:
        assert [message.value for message in client.peek("orders")] == [b"one"]
