"""Receiving and acking: batches beside queuelib, single messages beside queues with acks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import penstock
from bench import messages
from bench.figures import at_least
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.peers import litequeue, persist_queue, queuelib
from bench.suites.broker_publish import TOPIC

GROUP = "billing"
_BATCHES = 200
_POOL = 50
_SINGLES = 1000  # also the backlog of the peers, whose cost grows with it
_DEFAULT = 10  # what `receive` asks for when nobody says how many


def run(bench: Bench) -> None:
    _batches(bench)
    _singles(bench)
    bench.note(
        "receive_batch: 1000 messages at a time, the column of values taken, the lease and its ack "
        "written to the ledger. receive: Message objects, 10 at a time as is the default, 100 or "
        "one; each acked on its own, and the operating system has the ack when the call returns."
    )
    bench.note(
        f"Single messages: {_SINGLES:,} wait when the clock starts, in every queue; all are taken, "
        "looked at and acked."
    )


def _batches(bench: Bench) -> None:
    pool = messages.in_batches(messages.values(_POOL * messages.BATCH_MESSAGES))
    batches = list(islice(cycle(pool), _BATCHES))
    size = messages.BATCH_MESSAGES
    race = bench.race(
        "batches",
        [
            receive_batches("receive_batch + ack", batches, size),
            queuelib.pop([value for batch in batches for value in batch]),
        ],
    )
    bench.compare(race, "receive_batch + ack", "queuelib pop", at_least(3), "messages")


def _singles(bench: Bench) -> None:
    values = messages.values(_SINGLES)
    ours = {"receive + ack": _DEFAULT, "receive of 100 + ack": 100, "receive of one + ack": 1}
    peers = [
        persist_queue.get_and_ack(values),
        litequeue.pop_and_done(values),
        persist_queue.get_and_ack(values, fsync=False),
    ]
    contenders = [receive_singles(name, values, count) for name, count in ours.items()]
    race = bench.race(
        "single messages",
        contenders + peers,
        rounds=2 * bench.rounds - 1,  # short runs, close ratios
    )
    for name in ours:
        for peer in peers:
            fair = peer is not peers[-1]  # nobody would run it so; it is there to compare with
            bench.compare(race, name, peer.name, at_least(10) if fair else None, "messages")


def receive_batches(
    name: str, batches: Sequence[Sequence[bytes]], max_messages: int, partitions: int = 1
) -> Contender:
    """Everything received as columns and acked, so many messages at a time."""

    def run(folder: Path) -> Sample:
        with penstock.connect(folder) as ps:
            ps.create_topic(TOPIC, partitions=partitions)
            left = 0
            for values in batches:
                ps.publish_batch(TOPIC, values)
                left += len(values)
            with stopwatch(left) as sample:
                while left:
                    received = ps.receive_batch(TOPIC, GROUP, max_messages)
                    for batch in received.batches:
                        left -= len(batch.values)
                    received.ack()
        return sample

    return Contender(name, run)


def receive_singles(name: str, values: Sequence[bytes], max_messages: int) -> Contender:
    """Everything received as objects, each looked at and acked on its own."""

    def run(folder: Path) -> Sample:
        with penstock.connect(folder) as ps:
            ps.create_topic(TOPIC)
            ps.publish_batch(TOPIC, values)
            total_bytes = 0
            with stopwatch(len(values)) as sample:
                while received := ps.receive(TOPIC, GROUP, max_messages):
                    for message in received:
                        total_bytes += len(message.value or b"")
                        message.ack()
        if total_bytes != sum(map(len, values)):
            raise RuntimeError(f"received {total_bytes:,} bytes, not what was published")
        return sample

    return Contender(name, run)
