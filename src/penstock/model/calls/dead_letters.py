"""Dead letters: listing, inspecting, redriving and purging them."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.model.calls.base import TopicCall, route
from penstock.model.dead_letters import (
    Letter,
    LetterGroups,
    LetterPage,
    LetterPlace,
    RedriveTo,
    error_line,
)
from penstock.model.topics import Count

LetterLimit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None


class LetterChoice(TopicCall[Count], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which letters: those named, those that all given filters fit, or, with nothing, all."""

    letters: list[LetterPlace] | None = None
    reason: Literal["max_retries", "rejected", "expired", "schema"] | None = None
    group: str | None = None
    error_contains: str | None = None
    error_line: str | None = None
    """The first line of the error is this, as far as it goes: 200 characters."""

    def fits(self, letter: Letter) -> bool:
        origin = letter.origin
        return (
            self.reason in (None, origin.reason)
            and self.group in (None, origin.group)
            and (self.error_contains is None or self.error_contains in origin.error)
            and (self.error_line is None or self.error_line == error_line(origin.error))
        )


@route("GET", "/topics/{topic}/dead-letters", "look", LetterPage, tag="dead letters")
class ListDeadLetters(TopicCall[LetterPage], frozen=True, kw_only=True):
    """Letters that are neither redriven nor purged, oldest first, page by page."""

    after: str | None = None
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    """A page has fewer if they are long: only `next` says whether it is the last."""


@route("GET", "/topics/{topic}/dead-letters/{place}", "look", Letter, tag="dead letters")
class InspectDeadLetter(TopicCall[Letter], frozen=True, kw_only=True):
    """One letter, by its `partition-offset`."""

    place: str


@route("GET", "/topics/{topic}/dead-letter-groups", "look", LetterGroups, tag="dead letters")
class GroupDeadLetters(TopicCall[LetterGroups], frozen=True, kw_only=True):
    """Letters by the reason and the first line of the error, the most frequent first."""


@route(
    "POST",
    "/topics/{topic}/dead-letters/count",
    "look",
    Count,
    tag="dead letters",
    repeatable=True,
)
class CountDeadLetters(LetterChoice, frozen=True, kw_only=True):
    """How many letters a redrive or purge with the same filters would take."""


@route("POST", "/topics/{topic}/dead-letters/redrive", "manage", Count, tag="dead letters")
class RedriveDeadLetters(LetterChoice, frozen=True, kw_only=True):
    """Send letters back to their topic as new messages: some, or all."""

    to: RedriveTo = "group"
    """`group`: only the group in which a letter failed gets it again; a letter that names none, and
    with `topic` each, is for every reader."""
    limit: LetterLimit = None
    """At most so many, the oldest first."""


@route("POST", "/topics/{topic}/dead-letters/purge", "manage", Count, tag="dead letters")
class PurgeDeadLetters(LetterChoice, frozen=True, kw_only=True):
    """Delete letters: some, or all."""

    limit: LetterLimit = None
    """At most so many, the oldest first."""
