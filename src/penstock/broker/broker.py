"""The one facade that every door calls: topics, publishing, queues, delays, dead letters, streams.

Calls are synchronous and short, and any thread may make them. None of them waits: `receive` gives
what is ready now, and whoever wants to wait adds a callback with `on_news`. What has to be durable
comes with a future.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from penstock.broker.background_work import BackgroundWork
from penstock.broker.chores import TopicChores
from penstock.broker.convert import prepare_folder
from penstock.broker.dead_letter_store import (
    DeadLetterTopicStore,
    NoDeadLetterTopic,
    checkpoint_all,
    finish_dead_letters,
)
from penstock.broker.dead_letters import DeadLetterQueue
from penstock.broker.housekeeper import Housekeeper
from penstock.broker.partition import Partition
from penstock.broker.progress import ProgressInbox
from penstock.broker.retention import TopicRetention
from penstock.broker.settlement import Settlement
from penstock.broker.stats import empty_stats, topic_stats
from penstock.broker.store import Store
from penstock.broker.streams import Streams
from penstock.broker.topic import (
    PARTITION_MISSING,
    Topic,
    check_partition,
    with_dedup_ids,
)
from penstock.broker.unopened import UnopenedTopics
from penstock.broker.waiters import Waiters
from penstock.clock import Clock
from penstock.config import DELAY_MS_MAX
from penstock.delivery.offsets import Int64s, Offsets
from penstock.delivery.queue import Decision, GroupQueue
from penstock.errors import (
    BrokerClosed,
    InvalidInput,
    PenstockError,
    TopicExists,
)
from penstock.forks import abandon_in_children
from penstock.log.base import Batches, all_durable
from penstock.log.engine import Engine
from penstock.model.deliveries import Delivered
from penstock.model.messages import DelayedMessage
from penstock.model.names import (
    DEAD_LETTER_SUFFIX,
    DEFAULT_NAMESPACE,
    TopicName,
    dedup_names,
    group_name,
    parse_topic,
    topic_name,
)
from penstock.model.published import CallId, DelayedIds, Placed, ProducerSequence
from penstock.model.settings import (
    DEAD_LETTER_SETTINGS,
    VISIBILITY_MS_MAX,
    TopicSettings,
    parse_settings,
)
from penstock.model.stats import DelayStats, LatencyRow, TopicStats
from penstock.model.topics import Compacted
from penstock.record.batch import Batch
from penstock.record.writing import NOBODY, FrameProducer, check_messages, encode

_logger = logging.getLogger("penstock.broker")

RECEIVE_MAX = 100_000
CONSUMER_LENGTH_MAX = 256
ERROR_LENGTH_MAX = 4096  # characters that are kept of what a consumer says went wrong


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a broker works on its data folder."""

    auto_create: bool = False
    """Make a topic when somebody publishes to one, or receives from one, that is not there."""
    free_bytes_min: int = 100 << 20


class Broker:
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
        self._closed = self._abandoned = False
        self._topics: dict[TopicName, Topic] = {}  # those that are open
        self._opening: set[TopicName] = set()
        self._chores: dict[TopicName, TopicChores] = {}
        self._waiters: dict[TopicName, Waiters] = {}

        self._housekeeper = Housekeeper(self.clock)
        try:
            prepare_folder(engine.files, engine.folder)
            self._store = Store(engine, self.config.free_bytes_min)
            self.latencies = self._store.latencies
            self.latencies.plan = self._housekeeper.plan
            self._catalog = self._store.catalog()
            self._retention = TopicRetention(self.clock, self._catalog)
            self._store.remove_strays(self._catalog)
            self.streams = Streams(
                self._store.groups(), self, ProgressInbox(engine.folder, engine.files)
            )
            self._retention.streams = self.streams
            self._unopened = UnopenedTopics(self._store.activity(self._catalog), self)
        except BaseException:
            engine.close()
            raise
        self._compactor = BackgroundWork("penstock-compactor")
        if housekeeping:
            self._retention.compaction.aside = self._compactor.run
            self._housekeeper.start()
        abandon_in_children(self)

    # Topics.

    def create_topic(
        self, name: TopicName, settings: dict[str, Any] | TopicSettings, exist_ok: bool = False
    ) -> TopicSettings:
        given = settings if isinstance(settings, dict) else {}
        if isinstance(settings, dict):
            settings = parse_settings(settings, self._default_settings(name))
        with self._lock:
            self._check_open()
            if settings.dead_letter_suffix != DEAD_LETTER_SUFFIX:
                topic_name(name.topic + settings.dead_letter_suffix, name.namespace)
            if name in self._catalog:
                if not exist_ok:
                    raise TopicExists(str(name))
                known = self._catalog.settings(name)
                _check_same(name, known, parse_settings(given, known))
                return known
            self._store.remove_topic(name)
            self.latencies.begin(name)
            self._catalog.create(name, settings)
            if self.is_dead_letters(name):
                self._open(name)  # the topic that it is for may be open, and looks for it
        self.streams.topics_changed()
        return settings

    def alter_topic(self, name: TopicName, settings: dict[str, Any]) -> TopicSettings:
        """Change settings. Partitions can be added, never taken away."""
        with self._lock:
            topic = self.topic(name, create=False)
            new = parse_settings(settings, topic.settings)
            if new.partitions < len(topic.partitions):
                raise InvalidInput(
                    f"topic {name} has {len(topic.partitions)} partitions; they can be added, "
                    "not taken away: their messages would be lost"
                )
            if new.dead_letter_suffix != topic.settings.dead_letter_suffix:
                raise InvalidInput(
                    f"the dead letters of {name} lie in {self.dead_letters_of(name)}; their suffix "
                    "stays as it was made"
                )
            self._catalog.alter(name, new)
            for number in range(len(topic.partitions), new.partitions):
                added = self._store.open_partition(name, number, new, self._dead_letter_store(name))
                self._chores[name].look_after(added)
                topic.add(added)
            topic.change(new, new.log_config(self.config.free_bytes_min))
            topic.tend()
        self.streams.topics_changed()
        topic.waiters.notify()
        return new

    def delete_topic(self, name: TopicName) -> None:
        """With all its messages, delays and groups; its dead letters stay."""
        with self._lock:
            self._check_open()
            self._catalog.delete(name)
            self._close(name)
            self._unopened.deleted(name)
            self.latencies.forget(name)
            self._store.remove_topic(name)
        for other, topic in list(self._topics.items()):
            if self.dead_letters_of(other) == name:
                checkpoint_all(topic)  # new letters would have the offsets of old ones
        self.streams.topics_changed(deleted=name)

    def topics(self, namespace: str | None = None) -> list[TopicName]:
        return [n for n in self._catalog if namespace is None or n.namespace == namespace]

    def namespaces(self) -> list[str]:
        return sorted({DEFAULT_NAMESPACE, *(name.namespace for name in self._catalog)})

    def open_topics(self) -> list[Topic]:
        """Those that were used, or had something to do by themselves, since the broker began."""
        return list(self._topics.values())

    def partition_counts(self) -> dict[str, int]:
        """Of all topics."""
        return self._catalog.partition_counts()

    def topic(self, name: TopicName, create: bool | None = None) -> Topic:
        """A topic that is there, or is made if that is allowed."""
        topic = self._topics.get(name)
        while topic is None:
            if name not in self._catalog:
                self._settings_if_made(name, create)
                self.create_topic(name, {}, exist_ok=True)
            topic = self._open_known(name)
        return topic

    def settings(self, name: TopicName) -> TopicSettings:
        """Of a topic that is there, whether or not it is open."""
        self._check_open()
        return self._catalog.settings(name)

    def dead_letters_of(self, name: TopicName) -> TopicName:
        """Where the dead letters of a topic go."""
        return self._catalog.dead_letters_of(name)

    def is_dead_letters(self, name: TopicName) -> bool:
        return self._catalog.is_dead_letters(name)

    # Publishing.

    def publish(
        self,
        name: TopicName,
        batch: Batch,
        *,
        partition: int | None = None,
        producer: ProducerSequence | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        call: CallId | None = None,
    ) -> list[Placed]:
        """Store messages. When this returns the operating system has them; see the futures.

        A producer's number, a deduplication id or the id of the call is what they are known by if
        they are sent again.
        """
        if not len(batch):
            self.topic(name)
            return []
        topic = self._topics.get(name)
        if topic is None:
            self.check(name, batch, partition=partition, producer=producer, dedup_ids=dedup_ids)
            topic = self.topic(name)
        if dedup_ids is None:
            return topic.publish(batch, partition=partition, producer=producer, call=call)
        dedup_names(dedup_ids, len(batch))
        self._catalog.note_dedup(name)
        return topic.publish_once(batch, dedup_ids, partition)

    def check(
        self,
        name: TopicName,
        batch: Batch,
        *,
        partition: int | None = None,
        producer: ProducerSequence | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        deliver_at_us: int | Int64s | None = None,
    ) -> None:
        """Raise what `publish`, or `delay`, would refuse the messages for; nothing is written.

        No topic is made for messages that it would not take.
        """
        is_there = name in self._catalog
        settings = self.settings(name) if is_there else self._settings_if_made(name)
        partitions = settings.partitions
        if partition is not None:
            check_partition(name, partition, partitions)
        elif producer is not None:
            raise InvalidInput(PARTITION_MISSING)
        if dedup_ids is not None:
            batch = with_dedup_ids(batch, dedup_names(dedup_ids, len(batch)))
        if deliver_at_us is not None:
            self._check_due(deliver_at_us)
        if not is_there:  # its only partition would get all of it
            by = NOBODY
            if producer is not None:
                by = FrameProducer(producer.id, producer.sequence, producer.epoch)
            encode(batch, 0, 0, by=by)
        if batch.payload_bytes > settings.message_bytes_max:  # to look at each takes a while
            check_messages(batch, settings.message_bytes_max)

    def delay(
        self,
        name: TopicName,
        batch: Batch,
        deliver_at_us: int | Int64s,
        *,
        partition: int | None = None,
        call: CallId | None = None,
    ) -> tuple[DelayedIds, Future[None]]:
        """Store messages that are to be delivered later; their ids, to cancel them by, and when
        they are durable."""
        self._check_due(deliver_at_us)
        topic = self._topics.get(name)
        if topic is None:
            self.check(name, batch, partition=partition, deliver_at_us=deliver_at_us)
            topic = self.topic(name)
        placed = topic.delay(batch, deliver_at_us, partition, call)
        self._chores[name].plan_delays()
        return DelayedIds(placed), all_durable([each.durable for each in placed])

    def cancel(self, name: TopicName, id_: str) -> bool:
        return self.topic(name, create=False).delays.cancel(id_)

    def delayed(
        self, name: TopicName, after: int = 0, limit: int = 100, bytes_max: int | None = None
    ) -> list[tuple[int, DelayedMessage]]:
        """Messages that wait, by place; with `bytes_max` until they have so many bytes."""
        return self.topic(name, create=False).delays.pending(after, limit, bytes_max)

    def delay_stats(self, name: TopicName) -> DelayStats:
        return self.topic(name, create=False).delays.stats()

    # Queue mode.

    def receive(
        self,
        name: TopicName,
        group: str,
        max_messages: int = 1,
        visibility_ns: int | None = None,
        consumer: str = "",
        partition: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Delivered]:
        """Messages that are ready now, each under a lease; an empty list if there are none.

        With `bytes_max` they end where they have about so many bytes; there is one at the least.
        """
        group_name(group)
        if type(max_messages) is not int or not 1 <= max_messages <= RECEIVE_MAX:
            raise InvalidInput(f"max_messages is {max_messages!r}; from 1 to {RECEIVE_MAX}")
        if consumer != "":
            _check_text("consumer", consumer)
            if len(consumer) > CONSUMER_LENGTH_MAX:
                raise InvalidInput(
                    f"the name of a consumer has {len(consumer)} characters; "
                    f"{CONSUMER_LENGTH_MAX} at most"
                )
        if visibility_ns is not None:
            self._check_visibility(visibility_ns)
        topic = self._topics.get(name) or self.topic(name)
        if visibility_ns is None:
            visibility_ns = topic.settings.visibility_ms * 1_000_000
        delivered: list[Delivered] = []
        wanted = max_messages
        if partition is not None:
            in_turn: Sequence[Partition] = [topic.partition(partition)]
        else:
            in_turn = topic.partition_order.order(group, topic.partitions)
        for each in in_turn:
            try:
                got = each.receive(group, wanted, visibility_ns, consumer, bytes_max)
            except NoDeadLetterTopic:
                self._make_dead_letter_topic(name)
                got = each.receive(group, wanted, visibility_ns, consumer, bytes_max)
            if got is not None:
                delivered.append(got)
                wanted -= got.count
                if not wanted:
                    break
                if bytes_max is not None:
                    bytes_max -= sum([batch.payload_bytes for batch, _ in got.pieces])
                    if bytes_max <= 0:
                        break
        return delivered

    def begin_at_end(self, name: TopicName, group: str) -> None:
        """A group that is not there yet begins after the newest message of each partition."""
        group_name(group)
        topic = self._topics.get(name) or self.topic(name)
        if not any(group in partition.queues for partition in topic.partitions):
            for partition in topic.partitions:
                partition.begin_at_end(group)

    def ack(
        self, name: TopicName, partition: int, group: str, nonce: int, offsets: Offsets | None
    ) -> Settlement:
        topic = self._topics.get(name) or self.topic(name, create=False)
        return topic.partition(partition).ack(group, nonce, offsets)

    def nack(
        self,
        name: TopicName,
        partition: int,
        group: str,
        nonce: int,
        offsets: Offsets | None,
        *,
        delay_ns: int | None = None,
        error: str = "",
        retries: int | None = None,
    ) -> Settlement:
        _check_text("error", error)
        if retries is not None and (type(retries) is not int or retries < 0):
            raise InvalidInput(f"retries is {retries!r:.100}; it must be a whole number from 0 up")
        if delay_ns is not None and delay_ns > DELAY_MS_MAX * 1_000_000:
            raise InvalidInput("a message can be delayed by 90 days at the most")
        error = error[:ERROR_LENGTH_MAX]
        return self._settle(
            name,
            partition,
            group,
            lambda q, now: q.nack(
                now, nonce, offsets, delay_ns=delay_ns, error=error, retries=retries
            ),
        )

    def reject(
        self,
        name: TopicName,
        partition: int,
        group: str,
        nonce: int,
        offsets: Offsets | None,
        *,
        error: str = "",
    ) -> Settlement:
        _check_text("reason", error)
        error = error[:ERROR_LENGTH_MAX]
        return self._settle(
            name,
            partition,
            group,
            lambda q, now: q.reject(now, nonce, offsets, error=error),
        )

    def extend(
        self,
        name: TopicName,
        partition: int,
        group: str,
        nonce: int,
        offsets: Offsets | None,
        *,
        visibility_ns: int,
    ) -> Settlement:
        self._check_visibility(visibility_ns)
        return self._settle(
            name,
            partition,
            group,
            lambda q, now: q.extend(now, nonce, offsets, visibility_ns=visibility_ns),
        )

    def seek(self, name: TopicName, group: str, offsets: dict[int, int]) -> None:
        """Let a group start again at an offset of each partition that is named."""
        topic = self.topic(name, create=False)
        for number, offset in offsets.items():
            topic.partition(number).seek(group_name(group), offset)
        topic.waiters.notify()

    def read(
        self, name: TopicName, partition: int, offset: int, max_bytes: int = 1 << 20
    ) -> Batches:
        """Messages as they lie in the log, for streams, peeking and replay; changes nothing."""
        return self.topic(name, create=False).partition(partition).log.read(offset, max_bytes)

    def purge(self, name: TopicName, group: str | None = None) -> int:
        """Drop every message, or only skip them for one group; how many there were."""
        topic = self.topic(name, create=False)
        if group is not None:
            return sum(p.purge(group_name(group)) for p in topic.partitions)
        purged = 0
        for partition in topic.partitions:
            purged += partition.log.end - partition.log.start
            with topic.delays.at_rest(partition.number):
                partition.trim_to(partition.log.end)
        return purged + topic.delays.purge()

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

    def groups(self, name: TopicName) -> list[str]:
        """The groups that read this topic as a queue."""
        return self.topic(name, create=False).groups()

    def delete_group(self, name: TopicName, group: str) -> bool:
        partitions = self.topic(name, create=False).partitions
        deleted = sum(p.delete_group(group_name(group)) for p in partitions) > 0
        self.latencies.forget_group(name, group)
        return deleted

    def stats(self, name: TopicName) -> TopicStats:
        topic = self._topics.get(name)
        if topic is not None:
            return topic_stats(self, topic)
        with self._lock:  # so that nobody else opens it meanwhile
            settings = self.settings(name)
            topic = self._topics.get(name)
            if topic is None and self._store.is_empty(name):
                return empty_stats(self, name, settings.partitions)
            if topic is None:
                topic = self._store.open_topic(name, settings, self._dead_letter_store(name))
                try:
                    return topic_stats(self, topic)
                finally:
                    topic.close()
        return topic_stats(self, topic)

    def latency_page(
        self,
        name: TopicName,
        since_us: int | None,
        until_us: int | None,
        rows_max: int | None = None,
    ) -> tuple[list[LatencyRow], int | None]:
        """How long messages took, minute by minute, and with which minute to go on.

        Without `rows_max` it is all at once. With it the call is short, however much is stored: the
        page may have fewer rows, even none, and still there are more.
        """
        topic = self.topic(name, create=False)
        return self.latencies.page(topic.name, since_us, until_us, rows_max)

    def dead_letters(self, name: TopicName) -> DeadLetterQueue:
        return DeadLetterQueue(self, name)

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

    def consumed(self, topics: set[str]) -> None:
        """A stream group got on, so that retention may have something to do."""
        for name in map(parse_topic, topics):
            topic = self._topics.get(name)
            if topic is not None and topic.settings.retention_mode == "consumed":
                topic.tend()

    def plan(self, chore: Callable[[int], int | None], deadline_ns: int | None) -> None:
        self._housekeeper.plan(chore, deadline_ns)

    def failed_logs(self) -> list[str]:
        """Logs that take no writes any more."""
        return self._store.failed_logs()

    def has_room(self) -> bool:
        """Whether the disk has more room than the floor below which publishes are refused."""
        try:
            return self._engine.files.free_bytes(self.folder) >= self.config.free_bytes_min
        except OSError:
            return False

    def close(self) -> None:
        """Leave a clean folder: everything synced, state written down, the lock released."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._housekeeper.stop()
        self._compactor.stop()  # what is under way ends when its log is closed
        with self._lock:
            for topic in self._topics.values():
                try:
                    topic.checkpoint()
                except PenstockError as exc:  # a full disk, say: the next start takes longer
                    _logger.warning("no checkpoint of %s: %s", topic.name, exc)
            with ExitStack() as closing:  # all of it, whatever fails on the way
                closing.callback(self._engine.close)
                closing.callback(self._topics.clear)
                closing.callback(self._catalog.close)
                closing.callback(self._unopened.close)
                closing.callback(self.streams.close)
                closing.callback(self.latencies.close)
                for topic in self._topics.values():
                    closing.callback(topic.waiters.notify)
                    closing.callback(self._unopened.rest, topic, self._retention)
        self._compactor.join()

    def abandon(self) -> None:
        """This is a forked process: the data folder is its parent's."""
        self._lock = threading.RLock()
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

    def _check_open(self) -> None:
        if self._abandoned:
            raise BrokerClosed(
                f"the broker on {self.folder} was opened by the process that this one was forked "
                "from; connect after the fork, or serve the folder (penstock serve) for both"
            )
        if self._closed:
            raise BrokerClosed(f"the broker on {self.folder} was closed; connect again to go on")

    def _settings_if_made(self, name: TopicName, create: bool | None = None) -> TopicSettings:
        """Of a topic that is not there, if it may be made on demand."""
        self._check_open()
        if not (self.config.auto_create if create is None else create):
            raise self._catalog.not_found(name)
        topic_name(name.topic, name.namespace)
        return self._default_settings(name)

    def _default_settings(self, name: TopicName) -> TopicSettings:
        return DEAD_LETTER_SETTINGS if self.is_dead_letters(name) else TopicSettings()

    def _check_due(self, deliver_at_us: int | Int64s) -> None:
        latest = int(np.max(deliver_at_us, initial=0))
        if latest > self.clock.wall_ns() // 1000 + DELAY_MS_MAX * 1000:
            raise InvalidInput("a message can be delayed by 90 days at the most")

    def _check_visibility(self, visibility_ns: int) -> None:
        if not 0 < visibility_ns <= VISIBILITY_MS_MAX * 1_000_000:
            raise InvalidInput("visibility must be more than nothing and at most 12 hours")

    def _open_known(self, name: TopicName) -> Topic | None:
        """A topic that is there, opened if it is not; None if there is none."""
        with self._lock:
            self._check_open()
            topic = self._topics.get(name)
            if name in self._opening:  # by this thread: nobody else gets here meanwhile
                raise self._catalog.not_found(name)
            if topic is None and name in self._catalog:
                dead = self.dead_letters_of(name)
                if dead in self._catalog and dead not in self._topics:
                    self._open(dead)  # it is looked for under locks of ours
                topic = self._open(name)
            return topic

    def _open(self, name: TopicName) -> Topic:
        settings = self._catalog.settings(name)
        self._unopened.opening(name)
        self._opening.add(name)
        with ExitStack() as closing:
            closing.callback(self._opening.discard, name)
            topic = self._store.open_topic(name, settings, self._dead_letter_store(name))
            with ExitStack() as undoing:
                undoing.callback(topic.close)
                if self._catalog.uses_dedup(name):
                    topic.rebuild_dedup()
                self.streams.opened(topic)
                finish_dead_letters(topic, self._dead_letter_store(name))
                undoing.pop_all()
        topic.waiters = self._waiters.setdefault(name, topic.waiters)
        self._chores[name] = TopicChores(
            topic, self._housekeeper, self._retention, self.clock, self._make_dead_letter_topic
        )
        self._topics[name] = topic  # from here on others use it
        return topic

    def _close(self, name: TopicName) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._chores.pop(name).forget()
            topic.close()
            topic.waiters.notify()
            if not len(topic.waiters):
                self._waiters.pop(name, None)

    def _settle(
        self,
        name: TopicName,
        partition: int,
        group: str,
        decide: Callable[[GroupQueue, int], Decision],
    ) -> Settlement:
        target = self.topic(name, create=False).partition(partition)
        try:
            return target.settle(group, decide)
        except NoDeadLetterTopic:
            self._make_dead_letter_topic(name)
            return target.settle(group, decide)

    def _dead_letter_store(self, name: TopicName) -> DeadLetterTopicStore:
        return DeadLetterTopicStore(name, self._topics, self._catalog)

    def _make_dead_letter_topic(self, name: TopicName) -> None:
        """On demand. No partition's lock may be held: who changes topics takes those after ours."""
        dead = self.dead_letters_of(name)
        partitions = self.settings(name).partitions
        settings = msgspec.structs.replace(DEAD_LETTER_SETTINGS, partitions=partitions)
        made = self.create_topic(dead, settings, exist_ok=True)
        if made.partitions < partitions:
            self.alter_topic(dead, {"partitions": partitions})
        self.topic(dead)


def _check_same(name: TopicName, known: TopicSettings, wanted: TopicSettings) -> None:
    """Whoever asks for a topic with certain settings must not get one with others."""
    other = [
        f"{field} is {getattr(known, field)!r}, not {getattr(wanted, field)!r}"
        for field in TopicSettings.__struct_fields__
        if getattr(known, field) != getattr(wanted, field)
    ]
    if other:
        raise TopicExists(str(name), f"with other settings: {', '.join(other)}")


def _check_text(name: str, text: object) -> None:
    """What goes into the ledger has to come out of it again."""
    if not isinstance(text, str):
        raise InvalidInput(f"{name} must be text, not {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidInput(f"{name} cannot be stored as UTF-8: {exc}") from None
