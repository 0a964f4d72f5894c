"""Reading a data folder directly, beside a broker that may be writing to it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

from pyspark import TaskContext

from penstock.errors import InvalidInput, LogNotFound, OffsetOutOfRange, TopicNotFound
from penstock.log.base import Batches
from penstock.log.files import DiskFiles
from penstock.log.format_version import check_version
from penstock.log.log_reader import LogReader
from penstock.log.reader import Int64s
from penstock.model.catalog import CATALOG_LOG, CatalogState, read_catalog
from penstock.model.layout import partition_prefix
from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings
from penstock.spark.bounds import DurableRange, TopicBounds

READ_BYTES = 4 << 20
_PATIENCE_S = 5.0  # for a mark or a folder that is being written at this moment


class DataFolder:
    """The topics of one namespace, and by `namespace/topic` those of the others.

    A log that was opened is kept and refreshed; one object is for one thread.
    """

    def __init__(self, path: str, namespace: str = "default") -> None:
        self.path = path
        self.namespace = namespace
        self._logs: dict[tuple[str, int], tuple[int, LogReader]] = {}
        self._incarnations: dict[str, str] = {}
        self._catalog: LogReader | None = None

    def topics(self) -> list[str]:
        return sorted(n.topic for n in self._topics() if n.namespace == self.namespace)

    def bounds(self, topic: str) -> TopicBounds:
        while True:
            incarnation = self.incarnation(topic)
            found = TopicBounds(self._bounds(topic), incarnation)
            if self.incarnation(topic) == incarnation:  # and not another one since
                return found

    def incarnation(self, topic: str) -> str:
        name = TopicName(*self._place(topic))
        incarnation = self._state().incarnations.get(name)
        if incarnation is None:
            raise TopicNotFound(topic)
        if self._incarnations.get(topic) != incarnation:
            self._incarnations[topic] = incarnation
            for place in [place for place in self._logs if place[0] == topic]:
                del self._logs[place]
        return incarnation

    def _bounds(self, topic: str) -> dict[int, DurableRange]:
        found = {}
        for number in self._partitions(topic):
            try:
                log = self._log(topic, number, refreshed=True)
            except LogNotFound:
                found[number] = DurableRange(0, 0)  # nothing was ever published there
            else:
                found[number] = DurableRange(log.start, log.end)
        return found

    def find(self, topic: str, partition: int, timestamp_us: int) -> int:
        try:
            return self._log(topic, partition).find(timestamp_us)
        except LogNotFound:
            return 0  # nothing was ever published there

    def marks(self, topic: str, partition: int, start: int, end: int) -> tuple[Int64s, Int64s]:
        return self._log(topic, partition).marks(start, end)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Batches]:
        if start >= end:
            return
        log = self._log(topic, partition)
        self._wait(log, end)
        offset = start
        while offset < end:
            batches = log.read(offset, READ_BYTES)
            offset = batches.next_offset
            yield batches

    def close(self) -> None:
        """Nothing is held open."""

    def _check_folder(self) -> None:
        if not os.path.isdir(self.path):
            if TaskContext.get() is not None:  # the driver has seen it
                raise InvalidInput(
                    f"the executor on {socket.gethostname()} does not see the data folder "
                    f"{self.path}: put it where all machines see it, or start a server on it and "
                    "read by the option url"
                )
            raise InvalidInput(f"there is no data folder {self.path}")
        check_version(DiskFiles(), self.path)

    def _topics(self) -> dict[TopicName, TopicSettings]:
        """As the catalog has them: a topic has no folder before something is published to it."""
        return self._state().topics

    def _state(self) -> CatalogState:
        self._check_folder()
        try:
            if self._catalog is None:
                self._catalog = LogReader.open(os.path.join(self.path, CATALOG_LOG))
            return read_catalog(self.path, self._catalog)
        except LogNotFound:
            return CatalogState()

    def _partitions(self, topic: str) -> range:
        settings = self._topics().get(TopicName(*self._place(topic)))
        if settings is None:
            raise TopicNotFound(topic)
        return range(settings.partitions)

    def _log(self, topic: str, partition: int, *, refreshed: bool = False) -> LogReader:
        prefix = partition_prefix(TopicName(*self._place(topic)), partition)
        folder = os.path.join(self.path, prefix, "log")
        try:
            inode = os.stat(folder).st_ino
        except FileNotFoundError:
            raise LogNotFound(f"there is no log in {folder}") from None
        known = self._logs.get((topic, partition))
        if known is None or known[0] != inode:  # another one: the topic was made anew
            known = self._logs[topic, partition] = (inode, LogReader.open(folder))
        elif refreshed:
            known[1].refresh()
        return known[1]

    def _place(self, topic: str) -> tuple[str, str]:
        namespace, slash, name = topic.rpartition("/")
        return (namespace if slash else self.namespace), name

    def _wait(self, log: LogReader, end: int) -> None:
        """Offsets that were seen durable are: another process may just be writing the mark."""
        deadline = time.monotonic() + _PATIENCE_S
        while log.end < end:
            log.refresh()
            if log.end < end:
                if time.monotonic() > deadline:
                    raise OffsetOutOfRange(end, log.start, log.end)
                time.sleep(0.02)
