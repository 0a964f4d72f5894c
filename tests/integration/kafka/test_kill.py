"""`kill -9` of the server while clients of Kafka publish and read: nothing acknowledged is lost,
nothing is stored twice, and what was committed is not read again."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.kafka.clients import confluent_settings, take
from tests.integration.server.process import ServerProcess

KILLS = 3
PARTITIONS = 2
WAIT_S = 60.0


@pytest.fixture(params=["interval", "always"])
def fsync(request: pytest.FixtureRequest) -> str:
    policy: str = request.param
    return policy


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    with ServerProcess(tmp_path / "data", kafka=address) as process:
        process.kafka = address  # type: ignore[attr-defined]
        yield process


class Publishing(threading.Thread):
    """Numbers to both partitions, idempotently, for as long as it is not stopped."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.confirmed: dict[int, list[int]] = {n: [] for n in range(PARTITIONS)}
        self.failed: list[str] = []
        self.stopping = threading.Event()
        self._address = address

    def run(self) -> None:
        producer = Producer(
            confluent_settings(
                self._address,
                enable_idempotence=True,
                linger_ms=2,
                retry_backoff_ms=20,
                reconnect_backoff_ms=10,
                reconnect_backoff_max_ms=100,
            )
        )
        for number in itertools.count():
            if self.stopping.is_set():
                break
            for partition in range(PARTITIONS):

                def told(error: object, _: object, at: int = partition, n: int = number) -> None:
                    if error:
                        self.failed.append(str(error))
                    else:
                        self.confirmed[at].append(n)

                producer.produce("orders", b"%d" % number, partition=partition, on_delivery=told)
            producer.poll(0.001)
        producer.flush(WAIT_S)


def test_nothing_is_lost_or_doubled(process: ServerProcess, fsync: str) -> None:
    address: str = process.kafka  # type: ignore[attr-defined]
    config = {"penstock.fsync": fsync}
    admin = AdminClient(confluent_settings(address))
    admin.create_topics([NewTopic("orders", PARTITIONS, 1, config=config)])["orders"].result()
    publishing = Publishing(address)
    publishing.start()
    reader = Consumer(
        confluent_settings(
            address,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            reconnect_backoff_max_ms=100,
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
        )
        | {"group.id": "readers"}
    )
    reader.subscribe(["orders"])
    try:
        for _ in range(KILLS):
            take(reader, 200)
            with suppress(KafkaException):  # nobody knows it any more, and it joins again
                reader.commit(asynchronous=False)
            process.kill()
            process.start()
        time.sleep(0.3)
    finally:
        publishing.stopping.set()
        publishing.join(WAIT_S)
        reader.close()
    assert not publishing.failed
    stored = read_all(address, {n: len(each) for n, each in publishing.confirmed.items()})
    for partition, numbers in publishing.confirmed.items():
        assert numbers == list(range(len(numbers)))
        assert stored[partition] == numbers, partition  # none lost, none twice, in order
    assert len(publishing.confirmed[0]) > 600


def read_all(address: str, counts: dict[int, int]) -> dict[int, list[int]]:
    consumer = Consumer(
        confluent_settings(address, auto_offset_reset="earliest") | {"group.id": "afterwards"}
    )
    consumer.subscribe(["orders"])
    found: dict[int, list[int]] = {partition: [] for partition in counts}
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and any(len(found[p]) < n for p, n in counts.items()):
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                found[message.partition()].append(int(message.value()))
    consumer.close()
    return found


def test_a_group_goes_on_after_a_kill_where_it_committed(process: ServerProcess) -> None:
    address: str = process.kafka  # type: ignore[attr-defined]
    admin = AdminClient(confluent_settings(address))
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result()
    producer = Producer(confluent_settings(address))
    for number in range(100):
        producer.produce("orders", b"%d" % number)
    producer.flush(WAIT_S)
    settings = confluent_settings(address, auto_offset_reset="earliest", enable_auto_commit=False)
    reader = Consumer(settings | {"group.id": "readers"})
    reader.subscribe(["orders"])
    assert [each.value for each in take(reader, 60)] == [b"%d" % n for n in range(60)]
    reader.commit(asynchronous=False)
    process.kill()
    process.start()
    second = Consumer(settings | {"group.id": "readers"})
    second.subscribe(["orders"])
    reader.close()
    assert [each.value for each in take(second, 40, WAIT_S)] == [b"%d" % n for n in range(60, 100)]
    second.close()
