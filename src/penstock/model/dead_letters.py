"""Dead letters: messages that were given up, each with the story of its failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from penstock.model.values import Small, Whole
from penstock.record.batch import Message

ORIGIN_HEADER = "penstock-dead-letter"

SCHEMA_REASON = "schema"
"""Of a message that was never stored, because it did not fit the schema of its topic."""

RedriveTo: TypeAlias = Literal["group", "topic"]
"""Whom a letter is sent back to: the group in which it failed, or every reader of its topic."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dead letter comes from. Fields may be added, never renamed."""

    topic: str
    partition: int
    """-1: the message was never stored."""
    offset: int
    id: str
    group: str
    reason: str
    attempts: int
    published_at_us: int
    first_delivery_us: int | None = None
    last_delivery_us: int | None = None
    consumer: str = ""
    error: str = ""
    nonce: int = 0
    """Of the lease under which it was given up. A restart knows by it what was half done."""


class Letter(msgspec.Struct, frozen=True):
    """A dead letter: the message, and its story."""

    partition: int
    message: Message
    origin: Origin

    @property
    def value(self) -> bytes | None:
        return self.message.value

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def headers(self) -> dict[str, bytes | None]:
        """As they were when the message was published."""
        return {k: v for k, v in self.message.headers.items() if k != ORIGIN_HEADER}

    @property
    def reason(self) -> str:
        return self.origin.reason

    @property
    def error(self) -> str:
        return self.origin.error

    @property
    def attempts(self) -> int:
        return self.origin.attempts

    @property
    def id(self) -> str:
        """Of the letter; the message that it was had `origin.id`."""
        return self.message.id


LetterFilter = Callable[[Letter], bool]


class LetterPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A letter by where it lies."""

    partition: Small
    offset: Whole
    id: str | None = None
    """Of the letter's message. With it, another letter that came to lie there is not touched: the
    whole request is refused."""


class LetterPage(msgspec.Struct, frozen=True, kw_only=True):
    letters: list[Letter]
    count: int
    """All letters that are neither redriven nor purged."""
    next: str | None
    """The `after` of the next page; None: that was all."""


ERROR_LINE_MAX = 200


def error_line(error: str) -> str:
    """The first line of an error, as far as it tells failures apart."""
    return error.strip().partition("\n")[0].strip()[:ERROR_LINE_MAX]


class LetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Letters that failed for the same reason, in the same group, with the same error."""

    reason: str
    group: str
    error: str
    """The first line of it, up to 200 characters."""
    count: int
    first_us: int
    """When the first of them died."""
    last_us: int
    place: str
    """One of them, as `partition-offset`."""


class LetterGroups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[LetterGroup]
    """The largest first."""
    counted: int
    complete: bool
    """Whether all letters are counted; where there are very many, only the oldest ones are."""
