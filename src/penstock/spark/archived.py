"""How far an archive is, in time: up to which moment all messages of a topic are in the lake."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.errors import GroupNotFound
from penstock.spark.connect import connected
from penstock.spark.options import Target


def archived_until(target: Target, topic: str, group: str = "archive") -> datetime | None:
    """All messages of the topic that were stored before this moment are archived; None: nothing is
    known of an archive of it. Without anything to do it is the present, less a second for clocks.

    A message gets its time when it is stored, so none comes later with an earlier one.
    """
    now_us = int((datetime.now(UTC).timestamp() - 1) * 1e6)
    with connected(target) as client:
        try:
            committed = client.describe_stream_group(group).committed
        except GroupNotFound:
            return None
        ends = {place.partition: end for place, end in committed.items() if place.topic == topic}
        if not ends:
            return None
        next_us = [
            message.timestamp_us
            for part in client.stats(topic).partitions
            for message in client.peek(
                topic, partition=part.partition, at=ends.get(part.partition, part.start), limit=1
            )
        ]
    return datetime.fromtimestamp(min([now_us, *next_us]) / 1e6, UTC)
