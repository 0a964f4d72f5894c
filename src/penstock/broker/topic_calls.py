"""What a broker is asked about its topics: making, changing and opening them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec

from penstock.broker.broker_part import BrokerPart
from penstock.broker.catalog import dead_letters_of
from penstock.broker.chores import TopicChores
from penstock.broker.dead_letter_store import (
    DeadLetterTopicStore,
    checkpoint_all,
    finish_dead_letters,
)
from penstock.broker.topic import Topic
from penstock.errors import InvalidInput, TopicExists
from penstock.model.catalog import TopicTimes
from penstock.model.names import (
    DEAD_LETTER_SUFFIX,
    DEFAULT_NAMESPACE,
    TopicName,
    parse_topic,
    topic_name,
)
from penstock.model.settings import DEAD_LETTER_SETTINGS, TopicSettings, parse_settings


class TopicCalls(BrokerPart):
    """The topics of a broker. One is opened when it is first used."""

    def create_topic(
        self, name: TopicName, settings: dict[str, Any] | TopicSettings, exist_ok: bool = False
    ) -> TopicSettings:
        given = settings if isinstance(settings, dict) else {}
        if isinstance(settings, dict):
            settings = parse_settings(settings, self._default_settings(name))
        known = self._claims.holding(
            partial(self._with_dead_letters, name, settings),
            partial(self._create, name, settings, given if exist_ok else None),
        )
        if known is not None:
            return known
        self.streams.topics_changed()
        return settings

    def alter_topic(self, name: TopicName, settings: dict[str, Any]) -> TopicSettings:
        """Change settings. Partitions can be added, never taken away."""
        topic = self._claims.holding(
            partial(self._concerned_by_alter, name, settings), partial(self._alter, name, settings)
        )
        self.streams.topics_changed()
        topic.waiters.notify()
        return topic.settings

    def delete_topic(self, name: TopicName) -> None:
        """With all its messages, delays and groups; its dead letters stay."""
        self._claims.holding(partial(self._with_dead_letters, name), partial(self._delete, name))

    def forget_namespace(self, namespace: str) -> bool | None:
        """Delete the record and the quotas of a namespace, if it had any; None: it has topics."""
        with self._lock:  # nobody makes one meanwhile, which would count against no quotas
            self._check_open()
            return None if self.topics(namespace) else self.tenants.delete(namespace)

    def topics(self, namespace: str | None = None) -> list[TopicName]:
        return [n for n in self._catalog if namespace is None or n.namespace == namespace]

    def namespaces(self) -> list[str]:
        made = self.tenants.names()
        return sorted({DEFAULT_NAMESPACE, *made, *(name.namespace for name in self._catalog)})

    def open_topics(self) -> list[Topic]:
        """Those that were used, or had something to do by themselves, since the broker began."""
        return list(self._topics.values())

    def is_open(self, name: TopicName) -> bool:
        return name in self._topics

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

    def open_topic(self, name: TopicName) -> None:
        """Open a topic if it is there. The first time that takes long; calls about it do not."""
        self._open_known(name)

    def open_topic_or_none(self, name: TopicName) -> Topic | None:
        """A topic, if it is open. The caller may hold locks of partitions."""
        return self._topics.get(name)

    def settings(self, name: TopicName) -> TopicSettings:
        """Of a topic that is there, whether or not it is open."""
        self._check_open()
        return self._catalog.settings(name)

    def topic_times(self, name: TopicName) -> TopicTimes:
        """When a topic was made, and its settings were last changed."""
        return self._catalog.times(name)

    def incarnation(self, name: TopicName) -> str:
        """Which topic of this name it is."""
        return self._catalog.incarnation(name)

    def fsync_policies(self, topics: Iterable[str]) -> list[str]:
        """Of those of the topics that there are."""
        names = [parse_topic(topic) for topic in topics]
        return [self._catalog.settings(name).fsync for name in names if name in self._catalog]

    def dead_letters_of(self, name: TopicName) -> TopicName:
        """Where the dead letters of a topic go."""
        return self._catalog.dead_letters_of(name)

    def is_dead_letters(self, name: TopicName) -> bool:
        return self._catalog.is_dead_letters(name)

    def make_dead_letter_topic(self, name: TopicName) -> None:
        """On demand. No partition's lock may be held: who changes topics takes those after ours."""
        dead = self.dead_letters_of(name)
        partitions = self.settings(name).partitions
        settings = msgspec.structs.replace(DEAD_LETTER_SETTINGS, partitions=partitions)
        made = self.create_topic(dead, settings, exist_ok=True)
        if made.partitions < partitions:
            self.alter_topic(dead, {"partitions": partitions})
        self.topic(dead)

    def plan_delays(self, name: TopicName) -> None:
        """Messages were delayed: one may be the next to fall due."""
        chores = self._chores.get(name)
        if chores is not None:
            chores.plan_delays()

    # Inside.

    def _settings_if_made(self, name: TopicName, create: bool | None = None) -> TopicSettings:
        """Of a topic that is not there, if it may be made on demand."""
        self._check_open()
        if not (self.config.auto_create if create is None else create):
            raise self._catalog.not_found(name)
        topic_name(name.topic, name.namespace)
        return self._default_settings(name)

    def _default_settings(self, name: TopicName) -> TopicSettings:
        return DEAD_LETTER_SETTINGS if self.is_dead_letters(name) else self.config.topic_defaults

    def _with_dead_letters(
        self, name: TopicName, settings: TopicSettings | None = None
    ) -> list[TopicName]:
        """A topic with its settings, or those to come, and that of its dead letters, and so on: to
        the first that is not there, which nobody is to make meanwhile."""
        found = [name]
        dead = self.dead_letters_of(name) if settings is None else dead_letters_of(name, settings)
        while dead not in found:
            found.append(dead)
            if dead in self._catalog:
                dead = self.dead_letters_of(dead)
        return found

    def _concerned_by_alter(self, name: TopicName, settings: dict[str, Any]) -> list[TopicName]:
        """With the dead letters as they are and as they will be."""
        self._check_open()
        new = parse_settings(settings, self._catalog.settings(name))
        return [*self._with_dead_letters(name), *self._with_dead_letters(name, new)]

    def _open_known(self, name: TopicName) -> Topic | None:
        """A topic that is there, opened if it is not; None if there is none."""
        self._check_open()
        if self._claims.is_mine(name):
            raise self._catalog.not_found(name)  # it is not there yet, or no more
        self._claims.holding(
            partial(self._with_dead_letters, name), partial(self._open_with_dead_letters, name)
        )
        with self._lock:
            self._check_open()
            return self._topics.get(name)

    # Of topics that the caller has claimed. It does not have the lock.

    def _create(
        self, name: TopicName, settings: TopicSettings, given: dict[str, Any] | None
    ) -> TopicSettings | None:
        """The settings of a topic that is there, if those that were given are among them."""
        with self._lock:
            self._check_open()
            if settings.dead_letter_suffix != DEAD_LETTER_SUFFIX:
                topic_name(name.topic + settings.dead_letter_suffix, name.namespace)
            self._catalog.check_dead_letters(name, settings)
            if name in self._catalog:
                if given is None:
                    raise TopicExists(str(name))
                known = self._catalog.settings(name)
                _check_same(name, known, parse_settings(given, known))
                return known
            if self.tenants.limited:
                self.tenants.check_topic(name, settings, settings.partitions)
            self._store.remove_topic(name)
            self.latencies.begin(name)
            self._catalog.create(name, settings)
            is_looked_for = self.is_dead_letters(name) or bool(self._catalog.sources_of(name))
        if is_looked_for:  # by the topic that it is for, which may be open
            self._open_with_dead_letters(name)
        return None

    def _alter(self, name: TopicName, settings: dict[str, Any]) -> Topic:
        known = self._catalog.settings(name)
        new = parse_settings(settings, known)
        self._open_with_dead_letters(name)
        self._open_with_dead_letters(dead_letters_of(name, new))
        with self._lock:
            topic = self._topics.get(name)
            self._check_open()
            assert topic is not None, "it was opened just now"
            if new.partitions < len(topic.partitions):
                raise InvalidInput(
                    f"topic {name} has {len(topic.partitions)} partitions; they can be added, "
                    "not taken away: their messages would be lost"
                )
            if new.dead_letter_suffix != known.dead_letter_suffix:
                raise InvalidInput(
                    f"the dead letters of {name} lie in {self.dead_letters_of(name)}; their suffix "
                    "stays as it was made"
                )
            self._catalog.check_dead_letters(name, new)
            if self.tenants.limited:
                self.tenants.check_topic(name, new, new.partitions - known.partitions)
            self._catalog.alter(name, new)
        if new.dead_letter_topic != topic.settings.dead_letter_topic:
            checkpoint_all(topic)  # from here on only letters there say what became of messages
        chores = self._chores[name]
        for number in range(len(topic.partitions), new.partitions):
            added = self._store.open_partition(name, number, new, self._dead_letter_store(name))
            chores.look_after(added)
            topic.add(added)
        topic.change(new, new.log_config(self.config.free_bytes_min))
        topic.tend()
        chores.plan_alarms()
        return topic

    def _delete(self, name: TopicName) -> None:
        with self._lock:
            self._check_open()
            self._catalog.delete(name)
            self._close(name)
            self._unopened.deleted(name)
            self.latencies.forget(name)
            self.counters.forget(name)
            self.history.forget(name)
            self._resting_stats.forget(name)
            self._store.remove_topic(name)
        for other, topic in list(self._topics.items()):
            if self.dead_letters_of(other) == name:
                checkpoint_all(topic)  # new letters would have the offsets of old ones
        self.streams.topics_changed(deleted=name)

    def _open_with_dead_letters(self, name: TopicName) -> None:
        """The dead letters first: they are looked for under the locks of the topic's partitions."""
        if name not in self._topics:
            for each in reversed(self._with_dead_letters(name)):
                self._open(each)

    def _open(self, name: TopicName) -> None:
        """Open a topic that is there and not open. The logs of many partitions take long: the
        broker's lock is free meanwhile."""
        with self._lock:
            self._check_open()
            if name in self._topics or name not in self._catalog:
                return
            settings = self._catalog.settings(name)
            self._resting_stats.forget(name)
            self._unopened.opening(name)
        topic = self._store.open_topic(name, settings, self._dead_letter_store(name))
        with ExitStack() as undoing:
            undoing.callback(topic.close)
            self._transactions.opening(topic)
            if self._catalog.uses_dedup(name):
                topic.rebuild_dedup(self._catalog.dedup_window_ms(name))
            self.streams.opened(topic)
            finish_dead_letters(topic, self._dead_letter_store(name))
            with self._lock:
                if self._lost is not None:
                    raise self._engine.loss()
                undoing.pop_all()
                topic.waiters = self._waiters.setdefault(name, topic.waiters)
                self._chores[name] = TopicChores(
                    topic,
                    self._housekeeper,
                    self._retention,
                    self.clock,
                    self.make_dead_letter_topic,
                )
                self._topics[name] = topic  # from here on others use it
                self._chores[name].plan_alarms()  # which asks groups, and they the topic

    def _close(self, name: TopicName) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._chores.pop(name).forget()
            topic.close()
            topic.waiters.notify()
            if not len(topic.waiters):
                self._waiters.pop(name, None)

    def _dead_letter_store(self, name: TopicName) -> DeadLetterTopicStore:
        return DeadLetterTopicStore(name, self._topics, self._catalog)


def _check_same(name: TopicName, known: TopicSettings, wanted: TopicSettings) -> None:
    """Whoever asks for a topic with certain settings must not get one with others."""
    other = [
        f"{field} is {getattr(known, field)!r}, not {getattr(wanted, field)!r}"
        for field in TopicSettings.__struct_fields__
        if getattr(known, field) != getattr(wanted, field)
    ]
    if other:
        raise TopicExists(str(name), f"with other settings: {', '.join(other)}")
