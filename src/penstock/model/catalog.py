"""Which topics there are, and their settings: the entries of the catalog's log, and their fold.

The broker writes them; readers of a data folder without a broker fold the same log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from penstock.log.log_reader import LogReader
from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings

CATALOG_LOG = "catalog"
"""The name of its log in a data folder."""


class TopicTimes(msgspec.Struct, frozen=True):
    """When a topic was made and last changed; None: by a version that did not note it."""

    created_us: int | None = None
    updated_us: int | None = None


class TopicChanged(msgspec.Struct, frozen=True, tag="topic"):
    """A topic was created, or its settings are others now."""

    name: TopicName
    settings: TopicSettings
    times: TopicTimes = TopicTimes()
    incarnation: str = ""
    """Another one each time that a topic of this name is made; "": by a version without."""


class TopicDeleted(msgspec.Struct, frozen=True, tag="deleted"):
    name: TopicName


class DedupUsed(msgspec.Struct, frozen=True, tag="dedup"):
    """Somebody sent a deduplication id to the topic: its window is rebuilt at start-up."""

    name: TopicName
    window_ms: int = 0
    """The longest window that a call asked for; 0: none asked for one of its own."""


class CatalogSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    topics: list[TopicChanged]
    dedup_used: list[TopicName]
    dedup_by_call: list[DedupUsed] = []
    """Those of them with windows by call."""


CatalogEntry = TopicChanged | TopicDeleted | DedupUsed | CatalogSnapshot

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[CatalogEntry] = msgspec.json.Decoder(CatalogEntry)


class CatalogState:
    """What the entries so far say."""

    def __init__(self, entries: Iterable[bytes] = ()) -> None:
        self.topics: dict[TopicName, TopicSettings] = {}
        self.times: dict[TopicName, TopicTimes] = {}
        self.incarnations: dict[TopicName, str] = {}
        self.dedup_used: dict[TopicName, int] = {}
        """Where there are deduplication ids, with the longest window that a call asked for."""
        for data in entries:
            self.apply(_decoder.decode(data))

    def apply(self, entry: CatalogEntry) -> None:
        match entry:
            case TopicChanged():
                self.topics[entry.name] = entry.settings
                self.times[entry.name] = entry.times
                self.incarnations[entry.name] = entry.incarnation
            case TopicDeleted(name=name):
                self.topics.pop(name, None)
                self.times.pop(name, None)
                self.incarnations.pop(name, None)
                self.dedup_used.pop(name, None)
            case DedupUsed(name=name, window_ms=window_ms):
                self.dedup_used[name] = max(window_ms, self.dedup_used.get(name, 0))
            case CatalogSnapshot():
                self.topics = {topic.name: topic.settings for topic in entry.topics}
                self.times = {topic.name: topic.times for topic in entry.topics}
                self.incarnations = {topic.name: topic.incarnation for topic in entry.topics}
                self.dedup_used = dict.fromkeys(entry.dedup_used, 0)
                for used in entry.dedup_by_call:
                    self.dedup_used[used.name] = used.window_ms

    def snapshot(self) -> CatalogSnapshot:
        topics = [
            TopicChanged(name, settings, self.times[name], self.incarnations[name])
            for name, settings in self.topics.items()
        ]
        by_call = [DedupUsed(name, ms) for name, ms in sorted(self.dedup_used.items()) if ms]
        return CatalogSnapshot(topics, sorted(self.dedup_used), by_call)


def encode_entry(entry: CatalogEntry) -> bytes:
    return _encoder.encode(entry)


def read_catalog(folder: str, log: LogReader | None = None) -> CatalogState:
    """The catalog of a data folder, also while a broker works on it. `log` is its reader, if there
    is one from before. Raises LogNotFound where there is no catalog."""
    log = log or LogReader.open(os.path.join(folder, CATALOG_LOG))
    log.refresh()
    entries: list[bytes] = []
    offset = log.start
    while offset < log.end:
        read = log.read(offset)
        entries += [value for batch in read for value in batch.values.to_pylist()]
        offset = read.next_offset
    return CatalogState(entries)
