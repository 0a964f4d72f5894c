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

import os

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
from penstock.log.commit import Committer
from penstock.log.files import FileSystem
from penstock.log.local import LocalLog
from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings


class Store:
    """Opens what lies in a data folder that this process holds the lock of."""

    def __init__(
        self,
        folder: str,
        files: FileSystem,
        clock: Clock,
        committer: Committer | None,
        free_bytes_min: int,
    ) -> None:
        self.folder = folder
        self._files = files
        self._clock = clock
        self._committer = committer
        self._free_bytes_min = free_bytes_min
        self.latencies = Latencies(clock, self._latency_log)

    def catalog(self) -> Catalog:
        return Catalog(
            self._journal(os.path.join(self.folder, "catalog"), LogConfig(fsync="always"))
        )

    def groups(self) -> Journal:
        return self._journal(os.path.join(self.folder, "groups"), LogConfig())

    def open_topic(
        self, name: TopicName, settings: TopicSettings, letters: DeadLetterStore
    ) -> Topic:
        partitions = [
            self.open_partition(name, number, settings, letters)
            for number in range(settings.partitions)
        ]
        folder = os.path.join(self.topic_folder(name), "delays")
        config = settings.log_config(self._free_bytes_min)
        delays = Delays(
            self._log(os.path.join(folder, "log"), config),
            self._journal(os.path.join(folder, "journal"), config),
            self._clock,
            partitions,
            [ids for partition in partitions for ids in moved_ids(partition)],
        )
        return Topic(name, settings, partitions, delays, self._clock)

    def open_partition(
        self, name: TopicName, number: int, settings: TopicSettings, letters: DeadLetterStore
    ) -> Partition:
        folder = os.path.join(self.topic_folder(name), f"{number:05d}")
        config = settings.log_config(self._free_bytes_min)
        return Partition(
            number,
            self._log(os.path.join(folder, "log"), config),
            self._journal(os.path.join(folder, "ledger"), config),
            settings.policy(),
            self._clock,
            letters,
            self.latencies.of(name),
        )

    def remove_topic(self, name: TopicName) -> None:
        self._files.remove_folder(self.topic_folder(name))

    def remove_strays(self, catalog: Catalog) -> None:
        """Folders of topics that were deleted, or not quite created, when the process ended."""
        topics = os.path.join(self.folder, "topics")
        for namespace in self._names(topics):
            for topic in self._names(os.path.join(topics, namespace)):
                name = TopicName(namespace, topic)
                if name not in catalog:
                    self.remove_topic(name)

    def topic_folder(self, name: TopicName) -> str:
        return os.path.join(self.folder, "topics", name.namespace, name.topic)

    def _latency_log(self, create: bool) -> LocalLog | None:
        folder = os.path.join(self.folder, "latencies")
        if not create and not self._names(folder):
            return None
        return self._log(folder, latency_log_config(self._free_bytes_min))

    def _names(self, folder: str) -> list[str]:
        try:
            return self._files.list(folder)
        except FileNotFoundError:
            return []

    def _log(self, folder: str, config: LogConfig) -> LocalLog:
        return LocalLog.open(
            folder,
            config,
            clock=self._clock,
            files=self._files,
            committer=self._committer,
            lock=False,
        )

    def _journal(self, folder: str, config: LogConfig) -> Journal:
        return Journal(self._log(folder, journal_config(config)))
