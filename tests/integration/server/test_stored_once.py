"""What is published through a wire that is cut now and then is stored once."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.broker.api import Api
from penstock.broker.broker import Broker, BrokerConfig
from penstock.log.local_engine import LocalEngine
from penstock.model.names import topic_name
from penstock.model.published import CallId
from penstock.model.settings import TopicSettings
from penstock.record.batch import Batch
from tests.integration.broker.world import QuickFiles
from tests.integration.server.asking import Http
from tests.integration.server.proxy import Proxy
from tests.integration.server.running import RunningServer


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def far(wire: Proxy) -> Iterator[Any]:
    with penstock.connect(wire.url, retry_for="20s") as ps:
        ps.create_topic("orders", partitions=2)
        yield ps


def stored(ps: Any) -> list[bytes]:
    return sorted(m.value for p in (0, 1) for m in ps.peek("orders", partition=p, limit=1000))


def test_a_message_whose_answer_is_lost_is_stored_once_and_the_answer_is_the_first(
    far: Any, wire: Proxy
) -> None:
    for n in range(4):
        wire.lose_answers = 2
        at = far.publish("orders", b"%d" % n)
        (message,) = [m for m in far.peek("orders", partition=at.partition) if m.id == at.id]
        assert (message.value, message.offset) == (b"%d" % n, at.offset)
        assert not at.duplicate
    assert wire.lost == 8
    assert stored(far) == [b"0", b"1", b"2", b"3"]


SEEDED = """
import random, sys
random.seed(42)
import penstock
with penstock.connect(sys.argv[1]) as ps:
    assert not ps.publish("orders", b"alone", partition=0).duplicate
    with ps.producer("orders") as producer:
        producer.send(b"by a producer", partition=1)
    with ps.transaction() as tx:
        tx.publish("orders", b"in a transaction", partition=1)
"""


def test_a_program_that_seeds_its_random_numbers_stores_all_of_each_run(
    server: RunningServer,
) -> None:
    with penstock.connect(server.url) as ps:
        ps.create_topic("orders", partitions=2)
        for runs in (1, 2):
            subprocess.run([sys.executable, "-c", SEEDED, server.url], check=True)
            assert len(stored(ps)) == 3 * runs


def test_so_are_batches_over_partitions_and_delayed_messages(far: Any, wire: Proxy) -> None:
    keys = [b"%d" % (n % 7) if n % 3 else None for n in range(30)]
    for calls in range(3):
        wire.lose_answers = 1
        found = far.publish_batch("orders", [b"%d" % n for n in range(30)], keys=keys)
        assert len(found) == 30
        assert len(stored(far)) == 30 * (calls + 1)
    wire.lose_answers = 1
    delayed = far.publish("orders", b"later", delay="1h")
    wire.lose_answers = 1
    ids = far.schedule_batch("orders", [b"a", b"b"], keys=[b"k", b"l"], delay="1h")
    assert sorted(each.id for each in far.delayed("orders")) == sorted([delayed.id, *ids])
    assert wire.lost == 5


def test_each_of_many_threads_has_its_messages_stored_once(far: Any, wire: Proxy) -> None:
    def work(thread: int) -> None:
        for n in range(50):
            if n % 5 == thread:
                wire.lose_answers += 1
            far.publish("orders", b"%d/%d" % (thread, n))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert wire.lost > 10
    assert stored(far) == sorted(b"%d/%d" % (t, n) for t in range(4) for n in range(50))


def test_so_has_each_of_many_tasks(server: RunningServer) -> None:
    async def work() -> list[bytes]:
        with Proxy(server.port) as wire:
            async with penstock.aio.connect(wire.url, retry_for="20s") as ps:
                await ps.create_topic("orders", partitions=2)
                for _ in range(10):
                    wire.lose_answers = 2
                    await asyncio.gather(*(ps.publish("orders", b"x") for _ in range(10)))
                assert wire.lost == 20
                pages = [await ps.peek("orders", partition=p, limit=200) for p in (0, 1)]
                return [message.value or b"" for page in pages for message in page]

    assert asyncio.run(work()) == [b"x"] * 100


def test_a_call_that_arrives_in_several_copies_is_stored_once(http: Http, far: Any) -> None:
    path = "/v1/topics/orders/messages"

    def publish(value: bytes, call: str) -> Any:
        raw = "application/octet-stream"
        return http.ask("POST", path, value, content_type=raw, penstock_call=call)

    first = publish(b"x", "abc123-7")
    assert [publish(b"x", "abc123-7").json for _ in range(7)] == [first.json] * 7
    publish(b"y", "abc123-9")  # in the same partition as 7
    assert publish(b"x", "abc123-7").code == "out_of_order_sequence"
    assert stored(far) == [b"x", b"y"]
    for wrong in ("abc123", "x-1", "1-1", "-5-1", "abc123-" + "f" * 30):
        assert publish(b"x", wrong).code == "invalid_input"


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("delay", [None, "1h"])
def test_a_call_that_is_made_again_after_a_restart_is_stored_once(
    tmp_path: Path, orderly: bool, delay: str | None
) -> None:
    def opened(folder: Path) -> Broker:
        return Broker(LocalEngine(folder, files=QuickFiles()), BrokerConfig(free_bytes_min=0))

    def publish(broker: Broker) -> list[tuple[int, int, int]]:
        api, call = Api(broker), CallId(77, 5)
        batch = Batch.build([b"x"] * 9, keys=[b"%d" % n for n in range(9)])
        if delay is None:
            placed = api.publish(name, batch, call=call)
        else:
            placed = list(api.delay(name, batch, delay=delay, call=call)[0].placed)
        return [(each.partition, each.first_offset, each.ulid) for each in placed]

    folder, killed, name = tmp_path / "data", tmp_path / "killed", topic_name("orders")
    with opened(folder) as broker:
        broker.create_topic(name, TopicSettings(partitions=3))
        first = publish(broker)
        assert len(first) > 1
        shutil.copytree(folder, killed)
    for _ in range(2):  # the second time from a checkpoint
        with opened(folder if orderly else killed) as broker:
            assert publish(broker) == first
