"""A stream that copies the topic `orders` of a server to the topic `copy`, batch by batch.

python -m tests.spark.doomed_stream URL FOLDER
"""

from __future__ import annotations

import os
import sys

from penstock.spark.pipelines import session


def main() -> None:
    url, folder = sys.argv[1:]
    with session("local[2,4]") as spark:
        stream = spark.readStream.format("penstock").option("url", url)
        frame = stream.options(
            subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="7000"
        ).load()
        copy = frame.repartition(2).select("key", "value").writeStream.format("penstock")
        copy = copy.options(url=url, topic="copy")
        copy = copy.option("checkpointLocation", os.path.join(folder, "checkpoint"))
        copy.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
