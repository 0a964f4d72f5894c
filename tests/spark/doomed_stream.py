"""A stream that copies the topic `orders` of a server to the topic `copy`, batch by batch.

python -m tests.spark.doomed_stream URL FOLDER BATCH_MESSAGES MASTER
"""

from __future__ import annotations

import os
import sys

from penstock.spark.pipelines import session


def main() -> None:
    url, folder, batch_messages, master = sys.argv[1:]
    with session(master) as spark:
        stream = spark.readStream.format("penstock").option("url", url)
        frame = stream.options(
            subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=batch_messages
        ).load()
        copy = frame.repartition(2).select("key", "value").writeStream.format("penstock")
        copy = copy.options(url=url, topic="copy")
        copy = copy.option("checkpointLocation", os.path.join(folder, "checkpoint"))
        copy.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
