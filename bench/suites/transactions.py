"""Transactions: beside the same as single calls, and beside batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from bench import messages
from bench.figures import at_least
from bench.harness import Bench, Contender, Sample, stopwatch

_TIMES = 300
_EACH = 5  # messages to each of two topics
_BATCH = 1000
_BATCHES = 60


def run(bench: Bench) -> None:
    values = messages.values(_BATCH)
    small = bench.race(
        "10 messages to 2 topics and an ack",
        [
            Contender("transaction", lambda folder: _small(folder, values, _transaction)),
            Contender("single calls", lambda folder: _small(folder, values, _single)),
        ],
        rounds=2 * bench.rounds - 1,  # short runs, close ratios
    )
    bench.compare(
        small,
        "transaction",
        "single calls",
        at_least(0.5),
        "times",
        title="10 messages to 2 topics + ack: single calls",
    )
    large = bench.race(
        "1,000 messages",
        [
            Contender("transaction", lambda folder: _large(folder, values, transactional=True)),
            Contender("publish_batch", lambda folder: _large(folder, values, transactional=False)),
        ],
        rounds=2 * bench.rounds - 1,
    )
    bench.compare(
        large,
        "transaction",
        "publish_batch",
        at_least(0.6),
        "messages",
        title="transaction of 1,000: publish_batch",
    )
    bench.note(
        f"Embedded, messages of 100 B, fsync interval. {_TIMES} times {2 * _EACH} messages and an "
        f"ack; {_BATCHES} batches of {_BATCH:,} to one partition, which are written once."
    )


def _small(folder: Path, values: list[bytes], work: Any) -> Sample:
    with penstock.connect(folder) as ps:
        for topic in ("orders", "shipments", "mail"):
            ps.create_topic(topic, partitions=1)
        ps.publish_batch("orders", values[:_TIMES])
        orders = [ps.receive("orders", "g", max_messages=1)[0] for _ in range(_TIMES)]
        with stopwatch(_TIMES) as sample:
            for order in orders:
                work(ps, order, values)
    return sample


def _transaction(ps: Any, order: Any, values: list[bytes]) -> None:
    with ps.transaction() as tx:
        tx.ack(order)
        for value in values[:_EACH]:
            tx.publish("shipments", value)
            tx.publish("mail", value)


def _single(ps: Any, order: Any, values: list[bytes]) -> None:
    for value in values[:_EACH]:
        ps.publish("shipments", value)
        ps.publish("mail", value)
    order.ack()


def _large(folder: Path, values: list[bytes], *, transactional: bool) -> Sample:
    with penstock.connect(folder) as ps:
        ps.create_topic("orders", partitions=1)
        with stopwatch(_BATCH * _BATCHES) as sample:
            for _ in range(_BATCHES):
                if transactional:
                    with ps.transaction() as tx:
                        tx.publish_batch("orders", values)
                else:
                    ps.publish_batch("orders", values)
    return sample
