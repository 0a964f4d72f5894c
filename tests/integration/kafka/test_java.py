"""The Java client and Kafka's own console tools, fetched with Maven: for `make torture`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.peers import maven

pytestmark = [
    pytest.mark.torture,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no java on the PATH"),
    pytest.mark.skipif(shutil.which("mvn") is None, reason="there is no mvn on the PATH"),
]

CACHE = Path(__file__).parents[3] / "bench" / ".cache"
TOOLS = "org.apache.kafka.tools"
PRODUCERS = {"4.1.0": f"{TOOLS}.ConsoleProducer", "3.9.1": "kafka.tools.ConsoleProducer"}
RUN_S_MAX = 120


class Java:
    """The console tools of one version, each call a process."""

    def __init__(self, version: str, address: str) -> None:
        jars = CACHE.resolve() / "kafka" / f"tools-{version}"
        wanted = [f"org.apache.kafka:kafka-tools:{version}", "org.slf4j:slf4j-simple:1.7.36"]
        if version.startswith("3."):
            wanted.append(f"org.apache.kafka:kafka_2.13:{version}")
        if not maven.fetched(jars, wanted):
            pytest.skip(f"Maven could not fetch the tools of Kafka {version}")
        self._jars = jars
        self._address = address

    def run(self, tool: str, *arguments: str, given: str | None = None) -> str:
        return self.run_alone(tool, "--bootstrap-server", self._address, *arguments, given=given)

    def run_alone(self, tool: str, *arguments: str, given: str | None = None) -> str:
        """Without the address, which some tools take in another way."""
        done = subprocess.run(
            [
                *("java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
                *("-cp", f"{self._jars}/*", tool, *arguments),
            ],
            input=given,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


@pytest.mark.parametrize("version", PRODUCERS)
def test_topics_messages_and_groups(kafka: str, ps: Any, version: str) -> None:
    java = Java(version, kafka)
    topics, groups = f"{TOOLS}.TopicCommand", f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    patient = ("--timeout", "60000")  # by itself it gives up after 5 seconds, and ends with 0
    java.run(topics, "--create", "--topic", "orders", "--partitions", "2")
    assert "PartitionCount: 2" in java.run(topics, "--describe", "--topic", "orders")
    java.run(
        PRODUCERS[version],
        *("--topic", "orders", "--property", "parse.key=true", "--property", "key.separator=:"),
        given="a:1\nb:2\nc:3\n",
    )
    assert sorted(m.value for m in ps.peek("orders")) == [b"1", b"2", b"3"]
    read = java.run(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--topic", "orders", "--from-beginning", "--max-messages", "3", "--group", "readers"),
        *("--timeout-ms", "30000"),
    )
    assert sorted(read.split()) == ["1", "2", "3"]
    assert "readers" in java.run(groups, *patient, "--list")
    assert sum(ps.describe_stream_group("readers").lag.values()) == 0
    described = java.run(groups, *patient, "--describe", "--group", "readers")
    assert described.count("orders") == 2
    assert "LAG" in described
    back = ("--group", "readers", "--reset-offsets", "--to-earliest", "--all-topics", "--execute")
    told = java.run(groups, *patient, *back)
    while "is inactive" in told:  # the consumer is on its way out; its session ends in any case
        told = java.run(groups, *patient, *back)
    assert "NEW-OFFSET" in told
    assert sum(ps.describe_stream_group("readers").lag.values()) == 3
    assert "successful" in java.run(groups, *patient, "--delete", "--group", "readers")
    assert ps.stream_groups() == []
    java.run(topics, "--delete", "--topic", "orders")
    assert ps.topics() == []


def test_transactions_and_newer_groups(kafka: str, ps: Any) -> None:
    java = Java("4.1.0", kafka)
    ps.create_topic("orders")
    ps.seek("orders", "workers", "earliest")
    java.run_alone(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", "orders", "--num-records", "500", "--record-size", "100"),
        *("--throughput", "-1", "--transactional-id", "copier", "--transaction-duration-ms", "20"),
        *("--producer-props", f"bootstrap.servers={kafka}"),
    )
    assert ps.stats("orders").messages == 500
    read = java.run(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--topic", "orders", "--from-beginning", "--max-messages", "500"),
        *("--group", "readers", "--timeout-ms", "30000"),
        *("--consumer-property", "group.protocol=consumer"),
        *("--consumer-property", "isolation.level=read_committed"),
    )
    assert len(read.split()) == 500
    assert sum(ps.describe_stream_group("readers").lag.values()) == 0
    shared = java.run(
        f"{TOOLS}.consumer.ConsoleShareConsumer",
        *("--topic", "orders", "--group", "workers", "--max-messages", "500"),
        *("--timeout-ms", "30000"),
    )
    assert sorted(shared.split()) == sorted(read.split())
    (group,) = ps.stats("orders").groups
    assert (group.group, group.depth) == ("workers", 0)
    listed = java.run(
        f"{TOOLS}.consumer.group.ConsumerGroupCommand",
        *("--timeout", "60000", "--list", "--state", "empty"),
    )
    assert "readers" in listed
