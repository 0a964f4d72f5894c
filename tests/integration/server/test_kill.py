"""The server is killed again and again under load: nothing acknowledged is lost, clients go on."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.integration.broker.world import Background
from tests.integration.server.process import ServerProcess

CONFIRMED_S_MAX = 60


class Load:
    """Clients that work on a topic, and what they were told."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.stop_publishing = threading.Event()
        self.stop_consuming = threading.Event()
        self.published: set[bytes] = set()  # confirmed
        self.produced: set[bytes] = set()  # confirmed by an idempotent producer
        self.acked: dict[bytes, int] = {}  # confirmed, and as the how many'th
        self.again: list[bytes] = []  # asked for after its ack was confirmed, and delivered

    def connect(self) -> Any:
        return penstock.connect(self._url, retry_for="60s", timeout="10s")

    def wait_for(self, more: int) -> None:
        """Until so many more messages are confirmed."""
        wanted = len(self.published) + len(self.produced) + more
        deadline = time.monotonic() + CONFIRMED_S_MAX
        while len(self.published) + len(self.produced) < wanted:
            assert time.monotonic() < deadline, "the clients do not go on"
            time.sleep(0.01)

    def publish(self, ps: Any, name: str) -> None:
        with ps:
            for number in range(1 << 30):
                if self.stop_publishing.is_set():
                    return
                value = f"{name}-{number}".encode()
                ps.publish("orders", value)
                self.published.add(value)

    def publish_batches(self, ps: Any, name: str) -> None:
        with ps:
            for number in range(1 << 30):
                if self.stop_publishing.is_set():
                    return
                values = [f"{name}-{number}-{row}".encode() for row in range(20)]
                assert len(list(ps.publish_batch("orders", values, keys=values))) == 20
                self.published.update(values)

    def produce(self, ps: Any, name: str) -> None:
        with ps, ps.producer("orders", messages_max=20) as out:
            for number in range(1 << 30):
                if self.stop_publishing.is_set():
                    return
                values = [f"{name}-{number}-{row}".encode() for row in range(50)]
                sent = [out.send(value) for value in values]
                for each in sent:
                    each.result()
                self.produced.update(values)

    def consume(self, ps: Any, name: str) -> None:
        with ps:
            while not self.stop_consuming.is_set():
                known = len(self.acked)
                for message in ps.receive("orders", "g", 50, wait="200ms", visibility="2s"):
                    if self.acked.get(message.value, known) < known:
                        self.again.append(message.value)
                    errors = ps.ack("g", message.receipt)
                    if not errors:
                        self.acked.setdefault(message.value, len(self.acked))


def run(folder: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    with ServerProcess(folder) as server:
        load = Load(server.url)
        with load.connect() as ps:
            ps.create_topic("orders", partitions=3, max_retries=None)
        work: list[tuple[Callable[[Any, str], None], str]] = [
            (load.publish, "one"),
            (load.publish_batches, "many"),
            (load.produce, "first"),
            (load.produce, "second"),
            (load.consume, "a"),
            (load.consume, "b"),
        ]
        clients = [Background(partial(each, load.connect(), name)) for each, name in work]
        for _ in range(kills):
            load.wait_for(rng.randrange(1, 4000))  # messages, and it is killed
            server.kill()
            time.sleep(rng.uniform(0, 0.3))  # so long nobody listens
            server.start()
            load.wait_for(1)  # they carry on by themselves
        load.stop_publishing.set()
        for client in clients[:4]:
            client.result(60)
        everything = load.published | load.produced
        deadline = time.monotonic() + 60
        while not everything <= load.acked.keys():
            assert time.monotonic() < deadline, (seed, len(everything - load.acked.keys()))
            time.sleep(0.05)
        load.stop_consuming.set()
        for client in clients[4:]:
            client.result(60)
        stored = stored_values(load)
        assert everything <= stored.keys(), seed
        assert {value for value in load.produced if stored[value] > 1} == set(), seed
        # A publish whose answer was lost may be there twice; anything else is delivered once.
        assert {value for value in load.again if stored[value] == 1} == set(), seed
        print(f"seed {seed}: {kills} kills, {len(everything)} acknowledged, none lost")


def stored_values(load: Load) -> Counter[bytes]:
    stored: Counter[bytes] = Counter()
    with load.connect() as ps:
        for partition in range(3):
            offset = 0
            while page := ps.peek("orders", partition=partition, at=offset, limit=10_000):
                stored.update(message.value for message in page)
                offset = page[-1].offset + 1
    return stored


def test_nothing_acknowledged_is_lost_and_clients_carry_on(tmp_path: Path) -> None:
    run(tmp_path / "data", kills=2, seed=random.randrange(1 << 32))


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_nothing_acknowledged_is_lost_over_many_kills(tmp_path: Path) -> None:
    for turn in range(10):
        run(tmp_path / f"data-{turn}", kills=10, seed=random.randrange(1 << 32))
