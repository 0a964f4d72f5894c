"""The data folder: where each log lies, and how topics are opened, made and removed.

LOCK                                   held by the process that works here
VERSION                                of this layout and of the logs' format
catalog/                               journal of topics and their settings
groups/                                journal of stream groups: committed offsets
progress/                              what readers outside say about how far they are
latencies/                             how long messages waited and were worked on, by minute
topics/<namespace>/<topic>/
    <partition, 5 digits>/log/         the messages
    <partition, 5 digits>/ledger/      journal of their deliveries
    delays/log/, delays/journal/       delayed messages until they fall due
"""

from __future__ import annotations

from penstock.broker.catalog import Catalog
from penstock.broker.delays import Delays
from penstock.broker.journal import Journal, journal_config
from penstock.broker.latencies import Latencies
from penstock.broker.latency_log import latency_log_config
from penstock.broker.ledgered import DeadLetterStore
from penstock.broker.partition import Partition
from penstock.broker.topic import Topic, moved_ids
from penstock.clock import Clock
from penstock.config import LogConfig
from penstock.log.base import PartitionLog
from penstock.log.engine import Engine
from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings


class Store:
    """Knows the names of the logs of an engine, and opens what is made of them."""

    def __init__(self, engine: Engine, free_bytes_min: int) -> None:
        self._engine = engine
        self._clock: Clock = engine.clock
        self._free_bytes_min = free_bytes_min
        self.latencies = Latencies(engine.clock, self._latency_log)

    def catalog(self) -> Catalog:
        return Catalog(self._journal("catalog", LogConfig(fsync="always")))

    def groups(self) -> Journal:
        return self._journal("groups", LogConfig())

    def open_topic(
        self, name: TopicName, settings: TopicSettings, letters: DeadLetterStore
    ) -> Topic:
        partitions = [
            self.open_partition(name, number, settings, letters)
            for number in range(settings.partitions)
        ]
        prefix = f"{topic_prefix(name)}/delays"
        config = settings.log_config(self._free_bytes_min)
        delays = Delays(
            self._engine.open(f"{prefix}/log", config),
            self._journal(f"{prefix}/journal", config),
            self._clock,
            partitions,
            [ids for partition in partitions for ids in moved_ids(partition)],
        )
        return Topic(name, settings, partitions, delays, self._clock)

    def open_partition(
        self, name: TopicName, number: int, settings: TopicSettings, letters: DeadLetterStore
    ) -> Partition:
        prefix = f"{topic_prefix(name)}/{number:05d}"
        config = settings.log_config(self._free_bytes_min)
        return Partition(
            number,
            self._engine.open(f"{prefix}/log", config),
            self._journal(f"{prefix}/ledger", config),
            settings.policy(),
            self._clock,
            letters,
            self.latencies.of(name),
        )

    def remove_topic(self, name: TopicName) -> None:
        self._engine.remove(topic_prefix(name))

    def remove_strays(self, catalog: Catalog) -> None:
        """Folders of topics that were deleted, or not quite created, when the process ended."""
        for namespace in self._engine.names("topics"):
            for topic in self._engine.names(f"topics/{namespace}"):
                name = TopicName(namespace, topic)
                if name not in catalog:
                    self.remove_topic(name)

    def _latency_log(self, create: bool) -> PartitionLog | None:
        if not create and not self._engine.names("latencies"):
            return None
        return self._engine.open("latencies", latency_log_config(self._free_bytes_min))

    def _journal(self, name: str, config: LogConfig) -> Journal:
        return Journal(self._engine.open(name, journal_config(config)))


def topic_prefix(name: TopicName) -> str:
    """Below which the logs of a topic are."""
    return f"topics/{name.namespace}/{name.topic}"
