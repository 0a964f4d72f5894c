"""The catalog: which topics there are, and their settings. The fold of a journal of its own."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from itertools import islice

from penstock.broker.journal import Journal
from penstock.clock import Clock
from penstock.errors import InvalidInput, TopicExists, TopicNotFound
from penstock.model.catalog import (
    CatalogEntry,
    CatalogState,
    DedupUsed,
    TopicChanged,
    TopicDeleted,
    TopicTimes,
    encode_entry,
)
from penstock.model.names import DEAD_LETTER_SUFFIX, TopicName
from penstock.model.settings import TopicSettings
from penstock.spelling import likely, nearest

_CHECKPOINT_BYTES = 1 << 20
_INCARNATION_BYTES = 16

# To find what a wrong name was meant to be takes a few milliseconds, however many topics there are.
_SCANNED_MAX = 10_000
_LOOKED_AT_MAX = 2000
_COMPARED_MAX = 20
_LENGTHS_APART_MAX = 4
_ALIKE_MIN = 0.75


class Catalog:
    """Changes are durable when the call returns."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        self._named_dead: frozenset[TopicName] | None = None  # those with a suffix of their own
        self._nearest: dict[TopicName, str | None] = {}  # to names that were asked for last
        self._state = CatalogState(journal.entries())

    def __contains__(self, name: TopicName) -> bool:
        return name in self._state.topics

    def __iter__(self) -> Iterator[TopicName]:
        return iter(sorted(self._state.topics))

    def settings(self, name: TopicName) -> TopicSettings:
        try:
            return self._state.topics[name]
        except KeyError:
            raise self.not_found(name) from None

    def times(self, name: TopicName) -> TopicTimes:
        """When a topic was made, and its settings were last changed."""
        try:
            return self._state.times[name]
        except KeyError:
            raise self.not_found(name) from None

    def incarnation(self, name: TopicName) -> str:
        """Which topic of this name it is: one that is deleted and made again is another one."""
        try:
            return self._state.incarnations[name]
        except KeyError:
            raise self.not_found(name) from None

    def dead_letters_of(self, name: TopicName) -> TopicName:
        """Where the dead letters of a topic go; of one that is gone, where they go by default."""
        settings = self._state.topics.get(name)
        return name.dead_letters if settings is None else dead_letters_of(name, settings)

    def check_dead_letters(self, name: TopicName, settings: TopicSettings) -> None:
        """Raise InvalidInput if letters of a topic would come back to it."""
        passed, dead = {name}, dead_letters_of(name, settings)
        while dead not in passed:
            passed.add(dead)
            known = self._state.topics.get(dead)
            if known is None:
                return
            dead = dead_letters_of(dead, known)
        raise InvalidInput(
            f"the dead letters of {name} would come back to {dead}; choose another "
            "dead_letter_topic"
        )

    def sources_of(self, name: TopicName) -> list[TopicName]:
        """The topics whose setting sends their dead letters to this one."""
        return [
            each
            for each, settings in list(self._state.topics.items())
            if settings.dead_letter_topic == name.topic and each.namespace == name.namespace
        ]

    def is_dead_letters(self, name: TopicName) -> bool:
        """Whether a topic holds dead letters, by its name or by the suffix that another one has."""
        named = self._named_dead
        if named is None:
            named = self._named_dead = frozenset(
                self.dead_letters_of(each)
                for each, settings in list(self._state.topics.items())
                if settings.dead_letter_suffix != DEAD_LETTER_SUFFIX
            )
        return name.is_dead_letters or name in named

    def partition_counts(self) -> dict[str, int]:
        """Of all topics, by what `str` of their name writes."""
        return {
            str(name): settings.partitions for name, settings in list(self._state.topics.items())
        }

    def made_in(self, namespace: str) -> tuple[int, int]:
        """How many topics there are in a namespace, those of dead letters not counted, and how many
        partitions, all counted."""
        made = [
            (name, settings.partitions)
            for name, settings in list(self._state.topics.items())
            if name.namespace == namespace
        ]
        return sum(not name.is_dead_letters for name, _ in made), sum(count for _, count in made)

    def not_found(self, name: TopicName) -> TopicNotFound:
        """The error that says so, with the topic of the namespace that was probably meant.

        One of dead letters comes into being with the first, so that a name like it says nothing.
        """
        if name.is_dead_letters:
            return TopicNotFound(str(name))
        nearest_ones = self._nearest  # many may wait for a topic that is deleted
        if name not in nearest_ones:
            if len(nearest_ones) >= _COMPARED_MAX:
                nearest_ones.clear()
            nearest_ones[name] = self._nearest_to(name)
        return TopicNotFound(str(name), nearest_ones.get(name))

    def _nearest_to(self, name: TopicName) -> str | None:
        alike = (
            each.topic
            for each in list(islice(self._state.topics, _SCANNED_MAX))
            if each.namespace == name.namespace
            and abs(len(each.topic) - len(name.topic)) <= _LENGTHS_APART_MAX
            and not each.is_dead_letters
        )
        few = likely(name.topic, islice(alike, _LOOKED_AT_MAX), _COMPARED_MAX)
        near = nearest(name.topic, few, _ALIKE_MIN)
        return near and str(TopicName(name.namespace, near))

    def uses_dedup(self, name: TopicName) -> bool:
        return name in self._state.dedup_used

    def create(self, name: TopicName, settings: TopicSettings) -> None:
        with self._lock:
            if name in self._state.topics:
                raise TopicExists(str(name))
            now_us = self._clock.wall_ns() // 1000
            times = TopicTimes(now_us, now_us)
            self._store(TopicChanged(name, settings, times, secrets.token_hex(_INCARNATION_BYTES)))

    def alter(self, name: TopicName, settings: TopicSettings) -> None:
        with self._lock:
            created_us = self.times(name).created_us
            times = TopicTimes(created_us, self._clock.wall_ns() // 1000)
            self._store(TopicChanged(name, settings, times, self.incarnation(name)))

    def delete(self, name: TopicName) -> None:
        with self._lock:
            self.settings(name)
            self._store(TopicDeleted(name))

    def dedup_window_ms(self, name: TopicName) -> int:
        """The longest time for which a deduplication id of a topic may have to be remembered."""
        longest_ms = self._state.dedup_used.get(name, 0)
        return max(self.settings(name).dedup_window_ms, longest_ms)

    def note_dedup(self, name: TopicName, window_ms: int = 0) -> None:
        """Ids are sent to a topic, perhaps with a window of their own; known before they are."""
        if self._state.dedup_used.get(name, -1) >= window_ms:
            return
        with self._lock:
            if self._state.dedup_used.get(name, -1) < window_ms:
                self._store(DedupUsed(name, window_ms))

    def close(self) -> None:
        self._journal.close()

    def _store(self, entry: CatalogEntry) -> None:
        self._journal.append(encode_entry(entry))
        self._journal.log.sync()
        self._apply(entry)
        if self._journal.bytes_since_checkpoint > _CHECKPOINT_BYTES:
            self._journal.checkpoint(encode_entry(self._state.snapshot()))

    def _apply(self, entry: CatalogEntry) -> None:
        self._nearest.clear()
        self._state.apply(entry)
        self._named_dead = None


def dead_letters_of(name: TopicName, settings: TopicSettings) -> TopicName:
    if settings.dead_letter_topic is not None:
        return TopicName(name.namespace, settings.dead_letter_topic)
    return TopicName(name.namespace, name.topic + settings.dead_letter_suffix)
