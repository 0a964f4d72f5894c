"""Topics, their namespaces, partitions and groups."""

from __future__ import annotations

import msgspec

from penstock.model.settings import TopicSettings


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    settings: TopicSettings
    created_us: int | None = None
    """When it was made, in microseconds since 1970; None: by a version that did not note it."""
    updated_us: int | None = None
    """When its settings were last changed, or it was made."""
    incarnation: str = ""
    """Another one when a topic is deleted and made again; "": made by a version that gave none."""


class TopicNames(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[str]


class Namespaces(msgspec.Struct, frozen=True, kw_only=True):
    namespaces: list[str]


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[str]


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages it was."""

    count: int


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction saved."""

    segments_removed: int
    bytes_freed: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it was there."""

    found: bool


class PartitionBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition holds: offsets from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int
    durable_end: int
    at: int | None = None
    """The offset at the position that was asked for."""
