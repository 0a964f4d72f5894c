"""A program with a broker in it that publishes numbers until it is killed, or has published all.

    python -m tests.spark.doomed_publisher FOLDER ACKED ALLOWED COUNT

`ACKED` is a file to which each batch of numbers is added once the broker has confirmed it. It is an
idempotent producer: a batch that was published and not noted is sent again, and not stored again.
`ALLOWED` is a file that says how many numbers may be published by now.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import penstock

BATCH = 1000
PARTITIONS = 3
PRODUCER_ID = 17


def main() -> None:
    folder, acked_path, allowed, count = (*sys.argv[1:4], int(sys.argv[4]))
    with penstock.connect(folder) as ps, open(acked_path, "a+", encoding="utf-8") as acked:
        acked.seek(0)
        for number in range(sum(1 for _ in acked), count // BATCH):
            start = number * BATCH
            while start >= int(Path(allowed).read_text()):
                time.sleep(0.05)
            values = [f"{each}" for each in range(start, start + BATCH)]
            ps.publish_batch(
                "orders",
                values,
                keys=values,
                partition=number % PARTITIONS,
                producer=(PRODUCER_ID, 0, number // PARTITIONS * BATCH),
            )
            acked.write(f"{start}\n")
            acked.flush()
            os.fsync(acked.fileno())
            time.sleep(0.05)  # so that there is something to be killed at


if __name__ == "__main__":
    main()
