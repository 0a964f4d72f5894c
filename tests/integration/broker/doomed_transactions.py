"""A process whose transactions move messages on, and that is killed, over and over."""

from __future__ import annotations

import json
import os
import signal
import sys
from random import Random

import penstock
from penstock.record.batch import Batch
from tests.integration.broker.doomed import guarded, say

STEPS = ("step0", "step1", "step2")
FSYNC = ("interval", "always", "interval")
MESSAGES = 40


def live(folder: str, seed: int) -> None:
    """Take messages of one step, and publish them to the next, round and round."""
    rng = Random(seed)
    ps = penstock.connect(folder)
    for nth, topic in enumerate(STEPS):
        ps.create_topic(topic, exist_ok=True, partitions=2, fsync=FSYNC[nth])
        if not nth and not ps.stats(topic).messages:
            ps.publish_batch(topic, [b"%d" % n for n in range(MESSAGES)], partition=0)
    say("ready")
    while True:
        at = rng.randrange(len(STEPS))
        messages = ps.receive(STEPS[at], "g", max_messages=rng.randrange(1, 8), visibility="1s")
        if not messages:
            continue
        with ps.transaction() as tx:
            for message in messages:
                tx.publish(STEPS[(at + 1) % len(STEPS)], message.value)
                tx.ack(message)
        say("moved", len(messages))


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the dead
    Batch.build([b"value"], headers=[{"a": b"1"}])  # Arrow loads some of itself only now
    for line in sys.stdin:
        life = json.loads(line)
        if os.fork() == 0:
            say("pid", os.getpid())
            guarded(lambda: live(life["folder"], life["seed"]))  # noqa: B023
            os._exit(1)


if __name__ == "__main__":
    main()
