"""Kafka, for Spark's own Kafka source: one broker in KRaft mode.

Broker and source are fetched with Maven, once, into the cache. No Kafka client is needed: Spark
writes the messages too.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers import maven
from bench.servers.base import free_port

VERSION = "4.1.0"
WRITE_OPTIONS = {"kafka.linger.ms": "50", "kafka.batch.size": str(128 << 10)}

_START_S_MAX = 60
_STOP_S_MAX = 20
_BROKER = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
_CLUSTER = "penstockbenchclusterAA"  # any 16 bytes in Base64
_SOURCE_VERSIONS = ("4.2.0", "4.0.0")
"""Of the source and its helper, if a repository has none yet for the Spark that is installed."""


def fetch(cache: Path) -> str:
    """Fetch what is not there yet; empty, or why that was not possible."""
    import pyspark

    if _broker_jars(cache).exists() and _source_jars(cache).exists():
        return ""
    if why := maven.missing("Kafka"):
        return why
    spark = pyspark.__version__
    if not maven.fetched(_broker_jars(cache), _BROKER):
        return f"Maven could not fetch Kafka {VERSION}: is a repository within reach?"
    for source, helper in ((spark, spark), _SOURCE_VERSIONS):
        wanted = (
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{source}",
            f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{helper}",
            "org.apache.kafka:kafka-clients:3.9.2",
            "org.apache.commons:commons-pool2:2.13.1",
        )
        # Alone: what else they need comes with Spark.
        if maven.fetched(_source_jars(cache), wanted, alone=True):
            return ""
    return f"Maven could not fetch Spark's Kafka source for Spark {spark}"


def source_jars(cache: Path) -> list[str]:
    """What Spark needs to read from Kafka, once it is fetched."""
    return sorted(map(str, _source_jars(cache).glob("*.jar")))


def settings(cache: Path) -> str:
    """How it takes part, for the report."""
    (source,) = _source_jars(cache).glob("spark-sql-kafka-*.jar")
    return (
        f"Kafka {VERSION}, one broker (KRaft), heap of 1 GB, batches of 128 KB, not compressed; "
        f"Spark's Kafka source {source.stem.rpartition('-')[2]} as it comes"
    )


@contextmanager
def broker(cache: Path, folder: Path, partitions: int) -> Iterator[str]:
    """The address of a broker that makes topics with so many partitions when they are used."""
    port, controller = free_port(), free_port()
    config = folder / "server.properties"
    config.write_text(_config(folder, port, controller, partitions))
    java = ["java", "-Xms1g", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    java += ["-cp", f"{_broker_jars(cache)}/*"]
    log = folder / "server.log"
    with log.open("wb") as out:
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", config],
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=_START_S_MAX,
            check=True,
        )
        process = subprocess.Popen(
            [*java, "kafka.Kafka", config],
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process, port, log)
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"Kafka does not answer:\n{said}") from None
        time.sleep(0.1)


def _config(folder: Path, port: int, controller: int, partitions: int) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": folder / "logs",
        "num.partitions": partitions,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _broker_jars(cache: Path) -> Path:
    return cache.resolve() / "kafka" / f"broker-{VERSION}"


def _source_jars(cache: Path) -> Path:
    import pyspark

    return cache.resolve() / "kafka" / f"source-{pyspark.__version__}"
