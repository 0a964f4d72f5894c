"""Dead letters: list, inspect, redrive, purge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from penstock.broker.dead_letters import DeadLetters, pages
from penstock.broker.listing import Place
from penstock.broker.structs import Letter
from penstock.errors import InvalidInput, NotFound
from penstock.server.http.endpoints import Call, Table
from penstock.wire.topics import Count, LetterChoice, LetterPage, LetterView, letter_view

table = Table("dead letters")


class PageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    after: str | None = None
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    """A page has fewer if they are long: only `next` says whether it is the last."""


@table.add(
    "GET", "/topics/{topic}/dead-letters", right="look", options=PageOptions, result=LetterPage
)
async def list_dead_letters(call: Call) -> LetterPage:
    """Letters that are neither redriven nor purged, oldest first, page by page."""
    options: PageOptions = call.options
    after = None if options.after is None else _place(options.after)
    letters = _letters(call)

    def read() -> LetterPage:
        every = letters.list(limit=options.limit + 1, after=after)
        found = pages(every, options.limit, call.door.config.body_bytes_max)
        page = next(found, [])
        more = _text(page[-1]) if next(found, None) else None
        shown = [letter_view(letter) for letter in page]
        return LetterPage(letters=shown, count=letters.count(), next=more)

    return await call.door.read_aside(read)


@table.add("GET", "/topics/{topic}/dead-letters/{place}", right="look", result=LetterView)
async def inspect_dead_letter(call: Call) -> LetterView:
    """One letter, by its `partition-offset`."""
    place = _place(call.parameters["place"])
    letters = _letters(call)

    def find() -> LetterView:
        for letter in letters.list(limit=1, after=(place[0], place[1] - 1)):
            if (letter.partition, letter.message.offset) == place:
                return letter_view(letter)
        raise NotFound(f"topic {call.topic} has no dead letter at {call.parameters['place']}")

    return await call.door.read_aside(find)


@table.add(
    "POST",
    "/topics/{topic}/dead-letters/redrive",
    right="manage",
    body=LetterChoice,
    body_optional=True,
    result=Count,
)
async def redrive(call: Call) -> Count:
    """Send letters back to their topic as new messages: some, or all."""
    letters = _letters(call)
    return Count(count=await call.door.aside(_apply, letters.redrive, call.body))


@table.add(
    "POST",
    "/topics/{topic}/dead-letters/purge",
    right="manage",
    body=LetterChoice,
    body_optional=True,
    result=Count,
)
async def purge_dead_letters(call: Call) -> Count:
    """Throw letters away: some, or all."""
    letters = _letters(call)
    return Count(count=await call.door.aside(_apply, letters.purge, call.body))


def _apply(apply: Callable[..., int], choice: LetterChoice) -> int:
    if choice.letters is None:
        return apply(None, choice.fits)
    return apply([Place(e.partition, e.offset, e.id) for e in choice.letters], choice.fits)


def _letters(call: Call) -> DeadLetters:
    return call.broker.dead_letters(call.topic)


def _text(letter: Letter) -> str:
    return f"{letter.partition}-{letter.message.offset}"


def _place(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition("-")
    for part in (partition, offset):
        if not part.isascii() or not part.isdigit() or len(part) > 18:
            raise InvalidInput(f"{text!r:.100} is not the place of a letter: partition-offset")
    return int(partition), int(offset)
