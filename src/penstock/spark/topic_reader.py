"""Where messages are read from, whichever it is: a data folder or a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from penstock.log.base import Batches
from penstock.log.reader import Int64s
from penstock.spark.bounds import TopicBounds
from penstock.spark.folder import DataFolder
from penstock.spark.options import Target
from penstock.spark.server import ServerReader


class TopicReader(Protocol):
    """Only what is durable is seen, so that an offset never changes its content."""

    def topics(self) -> list[str]: ...

    def bounds(self, topic: str) -> TopicBounds:
        """Of each partition, as it is now. TopicNotFound if there is no such topic."""
        ...

    def incarnation(self, topic: str) -> str:
        """Which topic of this name it is: another one once it was deleted and made again."""
        ...

    def find(self, topic: str, partition: int, timestamp_us: int) -> int:
        """The first offset whose message is at or after a time; the end if there is none."""
        ...

    def marks(self, topic: str, partition: int, start: int, end: int) -> tuple[Int64s, Int64s]:
        """Offsets of a range, and about how many bytes lie before each."""
        ...

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Batches]:
        """The messages of a range. OffsetOutOfRange if some of them are no longer there."""
        ...

    def close(self) -> None: ...


def open_topic_reader(target: Target) -> TopicReader:
    """A place to read from; close it."""
    if target.url:
        return ServerReader(target.url, target.namespace, target.api_key)
    return DataFolder(target.path, target.namespace)
