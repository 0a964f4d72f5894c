"""The one facade that every door calls: topics, publishing, queues, delays, dead letters, streams.

Calls are synchronous and short, and any thread may make them. None of them waits: `receive` gives
what is ready now, and whoever wants to wait adds a callback with `on_news`. What has to be durable
comes with a future.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Self

import msgspec

from penstock.broker.background_work import BackgroundWork
from penstock.broker.chores import TopicChores
from penstock.broker.claims import Claims
from penstock.broker.convert import prepare_folder
from penstock.broker.folder_watch import FolderWatch
from penstock.broker.housekeeper import Housekeeper
from penstock.broker.look_calls import LookCalls
from penstock.broker.namespaces import usage_of
from penstock.broker.progress import ProgressInbox
from penstock.broker.queue_calls import QueueCalls
from penstock.broker.resting_stats import RestingStats
from penstock.broker.retention import TopicRetention
from penstock.broker.schedules import Schedules
from penstock.broker.store import Store
from penstock.broker.streams import Streams
from penstock.broker.topic import (
    Topic,
)
from penstock.broker.transactions import Transactions
from penstock.broker.unopened import UnopenedTopics
from penstock.broker.waiters import Waiters
from penstock.clock import Clock
from penstock.errors import (
    LogError,
    PenstockError,
)
from penstock.forks import abandon_in_children
from penstock.log.engine import Engine
from penstock.model.names import (
    TopicName,
    parse_topic,
)
from penstock.model.settings import (
    TopicSettings,
)
from penstock.model.topics import Compacted

_logger = logging.getLogger("penstock.broker")


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a broker works on its data folder."""

    auto_create: bool = False
    """Make a topic when somebody publishes to one, or receives from one, that is not there."""
    topic_defaults: TopicSettings = TopicSettings()
    """Of the topics that are made, but for those of dead letters."""
    free_bytes_min: int = 100 << 20
    tracing: bool = True
    """Whether the lives of messages are traced at all."""


class Broker(LookCalls, QueueCalls):
    def __init__(
        self,
        engine: Engine,
        config: BrokerConfig | None = None,
        *,
        housekeeping: bool = True,
    ) -> None:
        """Work on the logs of an engine, which is the broker's own from now on, whatever happens.

        Without `housekeeping` the caller calls `housekeep`.
        """
        self.folder = engine.folder
        self.config = config or BrokerConfig()
        self.clock: Clock = engine.clock
        self._engine = engine
        self._lock = threading.RLock()
        self._claims = Claims(self._lock)
        self._closed = self._abandoned = False
        self._lost: LogError | None = None
        self._gone: list[Topic] = []  # those that were open when the folder was lost
        self._topics: dict[TopicName, Topic] = {}  # those that are open
        self._chores: dict[TopicName, TopicChores] = {}
        self._waiters: dict[TopicName, Waiters] = {}
        self._resting_stats = RestingStats(self)

        self._housekeeper = Housekeeper(self.clock)
        try:
            prepare_folder(engine.files, engine.folder)
            self._store = Store(engine, self.config.free_bytes_min, tracing=self.config.tracing)
            self.latencies = self._store.latencies
            self.latencies.plan = self._housekeeper.plan
            self.counters = self._store.counters
            self.tracer = self._store.tracer
            self.tracer.plan = self._housekeeper.plan
            self.history = self._store.history
            self._catalog = self._store.catalog()
            self._retention = TopicRetention(self.clock, self._catalog)
            self._store.remove_strays(self._catalog)
            self.streams = Streams(
                self._store.groups(), self, ProgressInbox(engine.folder, engine.files)
            )
            self._retention.streams = self.streams
            self.webhooks = self._store.webhooks()
            self.audit = self._store.audit
            self.tenants = self._store.tenants()
            self.tenants.plan = self._housekeeper.plan
            self.tenants.notify = self._notify
            self.tenants.measure = partial(usage_of, self)
            self.tenants.made_in = self._catalog.made_in
            self.schemas = self._store.schemas()
            self._unopened = UnopenedTopics(self._store.activity(self._catalog), self)
            self._transactions = Transactions(
                self, self._store.transactions, self._store.transaction_outcomes
            )
            self._schedules = Schedules(self, self._store.schedules)
        except BaseException:
            engine.close()
            raise
        self._compactor = BackgroundWork("penstock-compactor")
        self._tracing = BackgroundWork("penstock-tracer")
        self._note_taker = BackgroundWork("penstock-history")
        self._folder_watch = FolderWatch(engine.is_intact, self.lost)
        if housekeeping:
            self._retention.compaction.aside = self._compactor.run
            self.tracer.aside = self._tracing.run
            self._housekeeper.start()
            self._folder_watch.start()
            self._plan_notes(self.clock.monotonic_ns())
        abandon_in_children(self)

    @property
    def schedules(self) -> Schedules:
        self._check_open()
        return self._schedules

    @property
    def transactions(self) -> Transactions:
        self._check_open()
        return self._transactions

    def sync(self, namespace: str) -> None:
        """Make durable all that was done in a namespace before, whatever the policies say."""
        self._check_open()
        for topic in self.open_topics():  # the others were synced when they were closed
            if topic.name.namespace == namespace:
                topic.sync()
        self.streams.sync()

    def compact(self, name: TopicName) -> Compacted:
        """Drop what may go, and rewrite files without what nobody needs, now."""
        topic = self.topic(name, create=False)
        logs = [partition.log for partition in topic.partitions]
        segments, size_bytes = sum(x.segment_count for x in logs), sum(x.size_bytes for x in logs)
        self._retention.drop(topic)
        self._retention.compaction.compact(topic)
        return Compacted(
            segments_removed=max(0, segments - sum(log.segment_count for log in logs)),
            bytes_freed=max(0, size_bytes - sum(log.size_bytes for log in logs)),
        )

    # Waiting, and time.

    def on_news(self, name: TopicName, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when there may be something to receive; returns how to stop that."""
        waiters = self.topic(name).waiters  # they stay if the topic is deleted and made again
        ticket = waiters.add(callback)
        return lambda: waiters.remove(ticket)

    def housekeep(self) -> int:
        """Do everything that is due now; for callers that run without the thread."""
        return self._housekeeper.run_due()

    def next_deadline(self) -> int | None:
        return self._housekeeper.next_deadline()

    def _notify(self, name: TopicName) -> None:
        """There may be something to receive."""
        topic = self._topics.get(name)
        if topic is not None:
            topic.waiters.notify()

    def consumed(self, topics: set[str]) -> None:
        """A stream group got on, so that retention may have something to do."""
        for name in map(parse_topic, topics):
            topic = self._topics.get(name)
            if topic is not None and topic.settings.retention_mode == "consumed":
                topic.tend()

    def plan(self, chore: Callable[[int], int | None], deadline_ns: int | None) -> None:
        self._housekeeper.plan(chore, deadline_ns)

    # The disk.

    def failed_logs(self) -> list[str]:
        """Logs that take no writes any more."""
        return self._store.failed_logs()

    def has_room(self) -> bool:
        """Whether the disk has more room than the floor below which publishes are refused."""
        return self.has_room_for(0)

    def has_room_for(self, more_bytes: int) -> bool:
        free = self.free_bytes()
        return free is not None and free >= self.config.free_bytes_min + more_bytes

    def free_bytes(self) -> int | None:
        """Of the disk of the data folder; None: it cannot be told."""
        try:
            return self._engine.files.free_bytes(self.folder)
        except OSError:
            return None

    def lost(self) -> None:
        """The logs are not ours any more: take nothing, and tell whoever waits."""
        self._lost = self._engine.loss()
        _logger.error("%s", self._lost)
        self._housekeeper.give_up()
        self._store.lost(self._lost)
        topics, self._topics = self._topics, {}  # whoever looks for one is told
        self._gone = list(topics.values())
        for waiters in list(self._waiters.values()):
            waiters.notify()

    def is_lost(self) -> bool:
        """Whether the data folder was removed, moved or replaced, or another node has the logs."""
        return self._lost is not None

    # The end.

    def close(self) -> None:
        """Leave a clean folder: everything synced, state written down, the lock released."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._folder_watch.stop()
        self._housekeeper.stop()
        self._compactor.stop()  # what is under way ends when its log is closed
        self._tracing.stop()
        self._note_taker.stop()
        self._claims.wait_for_all()  # a topic that is being opened is closed with the others
        if self._lost is None and not self._engine.is_intact():
            self.lost()  # just now
        if self._lost is not None:
            self._let_go()
            return
        with self._lock:
            for topic in self._topics.values():
                try:
                    topic.checkpoint()
                except PenstockError as exc:  # a full disk, say: the next start takes longer
                    _logger.warning("no checkpoint of %s: %s", topic.name, exc)
            with ExitStack() as closing:  # all of it, whatever fails on the way; the last first
                closing.callback(self._engine.close)
                closing.callback(self._topics.clear)
                closing.callback(self._catalog.close)
                closing.callback(self._unopened.close)
                closing.callback(self.streams.close)
                closing.callback(self.webhooks.close)
                closing.callback(self.audit.close)
                closing.callback(self.tenants.close)
                closing.callback(self.schemas.close)
                closing.callback(self.latencies.close)
                closing.callback(self.tracer.close)
                closing.callback(self.history.close)
                for topic in self._topics.values():
                    closing.callback(topic.waiters.notify)
                    closing.callback(self._unopened.rest, topic, self._retention)
                closing.callback(self._transactions.close)
                closing.callback(self._schedules.close)
        self._compactor.join()
        self._tracing.join()
        self._note_taker.join()

    def abandon(self) -> None:
        """This is a forked process: the data folder is its parent's."""
        self._lock = threading.RLock()
        self._claims = Claims(self._lock)
        self._closed = self._abandoned = True
        self._topics = {}  # whoever looks for one is told

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Inside.

    def _let_go(self) -> None:
        """Close what is open of a folder that is gone; none of it can be kept."""
        closing = [topic.close for topic in self._gone]
        closing += [self._catalog.close, self._unopened.close, self.streams.close]
        closing += [self.latencies.close, self.history.close, self.tracer.close]
        closing += [self.tenants.close, self.audit.close]
        for close in [*closing, self._engine.close]:
            with suppress(PenstockError, OSError):
                close()
        self._compactor.join()
        self._tracing.join()

    def _plan_notes(self, now_ns: int) -> None:
        self._housekeeper.plan(self._take_notes, now_ns + self.history.until_next_ns())

    def _take_notes(self, now_ns: int) -> int:
        """Beside the housekeeper: others' deadlines do not wait for it."""
        self._note_taker.run(lambda: self.history.take_notes(self))
        return now_ns + self.history.until_next_ns()
