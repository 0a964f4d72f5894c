"""A server that pushes is killed again and again: all that it confirmed arrives, acks last."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import DeliveryError
from tests.integration.broker.world import Background
from tests.integration.server.process import ServerProcess
from tests.integration.server.receiver import Receiver

ARRIVED_S_MAX = 90


class Pushed:
    """What clients were told, and what was pushed to them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.stop = threading.Event()
        self.confirmed: set[str] = set()
        self.acked: set[str] = set()
        self.again: list[str] = []  # came although its ack was confirmed before

    def connect(self) -> Any:
        return penstock.connect(self._url, retry_for="60s", timeout="10s")

    def publish(self) -> None:
        with self.connect() as ps:
            for number in range(1 << 30):
                if self.stop.is_set():
                    return
                ps.publish("orders", str(number))
                self.confirmed.add(str(number))

    def listen(self) -> None:
        """Over one WebSocket after the other, until it is all here."""
        with self.connect() as ps, ps.listen("orders", "listeners", visibility="5s") as incoming:
            for message in incoming:
                value = message.text()
                if value in self.acked:
                    self.again.append(value)
                try:
                    message.ack()
                except DeliveryError:
                    continue  # it comes again
                self.acked.add(value)
                if self.stop.is_set() and self.acked >= self.confirmed:
                    return

    def wait_for(self, more: int) -> None:
        """Until so many more messages are confirmed."""
        wanted, deadline = len(self.confirmed) + more, time.monotonic() + ARRIVED_S_MAX
        while len(self.confirmed) < wanted:
            assert time.monotonic() < deadline, "the publisher does not go on"
            time.sleep(0.01)


def run(folder: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    allowed: dict[str, Any] = {"webhook_networks": "127.0.0.0/8", "webhook_http": True}
    with Receiver() as receiver, ServerProcess(folder, **allowed) as server:
        pushed = Pushed(server.url)
        with pushed.connect() as ps:
            ps.create_topic("orders", max_retries=None)
            ps.create_webhook("orders", receiver.url, timeout="1s")
        publisher = Background(pushed.publish)
        listener = Background(pushed.listen)
        for _ in range(kills):
            pushed.wait_for(rng.randrange(1, 300))
            server.kill()
            time.sleep(rng.uniform(0, 0.2))
            server.start()
            pushed.wait_for(1)
        pushed.stop.set()
        publisher.result(60)
        with pushed.connect() as ps:
            last = "the last one"
            pushed.confirmed.add(last)
            ps.publish("orders", last)  # for a listener that has all the others already
        listener.result(ARRIVED_S_MAX)
        wanted = pushed.confirmed
        deadline = time.monotonic() + ARRIVED_S_MAX
        while not wanted <= (posted := posted_values(receiver)):
            assert time.monotonic() < deadline, (seed, len(wanted - posted))
            time.sleep(0.05)
        # The answer to a publish that was repeated may have been lost; each is stored once.
        assert pushed.again == [], seed
        print(f"seed {seed}: {kills} kills, {len(wanted)} confirmed, all pushed and posted")


def posted_values(receiver: Receiver) -> set[str]:
    return {str(json.loads(got.body)["data"]) for got in list(receiver.got)}


def test_what_was_confirmed_is_pushed_and_posted_over_kills(tmp_path: Path) -> None:
    run(tmp_path / "data", kills=1, seed=random.randrange(1 << 32))


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_what_was_confirmed_is_pushed_and_posted_over_many_kills(tmp_path: Path) -> None:
    for turn in range(5):
        run(tmp_path / f"data-{turn}", kills=20, seed=random.randrange(1 << 32))
