"""What an acknowledgement means, and what a consumer may see, on a disk whose syncs wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.broker.broker import Broker, BrokerConfig
from penstock.log.files import DiskFile, DiskFiles
from penstock.log.local_engine import LocalEngine
from tests.integration.kafka.clients import confluent_settings
from tests.integration.server.running import RunningServer


class WaitingFiles(DiskFiles):
    """A disk whose syncs of messages wait while `held` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.go_on.set()

    def create(self, path: str) -> DiskFile:
        return _WaitingFile(self, path, super().create(path))

    def open(self, path: str) -> DiskFile:
        return _WaitingFile(self, path, super().open(path))


class _WaitingFile(DiskFile):
    def __init__(self, files: WaitingFiles, path: str, file: DiskFile) -> None:
        super().__init__(file._descriptor, file.size)
        self._files = files
        self._is_messages = "/topics/" in path

    def sync(self) -> None:
        if self._is_messages:
            assert self._files.go_on.wait(30)
        super().sync()


@pytest.fixture
def files() -> WaitingFiles:
    return WaitingFiles()


@pytest.fixture
def waiting(files: WaitingFiles, tmp_path: Path) -> Iterator[RunningServer]:
    engine = LocalEngine(tmp_path / "data", files=files)
    with (
        Broker(engine, BrokerConfig(free_bytes_min=0)) as broker,
        RunningServer(broker, kafka=True) as server,
    ):
        admin = AdminClient(confluent_settings(server.kafka))
        topic = NewTopic("orders", 1, 1, config={"flush.messages": "1"})
        admin.create_topics([topic])["orders"].result()
        try:
            yield server
        finally:
            files.go_on.set()


def test_acks_all_waits_for_the_disk_and_so_do_readers(
    files: WaitingFiles, waiting: RunningServer
) -> None:
    told: list[Any] = []
    producer = Producer(confluent_settings(waiting.kafka, acks="all"))
    producer.produce("orders", b"first", on_delivery=lambda error, _: told.append(error))
    producer.flush(10)
    assert told == [None]
    consumer = Consumer(confluent_settings(waiting.kafka) | {"group.id": "g"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    message = consumer.poll(10)
    assert message is not None
    assert message.value() == b"first"

    files.go_on.clear()
    producer.produce("orders", b"second", on_delivery=lambda error, _: told.append(error))
    producer.flush(0.7)
    assert told == [None]
    assert consumer.poll(0.7) is None
    assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=10)[1] == 1

    files.go_on.set()
    began = time.monotonic()
    message = consumer.poll(10)
    assert message is not None
    assert message.value() == b"second"
    assert time.monotonic() - began < 5
    producer.flush(10)
    assert told == [None, None]
    consumer.close()


def test_acks_1_does_not_wait(files: WaitingFiles, waiting: RunningServer) -> None:
    told: list[Any] = []
    files.go_on.clear()
    producer = Producer(confluent_settings(waiting.kafka, acks=1))
    producer.produce("orders", b"x", on_delivery=lambda error, _: told.append(error))
    producer.flush(5)
    assert told == [None]
    files.go_on.set()
