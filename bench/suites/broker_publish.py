"""Publishing to a topic: the producer, single messages and batches, beside other queues."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import penstock
from bench import messages
from bench.figures import at_least
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.peers import persist_queue, queuelib
from bench.suites.log_append import append_lists

TOPIC = "orders"
_SENT = 200_000
_PUBLISHED = 2000
_PUBLISHED_OTHERWISE = 20_000
_BATCHES = 500
_POOL = 100  # different batches; they are sent again and again, so that memory stays small


def run(bench: Bench) -> None:
    _sending(bench)
    _singles(bench)
    _otherwise(bench)
    _batches(bench)
    bench.note(
        "Through penstock.connect, a topic with its defaults: one partition, fsync every second. "
        "send: a producer with its defaults (batches of 100, idempotent), flush timed. publish and "
        "publish_batch: the operating system has the messages when the call returns."
    )


def _sending(bench: Bench) -> None:
    values = messages.values(_SENT)
    race = bench.race(
        "sending", [_send(values), queuelib.push(values)], rounds=2 * bench.rounds - 1
    )
    bench.compare(race, "producer.send", "queuelib push", at_least(1), "messages")


def _singles(bench: Bench) -> None:
    values = messages.values(_PUBLISHED)
    race = bench.race(
        "single messages", [publish(values), persist_queue.put(values), queuelib.push(values)]
    )
    bench.compare(race, "publish", "persist-queue put", at_least(5), "messages")
    bench.compare(race, "publish", "queuelib push", unit="messages")


def _otherwise(bench: Bench) -> None:
    """Single messages that are known by an id, or come later."""
    values = messages.values(_PUBLISHED_OTHERWISE)
    contenders = [publish(values), _publish_with_ids(values), _publish_later(values)]
    race = bench.race("single messages with an id or a delay", contenders)
    bench.compare(race, "publish with dedup_id", "publish", at_least(0.4), "messages")
    bench.compare(race, "publish with delay", "publish", at_least(0.4), "messages")


def _batches(bench: Bench) -> None:
    pool = messages.in_batches(messages.values(_POOL * messages.BATCH_MESSAGES))
    batches = list(islice(cycle(pool), _BATCHES))
    race = bench.race(
        "batches",
        [publish_batches("publish_batch", batches), append_lists("append to a log", batches)],
        rounds=2 * bench.rounds - 1,  # short runs, close ratios
    )
    bench.compare(race, "publish_batch", "append to a log", at_least(0.6), "messages")


def _send(values: Sequence[bytes]) -> Contender:
    def run(folder: Path) -> Sample:
        with penstock.connect(folder) as ps:
            ps.create_topic(TOPIC)
            with ps.producer(TOPIC) as producer, stopwatch(len(values)) as sample:
                for value in values:
                    producer.send(value)
                producer.flush()
        return sample

    return Contender("producer.send", run)


def publish(values: Sequence[bytes]) -> Contender:
    """Each message on its own."""

    def run(folder: Path) -> Sample:
        with penstock.connect(folder) as ps:
            ps.create_topic(TOPIC)
            with stopwatch(len(values)) as sample:
                for value in values:
                    ps.publish(TOPIC, value)
        return sample

    return Contender("publish", run)


def _publish_with_ids(values: Sequence[bytes]) -> Contender:
    ids = [f"order-{number}" for number in range(len(values))]

    def run(folder: Path) -> Sample:
        with penstock.connect(folder) as ps:
            ps.create_topic(TOPIC)
            with stopwatch(len(values)) as sample:
                for value, id_ in zip(values, ids, strict=True):
                    ps.publish(TOPIC, value, dedup_id=id_)
        return sample

    return Contender("publish with dedup_id", run)


def _publish_later(values: Sequence[bytes]) -> Contender:
    def run(folder: Path) -> Sample:
        with penstock.connect(folder) as ps:
            ps.create_topic(TOPIC)
            with stopwatch(len(values)) as sample:
                for value in values:
                    ps.publish(TOPIC, value, delay="1h")
        return sample

    return Contender("publish with delay", run)


def publish_batches(
    name: str, batches: Sequence[Sequence[bytes]], partitions: int = 1
) -> Contender:
    """Each list as one batch; all messages counted."""

    def run(folder: Path) -> Sample:
        count = sum(map(len, batches))
        with penstock.connect(folder) as ps:
            ps.create_topic(TOPIC, partitions=partitions)
            with stopwatch(count) as sample:
                for values in batches:
                    ps.publish_batch(TOPIC, values)
        return sample

    return Contender(name, run)
