"""Which topics there are, and their settings: the entries of the catalog's log, and their fold.

The broker writes them; whoever reads a data folder without a broker folds the same log.
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


class TopicChanged(msgspec.Struct, frozen=True, tag="topic"):
    """A topic was created, or its settings are others now."""

    name: TopicName
    settings: TopicSettings


class TopicDeleted(msgspec.Struct, frozen=True, tag="deleted"):
    name: TopicName


class DedupUsed(msgspec.Struct, frozen=True, tag="dedup"):
    """Somebody sent a deduplication id to the topic: its window is rebuilt at start-up."""

    name: TopicName


class CatalogSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    topics: list[TopicChanged]
    dedup_used: list[TopicName]


CatalogEntry = TopicChanged | TopicDeleted | DedupUsed | CatalogSnapshot

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[CatalogEntry] = msgspec.json.Decoder(CatalogEntry)


class CatalogState:
    """What the entries so far say."""

    def __init__(self, entries: Iterable[bytes] = ()) -> None:
        self.topics: dict[TopicName, TopicSettings] = {}
        self.dedup_used: set[TopicName] = set()
        for data in entries:
            self.apply(_decoder.decode(data))

    def apply(self, entry: CatalogEntry) -> None:
        match entry:
            case TopicChanged(name=name, settings=settings):
                self.topics[name] = settings
            case TopicDeleted(name=name):
                self.topics.pop(name, None)
                self.dedup_used.discard(name)
            case DedupUsed(name=name):
                self.dedup_used.add(name)
            case CatalogSnapshot():
                self.topics = {topic.name: topic.settings for topic in entry.topics}
                self.dedup_used = set(entry.dedup_used)

    def snapshot(self) -> CatalogSnapshot:
        topics = [TopicChanged(name, settings) for name, settings in self.topics.items()]
        return CatalogSnapshot(topics, sorted(self.dedup_used))


def encode_entry(entry: CatalogEntry) -> bytes:
    return _encoder.encode(entry)


def read_catalog(folder: str, log: LogReader | None = None) -> CatalogState:
    """What the catalog of a data folder says, whoever works on it. `log` is its reader, if there is
    one from before. Raises LogNotFound where there is no catalog."""
    log = log or LogReader.open(os.path.join(folder, CATALOG_LOG))
    log.refresh()
    entries: list[bytes] = []
    offset = log.start
    while offset < log.end:
        read = log.read(offset)
        entries += [value for batch in read for value in batch.values.to_pylist()]
        offset = read.next_offset
    return CatalogState(entries)
