"""How the cost of publishing, receiving and acking grows: by batch, group, partition, in flight."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import penstock
from bench import messages
from bench.figures import Curve
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.suites.broker_publish import TOPIC, publish_batches
from bench.suites.broker_receive import GROUP, receive_batches
from penstock.client.client import Client

_BATCH_SIZES = (1, 10, 100, 1000, 10_000)
_CALLS_MAX = 500
_MESSAGES_MAX = 100_000
_GROUPS = (1, 4, 16, 64)
_PARTITIONS = (1, 4, 16, 64)
_IN_FLIGHT = (100, 1000, 10_000, 100_000)
_SINGLES = 500
_ROUNDS = 3

_Line = dict[str, list[tuple[float, float]]]


def run(bench: Bench) -> None:
    _by_batch_size(bench)
    _by_groups(bench)
    _by_partitions(bench)
    _by_in_flight(bench)
    bench.note("Costs are medians of 3 rounds in which the sizes took turns.")


def _by_batch_size(bench: Bench) -> None:
    contenders = []
    for size in _BATCH_SIZES:
        calls = max(5, min(_CALLS_MAX, _MESSAGES_MAX // size))
        pool = messages.in_batches(messages.values(5 * size), size)
        batches = [pool[number % len(pool)] for number in range(calls)]
        contenders.append(publish_batches(f"publish_batch {size}", batches))
        filled = messages.in_batches(messages.values(calls * size))
        contenders.append(receive_batches(f"receive_batch + ack {size}", filled, size))
    _curve(bench, "By batch size", "messages a call", _BATCH_SIZES, contenders)


def _by_groups(bench: Bench) -> None:
    contenders = []
    for groups in _GROUPS:
        contenders.append(_timed(f"publish {groups}", _publish, _with_groups(groups)))
        contenders.append(_timed(f"receive + ack {groups}", _receive, _with_groups(groups)))
    _curve(bench, "By number of groups", "groups of the topic", _GROUPS, contenders)


def _by_partitions(bench: Bench) -> None:
    contenders = []
    for count in _PARTITIONS:
        contenders.append(_timed(f"publish {count}", _publish, _with_partitions(count)))
        contenders.append(_timed(f"receive + ack {count}", _receive, _with_partitions(count)))
    _curve(bench, "By number of partitions", "partitions of the topic", _PARTITIONS, contenders)


def _by_in_flight(bench: Bench) -> None:
    sizes = _IN_FLIGHT[:-1] if bench.quick else _IN_FLIGHT
    contenders = []
    for count in sizes:
        contenders.append(_acking(f"leases of one {count}", count, 1))
        contenders.append(_acking(f"one lease {count}", count, count))
        contenders.append(_acking(f"one lease, any order {count}", count, count, shuffled=True))
    _curve(bench, "Ack of one by what is in flight", "messages in flight", sizes, contenders)


def _curve(
    bench: Bench, title: str, x_label: str, sizes: Iterable[int], contenders: list[Contender]
) -> None:
    """A line for each name; the last word of a contender's name is where it stands on the line."""
    race = bench.race(title, contenders, _ROUNDS)
    lines: _Line = {}
    for contender in contenders:
        name, _, size = contender.name.rpartition(" ")
        cost_us = 1e6 / race.rate(contender.name).median
        lines.setdefault(name, []).append((int(size), cost_us))
    bench.curve(Curve(title, x_label, "us a message", lines, y_log=True))
    for name, points in lines.items():
        detail = " -> ".join(f"{cost:.3g}" for _, cost in points) + " us a message"
        (least, first), (most, last) = points[0], points[-1]
        bench.figure(f"{name}, cost at {most:,} / at {least:,}", last / first, detail=detail)


def _timed(
    name: str, work: Callable[[Client], None], prepare: Callable[[Client], None]
) -> Contender:
    def run(folder: Path) -> Sample:
        with penstock.connect(folder) as ps:
            prepare(ps)
            with stopwatch(_SINGLES) as sample:
                work(ps)
        return sample

    return Contender(name, run)


def _publish(ps: Client) -> None:
    for value in messages.values(_SINGLES):
        ps.publish(TOPIC, value)


def _receive(ps: Client) -> None:
    for _ in range(_SINGLES):
        (message,) = ps.receive(TOPIC, GROUP, 1)
        message.ack()


def _with_groups(groups: int) -> Callable[[Client], None]:
    """All groups are at work: each holds a message."""

    def prepare(ps: Client) -> None:
        ps.create_topic(TOPIC)
        ps.publish_batch(TOPIC, messages.values(2 * _SINGLES))
        for number in range(groups - 1):
            ps.receive(TOPIC, f"group-{number}", 1)
        ps.receive(TOPIC, GROUP, 1)

    return prepare


def _with_partitions(partitions: int) -> Callable[[Client], None]:
    def prepare(ps: Client) -> None:
        ps.create_topic(TOPIC, partitions=partitions)
        for values in messages.in_batches(messages.values(2 * _SINGLES), 5):
            ps.publish_batch(TOPIC, values)
        for _ in range(partitions):
            ps.receive(TOPIC, GROUP, 1)

    return prepare


def _acking(name: str, count: int, lease: int, shuffled: bool = False) -> Contender:
    """Acks of single messages while so many are in flight; the receiving is not timed."""

    def run(folder: Path) -> Sample:
        with penstock.connect(folder) as ps:
            ps.create_topic(TOPIC)
            for values in messages.in_batches(messages.values(count)):
                ps.publish_batch(TOPIC, values)
            held = [m for _ in range(count // lease) for m in ps.receive(TOPIC, GROUP, lease)]
            if shuffled:
                random.Random(count).shuffle(held)
            acked = held[: min(_SINGLES, count // 2)]
            with stopwatch(len(acked)) as sample:
                for message in acked:
                    message.ack()
        return sample

    return Contender(name, run)
