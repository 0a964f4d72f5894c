"""Reading from a server, as Arrow over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

import penstock
from penstock.errors import OffsetOutOfRange
from penstock.log.base import Batches
from penstock.log.reader import Int64s
from penstock.spark.bounds import DurableRange, TopicBounds

READ_BYTES = 4 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ServerReader:
    """The topics of one namespace of a server. Sizes are estimated by the average message."""

    def __init__(self, url: str, namespace: str, api_key: str) -> None:
        key: dict[str, Any] = {"api_key": api_key} if api_key else {}
        self._client: Any = penstock.connect(url, namespace=namespace, **key)
        self._bytes_each: dict[tuple[str, int], float] = {}

    def topics(self) -> list[str]:
        return list(self._client.topics())

    def bounds(self, topic: str) -> TopicBounds:
        stats = self._client.stats(topic)
        found = TopicBounds({}, stats.incarnation)
        for each in stats.partitions:
            # What a replica or a disk has not confirmed may yet be lost, and come back otherwise.
            found[each.partition] = DurableRange(each.start, max(each.start, each.durable_end))
            count = max(1, each.end - each.start)
            self._bytes_each[topic, each.partition] = each.size_bytes / count
        return found

    def incarnation(self, topic: str) -> str:
        incarnation: str = self._client.stats(topic).incarnation
        return incarnation

    def find(self, topic: str, partition: int, timestamp_us: int) -> int:
        moment = _EPOCH + timedelta(microseconds=timestamp_us)
        read: Batches = self._client.read(topic, partition, moment, 1)
        return next((batch.base_offset or 0 for batch in read if len(batch)), read.next_offset)

    def marks(self, topic: str, partition: int, start: int, end: int) -> tuple[Int64s, Int64s]:
        if (topic, partition) not in self._bytes_each:
            self.bounds(topic)
        size = int((end - start) * self._bytes_each.get((topic, partition), 0.0))
        return np.array([start, end]), np.array([0, size])

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Batches]:
        offset = start
        while offset < end:
            batches: Batches = self._client.read(topic, partition, offset, READ_BYTES)
            if batches.next_offset <= offset:  # they were there: it is another log, and shorter
                raise OffsetOutOfRange(end, self.bounds(topic)[partition].start, offset)
            offset = batches.next_offset
            yield batches

    def close(self) -> None:
        self._client.close()
