"""What a folder or a broker of another kind holds, in the words that importing needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import msgspec


class ForeignMessage(NamedTuple):
    """A message on its way here."""

    number: int
    """Its id or offset where it comes from; ascends within its partition."""
    value: bytes | None
    key: bytes | None = None
    headers: Mapping[str, bytes | None] = {}
    priority: int = 2
    timestamp_us: int | None = None
    expires_us: int | None = None
    deliver_at_us: int | None = None
    """It is not visible before."""


class ForeignDamage(NamedTuple):
    """Something that could not be read."""

    path: str
    position: int
    reason: str


class GroupPosition(NamedTuple):
    """A position that a group has: everything below is done."""

    group: str
    topic: str
    partition: int
    next_number: int


class ForeignTopic(NamedTuple):
    """A topic, queue or log to import."""

    name: str
    partitions: int
    size_bytes: int
    dead_letters_of: str | None = None
    """The topic whose dead letters these are."""


class Foreign(Protocol):
    """A source. It is only read."""

    source_id: str
    """Names it, so that a second import of the same one goes on where the first ended."""
    damage: list[ForeignDamage]

    def topics(self) -> list[ForeignTopic]:
        """What there is."""

    def read(self, topic: ForeignTopic, partition: int, after: int) -> Iterator[ForeignMessage]:
        """Its messages past a number, in order."""

    def positions(self) -> list[GroupPosition]:
        """How far groups are."""


class Imported(msgspec.Struct, kw_only=True):
    """What an import has done to a topic."""

    topic: str
    messages: int = 0
    delayed: int = 0
    known: int = 0
    """Of them, those that were there from an import before."""
    expired: int = 0
    """Left out: they had outlived their TTL."""
    positions: int = 0
