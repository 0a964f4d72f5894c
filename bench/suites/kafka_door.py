"""Kafka's protocol: confluent-kafka publishes to Penstock and to Apache Kafka, and reads again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.cpu_time import used_s
from bench.figures import at_least
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.peers import kafka
from bench.servers.base import free_port

_MESSAGES = 1_000_000
_MESSAGES_QUICK = 300_000
_BATCH = 1000
_VALUE_BYTES = 100
_WAIT_S = 120.0
_START_S_MAX = 30

_topics = count()


def run(bench: Bench) -> None:
    bench.progress.show("fetching Kafka")
    missing = kafka.fetch(bench.cache)
    messages = _MESSAGES_QUICK if bench.quick else _MESSAGES
    with bench.folder() as folder, ExitStack() as running:
        ours, process = running.enter_context(_penstock(folder / "penstock"))
        theirs = ""
        if not missing:
            (folder / "kafka").mkdir()
            theirs = running.enter_context(kafka.broker(bench.cache, folder / "kafka", 1))
        for title, side, target in (
            ("in", _publish_all, at_least(0.5)),
            ("out", _read_all, at_least(0.5)),
        ):
            race = bench.race(
                f"confluent-kafka, {title}",
                [
                    Contender("Penstock", _side(side, ours, messages)),
                    Contender("Kafka", _side(side, theirs, messages), missing=missing),
                ],
                rounds=3,
            )
            bench.compare(
                race, "Penstock", "Kafka", target, "messages", f"confluent-kafka {title} / Kafka"
            )
        _cpu(bench, ours, process, messages)
    bench.note(
        f"{messages:,} messages of {_VALUE_BYTES} bytes in batches of {_BATCH:,}, acks=all, one "
        f"partition, not compressed; Kafka {kafka.VERSION} with one broker (KRaft). The client "
        "runs on the same machine, and takes more of it than either server."
    )


def _side(
    side: Callable[[str, int], Sample], address: str, messages: int
) -> Callable[[Path], Sample]:
    return lambda _: side(address, messages)


def _cpu(bench: Bench, address: str, process: int, messages: int) -> None:
    """What the server itself can do: the clients have the rest of the machine."""
    for title, side in (("in", _publish_all), ("out", _read_all)):
        if title == "out":
            topic = _filled(address, messages)
        before = used_s(process)
        if title == "in":
            side(address, messages)
        else:
            _read(address, topic, messages)
        bench.figure(
            f"messages {title} for each second of the server's CPU",
            messages / max(used_s(process) - before, 0.01),
            unit="messages",
        )


def _publish_all(address: str, messages: int) -> Sample:
    topic = f"bench-{next(_topics)}"
    _publish(address, topic, 1)  # which makes it
    with stopwatch(messages) as sample:
        _publish(address, topic, messages)
    return sample


def _read_all(address: str, messages: int) -> Sample:
    topic = _filled(address, messages)
    with stopwatch(messages) as sample:
        _read(address, topic, messages)
    return sample


def _filled(address: str, messages: int) -> str:
    topic = f"bench-{next(_topics)}"
    _publish(address, topic, messages)
    return topic


def _publish(address: str, topic: str, messages: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": "all",
            "linger.ms": 50,
            "batch.num.messages": _BATCH,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    batch: Sequence[dict[str, bytes]] = [{"value": b"x" * _VALUE_BYTES}] * _BATCH
    left = messages
    while left:
        taken = producer.produce_batch(topic, list(batch[: min(left, _BATCH)]))
        left -= taken
        producer.poll(0 if taken else 0.01)
    unsent = producer.flush(_WAIT_S)
    assert not unsent, f"{unsent} messages were not taken"


def _read(address: str, topic: str, messages: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 1 << 18,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found, deadline = 0, time.monotonic() + _WAIT_S
    while found < messages:
        found += len(consumer.consume(10_000, 1))
        assert time.monotonic() < deadline, f"{found} of {messages} messages came"
    consumer.close()


@contextmanager
def _penstock(folder: Path) -> Iterator[tuple[str, int]]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(folder), "--port", "0"]
    with subprocess.Popen(
        [*command, "--kafka", address, "--auto-create", "--log-level", "warning"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait(address)
            yield address, process.pid
        finally:
            process.terminate()


def _wait(address: str) -> None:
    probe = Producer({"bootstrap.servers": address, "log_level": 0})
    deadline = time.monotonic() + _START_S_MAX
    while True:
        try:
            probe.list_topics(timeout=2)
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
