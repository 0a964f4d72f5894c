"""A process with schedules that is killed, over and over: a line of JSON on stdin starts a life.

One process that has loaded everything forks a child for each life, so that a life begins at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import penstock
from penstock.record.batch import Batch
from tests.integration.broker.doomed import guarded, say

EVERY_MS = 100


def live(folder: str) -> None:
    ps = penstock.connect(folder)
    for topic, fsync in (("jobs", "interval"), ("sure", "always")):
        ps.create_topic(topic, exist_ok=True, partitions=2, fsync=fsync)
        ps.schedule(topic, topic=topic, value=topic, every="100ms", catch_up_policy="all")
    say("ready")
    threading.Event().wait()


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the dead
    Batch.build([b"value"], headers=[{"a": b"1"}])  # Arrow loads some of itself only now
    for line in sys.stdin:
        life = json.loads(line)
        if os.fork() == 0:
            say("pid", os.getpid())
            guarded(lambda: live(life["folder"]))  # noqa: B023
            os._exit(1)


if __name__ == "__main__":
    main()
