"""A process that works with a broker until it is killed, and says on its standard output what it is
about to do and what was acknowledged, a line each.

    python -m tests.integration.broker.doomed     # a line of JSON on stdin starts a life

One process that has loaded everything forks a child for each life, so that a life begins at once.
Beside the broker's own threads the child has one that publishes, two consumers of each group, and
one that reads a stream. A line is an event, a topic and what goes with it: `heard.py` listens.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import penstock
from penstock.errors import PenstockError
from penstock.record.batch import Batch

GROUPS = ("billing", "audit")
CONSUMERS = 2
STREAM_GROUP = "stream"
ONCE = "once-"
"""Before the value of a message that has a deduplication id."""
MAX_RETRIES = 2
TOPICS: dict[str, dict[str, Any]] = {
    "orders": {"partitions": 2, "fsync": "interval"},
    "jobs": {"partitions": 1, "fsync": "always", "ordered_by_key": True},
}
DEEDS = ("ack", "ack", "ack", "nack", "nack", "reject", "nothing")
PAUSE_S_MAX = 0.02  # of the publisher, or the consumers would never see a message again


class Life:
    def __init__(self, folder: str, seed: int, again: list[tuple[str, str]]) -> None:
        self.ps = penstock.connect(folder)
        self.seed = seed
        self.again = again
        for topic, settings in TOPICS.items():
            self.ps.create_topic(
                topic,
                exist_ok=True,
                max_retries=MAX_RETRIES,
                visibility="100ms",
                backoff=(0, 1.0, 0),
                segment_bytes=16 << 10,
                **settings,
            )
        say("ready")

    def run(self) -> None:
        work: list[Callable[[], None]] = [self.publish, self.stream]
        for group in GROUPS:
            work += [partial(self.consume, group, number) for number in range(CONSUMERS)]
        for target in work:
            threading.Thread(target=guarded, args=(target,), daemon=True).start()
        threading.Event().wait()

    def publish(self) -> None:
        """First of all, what a former life sent without hearing back."""
        rng = Random(self.seed)
        for topic, value in self.again:
            self.publish_once(topic, value)
        serial = 0
        while True:
            serial += 1
            topic, value = rng.choice(list(TOPICS)), f"{self.seed}-{serial}"
            match rng.randrange(4):
                case 0:
                    self.publish_once(topic, ONCE + value)
                case 1:
                    say("sending", topic, value)
                    sent = self.ps.publish(topic, value, key=a_key(rng), priority=rng.randrange(5))
                    say("sent", topic, value, sent.partition, sent.offset)
                case 2:
                    self.publish_batch(topic, value, rng)
                case 3:
                    self.delay(topic, value, rng)
            time.sleep(rng.random() * PAUSE_S_MAX)

    def publish_once(self, topic: str, value: str) -> None:
        say("sending", topic, value)
        sent = self.ps.publish(topic, value, dedup_id=value)
        say("sent", topic, value, sent.partition, sent.offset)

    def publish_batch(self, topic: str, value: str, rng: Random) -> None:
        values = [f"{value}-{row}" for row in range(rng.randint(2, 8))]
        for each in values:
            say("sending", topic, each)
        keys = [a_key(rng) for _ in values]
        for each, sent in zip(values, self.ps.publish_batch(topic, values, keys=keys), strict=True):
            say("sent", topic, each, sent.partition, sent.offset)

    def delay(self, topic: str, value: str, rng: Random) -> None:
        say("sending", topic, value)
        late = self.ps.publish(topic, value, delay=rng.choice((0, 0.01, 0.05, 0.5)))
        say("delayed", topic, value)
        if rng.random() < 0.3:
            say("cancelling", topic, value)
            gone = self.ps.cancel(topic, late.id)
            say("cancelled" if gone else "not-cancelled", topic, value)

    def consume(self, group: str, number: int) -> None:
        rng = Random(f"{self.seed} {group} {number}")
        while True:
            topic = rng.choice(list(TOPICS))
            say("receiving", topic, group)
            messages = self.ps.receive(topic, group, rng.choice((1, 2, 8)), wait=0.02)
            for message in messages:
                say("got", topic, group, *named(message))
            say("received", topic, group)
            for message in messages:
                deed = rng.choice(DEEDS)
                if deed == "nothing":
                    continue
                say(f"{deed}ing", topic, group, *named(message))
                try:
                    getattr(message, deed)()
                except PenstockError:  # too late: the lease ran out
                    say("refused", topic, group, *named(message))
                else:
                    say(f"{deed}ed", topic, group, *named(message))

    def stream(self) -> None:
        with self.ps.stream("orders", STREAM_GROUP, commit_every=None) as stream:
            done: dict[int, int] = {}
            for number, message in enumerate(stream):
                done[message.partition] = message.offset + 1
                if number % 7 == 0:
                    position = [f"{partition}:{offset}" for partition, offset in done.items()]
                    say("committing", "orders", *position)
                    stream.commit()
                    say("committed", "orders", *position)


def named(message: Any) -> tuple[str, int]:
    return message.value.decode(), message.delivery_count


def a_key(rng: Random) -> str:
    return f"k{rng.randrange(30)}"


def say(*words: object) -> None:
    # One write of less than a page: never cut, never mixed with another thread's.
    try:
        os.write(1, (" ".join(map(str, words)) + "\n").encode())
    except BrokenPipeError:
        os._exit(1)  # nobody listens any more, so nobody would kill us


def guarded(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as exc:  # noqa: BLE001 - the parent has to hear of it
        say("failed", type(exc).__name__, str(exc).replace("\n", " ")[:500])


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the dead
    Batch.build([b"value"], keys=[b"key"])  # Arrow loads some of itself, and pandas, only now
    for line in sys.stdin:
        life = json.loads(line)
        if os.fork() == 0:
            say("pid", os.getpid())
            guarded(lambda: Life(life["folder"], life["seed"], life["again"]).run())  # noqa: B023
            os._exit(1)


if __name__ == "__main__":
    main()
