"""The data folder: where each log lies, and how topics are opened, made and removed.

LOCK                                   held by the process that works here
VERSION                                of this layout and of the logs' format
catalog/                               journal of topics and their settings
activity/                              journal of which topics a start has to look at
groups/                                journal of stream groups: committed offsets
schedules/                             journal of recurring schedules and their fires
transactions/                          journal/ of transactions; outcomes/, what became of them
schemas/                               journal of the registry of schemas
progress/                              what readers outside say about how far they are
webhooks/                              journal of webhooks: URLs, secrets, settings
latencies/                             how long messages waited and were worked on, by minute
trace/                                 what happened to messages
audit/                                 who did what to a server
namespaces/                            journal of namespaces that were made, and their quotas
history/                               how topics stood, by minute
topics/<namespace>/<topic, if it has capitals in lower case and with a hash>/
    <partition, 5 digits>/log/         the messages
    <partition, 5 digits>/ledger/      journal of their deliveries
    <partition, 5 digits>/delays/      delayed messages until they fall due: log/ and journal/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from threading import Lock
from weakref import WeakSet

import pyarrow as pa

from penstock.broker.activity import Activity
from penstock.broker.audit import AuditLog, audit_log_config
from penstock.broker.catalog import Catalog
from penstock.broker.counters import Counters
from penstock.broker.delays import Delays
from penstock.broker.history import History
from penstock.broker.history_log import history_log_config
from penstock.broker.journal import Journal, LazyJournal, journal_config
from penstock.broker.latencies import Latencies
from penstock.broker.latency_log import latency_log_config
from penstock.broker.ledgered_partition import DeadLetterStore
from penstock.broker.partition import Partition
from penstock.broker.schemas import SchemaRegistry
from penstock.broker.split_delays import split_delays
from penstock.broker.tenants import Tenants
from penstock.broker.topic import Topic, moved_ids
from penstock.broker.topic_delays import TopicDelays
from penstock.broker.trace_log import trace_log_config
from penstock.broker.tracer import Tracer
from penstock.broker.transaction_outcomes import OUTCOME_LOG_CONFIG
from penstock.broker.webhooks import Webhooks
from penstock.clock import Clock
from penstock.config import LogConfig
from penstock.errors import LogError
from penstock.log.base import PartitionLog
from penstock.log.engine import Engine
from penstock.model.catalog import CATALOG_LOG
from penstock.model.layout import partition_prefix, topic_prefix
from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings

_SIDE_BY_SIDE_MIN = 32  # partitions of a topic
_OPENERS = 16


class Store:
    """Knows the names of the logs of an engine, and opens what is made of them."""

    def __init__(self, engine: Engine, free_bytes_min: int, *, tracing: bool = True) -> None:
        self._engine = engine
        self._clock: Clock = engine.clock
        self._logs: WeakSet[PartitionLog] = WeakSet()
        self._logs_lock = Lock()  # a set that changes while it is listed ends the listing
        self._up_since = engine.clock.monotonic_ns(), engine.clock.wall_ns() // 1000
        self._free_bytes_min = free_bytes_min
        self._is_lost = False
        self.latencies = Latencies(engine.clock, self._latency_log)
        self.history = History(engine.clock, self._history_log)
        self.counters = Counters()
        self.audit = AuditLog(self._audit_log)
        self.tracer = Tracer(engine.clock, self._trace_log, enabled=tracing)

    def catalog(self) -> Catalog:
        return Catalog(self._journal(CATALOG_LOG, LogConfig(fsync="always")), self._clock)

    def activity(self, topics: Iterable[TopicName]) -> Activity:
        return Activity(self._journal("activity", LogConfig(fsync="always")), topics)

    def groups(self) -> Journal:
        return self._journal("groups", LogConfig())

    def webhooks(self) -> Webhooks:
        return Webhooks(self._lazy_journal("webhooks"), self._clock)

    def tenants(self) -> Tenants:
        return Tenants(self._lazy_journal("namespaces"), self._clock)

    def _audit_log(self, create: bool) -> PartitionLog | None:
        if not create and not self._engine.names("audit"):
            return None
        return self._open_log("audit", audit_log_config(self._free_bytes_min))

    def transactions(self, create: bool) -> Journal | None:
        """None: there are none, and never were."""
        if not create and not self._engine.names("transactions"):
            return None
        return self._journal("transactions/journal", LogConfig())

    def transaction_outcomes(self, create: bool) -> PartitionLog | None:
        if not create and "outcomes" not in self._engine.names("transactions"):
            return None
        return self._open_log("transactions/outcomes", OUTCOME_LOG_CONFIG)

    def schedules(self, create: bool) -> Journal | None:
        """None: there are none, and never were."""
        if not create and not self._engine.names("schedules"):
            return None
        return self._journal("schedules", LogConfig())

    def schemas(self) -> SchemaRegistry:
        return SchemaRegistry(self._lazy_journal("schemas"), self._clock)

    def open_topic(
        self, name: TopicName, settings: TopicSettings, letters: DeadLetterStore
    ) -> Topic:
        """All of it, or, after an error, none."""
        with ExitStack() as closing:
            partitions = self._open_partitions(name, settings, letters, closing)
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

    def _open_partitions(
        self, name: TopicName, settings: TopicSettings, letters: DeadLetterStore, closing: ExitStack
    ) -> list[Partition]:
        """Many of them side by side: each takes some fsyncs, and a disk has many under way."""

        def open_one(number: int) -> Partition:
            partition = self.open_partition(name, number, settings, letters)
            closing.callback(partition.close)
            return partition

        numbers = range(settings.partitions)
        if len(numbers) < _SIDE_BY_SIDE_MIN:
            return [open_one(number) for number in numbers]
        with ThreadPoolExecutor(_OPENERS, "penstock-opener") as openers:
            return list(openers.map(open_one, numbers))

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
            partition = Partition(
                number,
                log,
                journal,
                settings.policy(),
                self._clock,
                letters,
                self.latencies.of(name),
                self.counters.of(name)[number],
                self.tracer.partition(name, number, settings.trace_sample),
                self._up_since,
            )
            closing.pop_all()
        return partition

    def remove_topic(self, name: TopicName) -> None:
        self._engine.remove(topic_prefix(name))

    def remove_strays(self, catalog: Catalog) -> None:
        """Folders of topics that were deleted, or not quite created, when the process ended."""
        known = {topic_prefix(name) for name in catalog}
        for namespace in self._engine.names("topics"):
            for folder in self._engine.names(f"topics/{namespace}"):
                prefix = f"topics/{namespace}/{folder}"
                if prefix not in known:
                    self._engine.remove(prefix)

    def failed_logs(self) -> list[str]:
        """Of those that are open: which take no writes any more."""
        return [log.folder for log in self._open_logs() if log.failure is not None]

    def _open_logs(self) -> list[PartitionLog]:
        with self._logs_lock:
            return list(self._logs)

    def lost(self, error: LogError) -> None:
        """The logs are not ours any more: none takes a write, and none is opened or made."""
        self._is_lost = True
        for log in self._open_logs():
            log.stop(error)

    def _open_log(self, name: str, config: LogConfig) -> PartitionLog:
        if self._is_lost:
            raise self._engine.loss()
        log = self._engine.open(name, config)
        with self._logs_lock:
            self._logs.add(log)
        return log

    def _latency_log(self, create: bool) -> PartitionLog | None:
        if not create and not self._engine.names("latencies"):
            return None
        return self._open_log("latencies", latency_log_config(self._free_bytes_min))

    def _trace_log(self, create: bool) -> PartitionLog | None:
        if not create and not self._engine.names("trace"):
            return None
        return self._open_log("trace", trace_log_config(self._free_bytes_min))

    def _history_log(self, create: bool) -> PartitionLog | None:
        if not create and not self._engine.names("history"):
            return None
        return self._open_log("history", history_log_config(self._free_bytes_min))

    def _lazy_journal(self, name: str) -> LazyJournal:
        """Each entry is durable before it is believed."""

        def opened(create: bool) -> Journal | None:
            if not create and not self._engine.names(name):
                return None
            return self._journal(name, LogConfig(fsync="always"))

        return LazyJournal(opened)

    def _journal(self, name: str, config: LogConfig) -> Journal:
        return Journal(self._open_log(name, journal_config(config)))
