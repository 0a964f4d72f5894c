"""A process that shares a data folder: it publishes, receives and acks until its input ends, and
says what it did on its standard output, a line each: when, what, and which message.

    python -m tests.integration.broker.sharer FOLDER NAME
"""

from __future__ import annotations

import sys
import threading
import time
from itertools import count

import penstock
from penstock.client.client import Client

TOPIC, GROUP = "orders", "g"

_printing = threading.Lock()
_stopped = threading.Event()


def say(event: str, value: str) -> None:
    with _printing:
        print(time.monotonic_ns(), event, value, flush=True)


def publish(ps: Client, name: str) -> None:
    for number in count():
        if _stopped.is_set():
            return
        rows = [f"{name}-{number}-{row}" for row in range(1 + number % 3)]
        if len(rows) == 1:
            ps.publish(TOPIC, rows[0])
        else:
            ps.publish_batch(TOPIC, rows, keys=rows if number % 2 else None)
        for row in rows:
            say("published", row)
        time.sleep(0.002)


def consume(ps: Client) -> None:
    while not _stopped.is_set():
        for message in ps.receive(TOPIC, GROUP, 5, wait="1s"):
            value = (message.value or b"").decode()
            say("received", value)
            message.ack()
            say("acked", value)


def main(folder: str, name: str) -> None:
    with penstock.connect(folder) as ps:
        ps.create_topic(TOPIC, exist_ok=True, partitions=2, visibility="5m", max_retries=None)
        say("ready", name)
        threads = [
            threading.Thread(target=publish, args=(ps, name)),
            threading.Thread(target=consume, args=(ps,)),
        ]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        _stopped.set()
        for thread in threads:
            thread.join()
    say("closed", name)


if __name__ == "__main__":
    main(*sys.argv[1:])
