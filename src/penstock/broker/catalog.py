"""The catalog: which topics there are, and their settings. The fold of a journal of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

import msgspec

from penstock.broker.journal import Journal
from penstock.errors import TopicExists, TopicNotFound
from penstock.model.names import DEAD_LETTER_SUFFIX, TopicName
from penstock.model.settings import TopicSettings
from penstock.spelling import likely, nearest

_CHECKPOINT_BYTES = 1 << 20

# To find what a wrong name was meant to be takes a few milliseconds, however many topics there are.
_SCANNED_MAX = 10_000
_LOOKED_AT_MAX = 2000
_COMPARED_MAX = 20
_LENGTHS_APART_MAX = 4
_ALIKE_MIN = 0.75


class TopicChanged(msgspec.Struct, frozen=True, tag="topic"):
    """A topic was created, or its settings are others now."""

    name: TopicName
    settings: TopicSettings


class TopicDeleted(msgspec.Struct, frozen=True, tag="deleted"):
    name: TopicName


class DedupUsed(msgspec.Struct, frozen=True, tag="dedup"):
    """Somebody sent a deduplication id to the topic: its window is rebuilt at start-up."""

    name: TopicName


class _Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    topics: list[TopicChanged]
    dedup_used: list[TopicName]


_Entry = TopicChanged | TopicDeleted | DedupUsed | _Snapshot
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[_Entry] = msgspec.json.Decoder(_Entry)


class Catalog:
    """Changes are durable when the call returns."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._topics: dict[TopicName, TopicSettings] = {}
        self._dedup_used: set[TopicName] = set()
        self._named_dead: frozenset[TopicName] | None = None  # those with a suffix of their own
        self._nearest: dict[TopicName, str | None] = {}  # to names that were asked for last
        for data in journal.entries():
            self._apply(_decoder.decode(data))

    def __contains__(self, name: TopicName) -> bool:
        return name in self._topics

    def __iter__(self) -> Iterator[TopicName]:
        return iter(sorted(self._topics))

    def settings(self, name: TopicName) -> TopicSettings:
        try:
            return self._topics[name]
        except KeyError:
            raise self.not_found(name) from None

    def dead_letters_of(self, name: TopicName) -> TopicName:
        """Where the dead letters of a topic go; of one that is gone, where they go by default."""
        settings = self._topics.get(name)
        if settings is None:
            return name.dead_letters
        return TopicName(name.namespace, name.topic + settings.dead_letter_suffix)

    def is_dead_letters(self, name: TopicName) -> bool:
        """Whether a topic holds dead letters, by its name or by the suffix that another one has."""
        named = self._named_dead
        if named is None:
            named = self._named_dead = frozenset(
                self.dead_letters_of(each)
                for each, settings in list(self._topics.items())
                if settings.dead_letter_suffix != DEAD_LETTER_SUFFIX
            )
        return name.is_dead_letters or name in named

    def partition_counts(self) -> dict[str, int]:
        """Of all topics, by what `str` of their name writes."""
        return {str(name): settings.partitions for name, settings in list(self._topics.items())}

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
            for each in list(islice(self._topics, _SCANNED_MAX))
            if each.namespace == name.namespace
            and abs(len(each.topic) - len(name.topic)) <= _LENGTHS_APART_MAX
            and not each.is_dead_letters
        )
        few = likely(name.topic, islice(alike, _LOOKED_AT_MAX), _COMPARED_MAX)
        near = nearest(name.topic, few, _ALIKE_MIN)
        return near and str(TopicName(name.namespace, near))

    def uses_dedup(self, name: TopicName) -> bool:
        return name in self._dedup_used

    def create(self, name: TopicName, settings: TopicSettings) -> None:
        with self._lock:
            if name in self._topics:
                raise TopicExists(str(name))
            self._store(TopicChanged(name, settings))

    def alter(self, name: TopicName, settings: TopicSettings) -> None:
        with self._lock:
            self.settings(name)
            self._store(TopicChanged(name, settings))

    def delete(self, name: TopicName) -> None:
        with self._lock:
            self.settings(name)
            self._store(TopicDeleted(name))

    def note_dedup(self, name: TopicName) -> None:
        with self._lock:
            if name not in self._dedup_used:
                self._store(DedupUsed(name))

    def close(self) -> None:
        self._journal.close()

    def _store(self, entry: _Entry) -> None:
        self._journal.append(_encoder.encode(entry))
        self._journal.log.sync()
        self._apply(entry)
        if self._journal.bytes_since_checkpoint > _CHECKPOINT_BYTES:
            topics = [TopicChanged(name, s) for name, s in self._topics.items()]
            snapshot = _Snapshot(topics, sorted(self._dedup_used))
            self._journal.checkpoint(_encoder.encode(snapshot))

    def _apply(self, entry: _Entry) -> None:
        self._nearest.clear()
        match entry:
            case TopicChanged(name=name, settings=settings):
                self._topics[name] = settings
            case TopicDeleted(name=name):
                self._topics.pop(name, None)
                self._dedup_used.discard(name)
            case DedupUsed(name=name):
                self._dedup_used.add(name)
            case _Snapshot():
                self._topics = {topic.name: topic.settings for topic in entry.topics}
                self._dedup_used = set(entry.dedup_used)
        self._named_dead = None
