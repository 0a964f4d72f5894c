"""What may be asked of a list: how many, which letters, and which of them; checked at the door."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, TypeVar

from penstock.broker.structs import Chosen, Letter
from penstock.errors import InvalidInput


def parse_limit(limit: int | None) -> int:
    """How many may be listed; without a limit as many as there are."""
    if limit is None:
        return 1 << 62
    if type(limit) is not int or limit < 0:
        raise InvalidInput(f"limit is {limit!r:.100}; it must be a whole number from 0 up")
    return limit


def check_where(where: Chosen | None) -> None:
    if where is not None and not callable(where):
        raise InvalidInput(
            f"where is {where!r:.100}; it must be a function that takes a letter, "
            "and says whether it is meant"
        )


class Place(NamedTuple):
    """A letter by where it lies. With its id no other one is meant that came to lie there."""

    partition: int
    offset: int
    id: str | None = None


Named: TypeAlias = Letter | Place
"""A letter that somebody was shown before."""

SomeNamed = TypeVar("SomeNamed", Letter, Named)


def parse_letters(letters: SomeNamed | Iterable[SomeNamed]) -> list[SomeNamed]:
    """The letters that somebody picked out, or InvalidInput."""
    if isinstance(letters, Named):
        return [letters]
    some = list(letters) if isinstance(letters, Iterable) else [letters]
    for each in some:
        if not isinstance(each, Named):
            raise InvalidInput(
                f"a dead letter or a list of them is wanted, as dead_letters() lists them; "
                f"not {each!r:.100}"
            )
    return some
