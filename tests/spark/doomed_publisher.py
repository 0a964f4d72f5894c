"""A program with a broker in it that publishes numbers until it is killed, or has published all.

    python -m tests.spark.doomed_publisher FOLDER ACKED COUNT

`ACKED` is a file to which each batch of numbers is added once the broker has confirmed it.
"""

from __future__ import annotations

import os
import sys

import penstock

BATCH = 1000


def main() -> None:
    folder, acked_path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with penstock.connect(folder) as ps, open(acked_path, "a+", encoding="utf-8") as acked:
        ps.create_topic("orders", partitions=3, exist_ok=True, segment_bytes=4 << 20)
        acked.seek(0)
        first = sum(1 for _ in acked) * BATCH
        for start in range(first, count, BATCH):
            values = [f"{number}" for number in range(start, start + BATCH)]
            ps.publish_batch("orders", values, keys=values)
            acked.write(f"{start}\n")
            acked.flush()
            os.fsync(acked.fileno())


if __name__ == "__main__":
    main()
