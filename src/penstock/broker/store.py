"""The data folder: where each log lies, and how topics are opened, made and removed.

LOCK                                   held by the process that works here
VERSION                                of this layout and of the logs' format
catalog/                               journal of topics and their settings
activity/                              journal of which topics a start has to look at
groups/                                journal of stream groups: committed offsets
progress/                              what readers outside say about how far they are
latencies/                             how long messages waited and were worked on, by minute
topics/<namespace>/<topic>/
    <partition, 5 digits>/log/         the messages
    <partition, 5 digits>/ledger/      journal of their deliveries
    <partition, 5 digits>/delays/      delayed messages until they fall due: log/ and journal/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from weakref import WeakSet

import pyarrow as pa

from penstock.broker.activity import Activity
from penstock.broker.catalog import Catalog
from penstock.broker.delays import Delays
from penstock.broker.journal import Journal, journal_config
from penstock.broker.latencies import Latencies
from penstock.broker.latency_log import latency_log_config
from penstock.broker.ledgered_partition import DeadLetterStore
from penstock.broker.partition import Partition
from penstock.broker.split_delays import split_delays
from penstock.broker.topic import Topic, moved_ids
from penstock.broker.topic_delays import TopicDelays
from penstock.clock import Clock
from penstock.config import LogConfig
from penstock.log.base import PartitionLog
from penstock.log.engine import Engine
from penstock.model.catalog import CATALOG_LOG
from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings


class Store:
    """Knows the names of the logs of an engine, and opens what is made of them."""

    def __init__(self, engine: Engine, free_bytes_min: int) -> None:
        self._engine = engine
        self._clock: Clock = engine.clock
        self._logs: WeakSet[PartitionLog] = WeakSet()
        self._up_since = engine.clock.monotonic_ns(), engine.clock.wall_ns() // 1000
        self._free_bytes_min = free_bytes_min
        self.latencies = Latencies(engine.clock, self._latency_log)

    def catalog(self) -> Catalog:
        return Catalog(self._journal(CATALOG_LOG, LogConfig(fsync="always")))

    def activity(self, topics: Iterable[TopicName]) -> Activity:
        return Activity(self._journal("activity", LogConfig(fsync="always")), topics)

    def groups(self) -> Journal:
        return self._journal("groups", LogConfig())

    def open_topic(
        self, name: TopicName, settings: TopicSettings, letters: DeadLetterStore
    ) -> Topic:
        """All of it, or, after an error, none."""
        with ExitStack() as closing:
            partitions: list[Partition] = []
            for number in range(settings.partitions):
                partitions.append(self.open_partition(name, number, settings, letters))
                closing.callback(partitions[-1].close)
            prefix = topic_prefix(name)
            if "delays" in self._engine.names(prefix):
                split_delays(self._engine, prefix, partitions, self._open_delays)
            delays = TopicDelays(partitions, partial(self._delays_of, name))
            closing.callback(delays.close)
            for partition in partitions:
                if "delays" in self._engine.names(partition_prefix(name, partition.number)):
                    delays.of(partition.number)
            topic = Topic(name, settings, partitions, delays, self._clock)
            closing.pop_all()
        return topic

    def is_empty(self, name: TopicName) -> bool:
        """Whether a topic was never opened, so that there is nothing in it."""
        return not self._engine.names(topic_prefix(name))

    def _delays_of(self, name: TopicName, partition: Partition) -> Delays:
        prefix = f"{partition_prefix(name, partition.number)}/delays"
        return self._open_delays(prefix, partition, moved_ids(partition), ())

    def _open_delays(
        self,
        prefix: str,
        partition: Partition,
        moved: Iterable[pa.Array],
        all_partitions: Sequence[Partition],
    ) -> Delays:
        config = partition.log.config
        log = self._open_log(f"{prefix}/log", config)
        try:
            journal = self._journal(f"{prefix}/journal", config)
            return Delays(log, journal, self._clock, partition, moved, all_partitions)
        except BaseException:
            log.close()
            raise

    def open_partition(
        self, name: TopicName, number: int, settings: TopicSettings, letters: DeadLetterStore
    ) -> Partition:
        prefix = partition_prefix(name, number)
        config = settings.log_config(self._free_bytes_min)
        with ExitStack() as closing:
            log = self._open_log(f"{prefix}/log", config)
            closing.callback(log.close)
            journal = self._journal(f"{prefix}/ledger", config)
            closing.callback(journal.close)
            policy, latencies = settings.policy(), self.latencies.of(name)
            partition = Partition(
                number, log, journal, policy, self._clock, letters, latencies, self._up_since
            )
            closing.pop_all()
        return partition

    def remove_topic(self, name: TopicName) -> None:
        self._engine.remove(topic_prefix(name))

    def remove_strays(self, catalog: Catalog) -> None:
        """Folders of topics that were deleted, or not quite created, when the process ended."""
        for namespace in self._engine.names("topics"):
            for topic in self._engine.names(f"topics/{namespace}"):
                name = TopicName(namespace, topic)
                if name not in catalog:
                    self.remove_topic(name)

    def failed_logs(self) -> list[str]:
        """Of those that are open: which take no writes any more."""
        return [log.folder for log in list(self._logs) if log.failure is not None]

    def _open_log(self, name: str, config: LogConfig) -> PartitionLog:
        log = self._engine.open(name, config)
        self._logs.add(log)
        return log

    def _latency_log(self, create: bool) -> PartitionLog | None:
        if not create and not self._engine.names("latencies"):
            return None
        return self._open_log("latencies", latency_log_config(self._free_bytes_min))

    def _journal(self, name: str, config: LogConfig) -> Journal:
        return Journal(self._open_log(name, journal_config(config)))


def topic_prefix(name: TopicName) -> str:
    """Below which the logs of a topic are."""
    return f"topics/{name.namespace}/{name.topic}"


def partition_prefix(name: TopicName, number: int) -> str:
    return f"{topic_prefix(name)}/{number:05d}"
