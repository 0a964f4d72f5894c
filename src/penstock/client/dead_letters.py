"""The dead letters of a topic: list, redrive, purge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import msgspec

from penstock.client.arguments import parse_limit
from penstock.client.link import Link
from penstock.client.waiting import Steps, run, run_async
from penstock.errors import InvalidInput
from penstock.model import calls
from penstock.model.dead_letters import (
    Letter,
    LetterFilter,
    LetterGroups,
    LetterPage,
    LetterPlace,
    RedriveTo,
)
from penstock.model.names import TopicName

_PAGE = 1000
_PLACES_MAX = 100_000  # in one request; a server takes a few times as much


class LetterCalls:
    """What can be asked about dead letters, for threads and event loops."""

    def __init__(self, link: Link, name: TopicName) -> None:
        self._link = link
        self._name = name

    def _page(self, after: str | None, limit: int) -> Steps[LetterPage]:
        return self._link.ask(
            calls.ListDeadLetters(
                namespace=self._name.namespace, topic=self._name.topic, after=after, limit=limit
            )
        )

    def _groups(self) -> Steps[LetterGroups]:
        return self._link.ask(
            calls.GroupDeadLetters(namespace=self._name.namespace, topic=self._name.topic)
        )

    def _redrive(
        self, letters: Any, where: LetterFilter | None, to: RedriveTo, limit: int | None
    ) -> Steps[int]:
        if to not in get_args(RedriveTo):
            raise InvalidInput(f"to is {to!r:.100}; allowed: {', '.join(get_args(RedriveTo))}")
        name = self._name
        return self._apply(
            calls.RedriveDeadLetters(namespace=name.namespace, topic=name.topic, to=to),
            letters,
            where,
            limit,
        )

    def _purge(self, letters: Any, where: LetterFilter | None, limit: int | None) -> Steps[int]:
        name = self._name
        every = calls.PurgeDeadLetters(namespace=name.namespace, topic=name.topic)
        return self._apply(every, letters, where, limit)

    def _apply(
        self,
        every: calls.RedriveDeadLetters | calls.PurgeDeadLetters,
        letters: Any,
        where: LetterFilter | None,
        limit: int | None,
    ) -> Steps[int]:
        """Ask for all of a topic, or for those that are chosen; so many at most."""
        _check_filter(where)
        left = parse_limit(limit)
        if letters is None and where is None:
            if limit is None:
                return (yield from self._link.ask(every)).count
            return (yield from self._oldest(every, left))
        places: list[LetterPlace] = []
        if letters is not None:
            named = _parse_letters(letters)
            places += [_place(each) for each in named if where is None or where(each)]
        else:
            after: str | None = None
            while True:
                page = yield from self._page(after, _PAGE)
                assert where is not None
                places += [_place(each) for each in page.letters if where(each)]
                after = page.next
                if after is None or len(places) >= left:
                    break
        done = 0
        for start in range(0, len(places), _PLACES_MAX):
            some = places[start : start + _PLACES_MAX]
            at_most = None if limit is None else min(left - done, _PLACES_MAX)
            if at_most == 0:
                break
            call = msgspec.structs.replace(every, letters=some, limit=at_most)
            done += (yield from self._link.ask(call)).count
        return done

    def _oldest(
        self, every: calls.RedriveDeadLetters | calls.PurgeDeadLetters, left: int
    ) -> Steps[int]:
        done = 0
        while done < left:
            some = min(left - done, _PLACES_MAX)
            count = (yield from self._link.ask(msgspec.structs.replace(every, limit=some))).count
            done += count
            if count < some:
                break
        return done


class DeadLetters(LetterCalls):
    """The dead letters of one topic."""

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[Letter]:
        return self.list()

    def count(self) -> int:
        """How many letters are neither redriven nor purged."""
        return run(self._page(None, 1)).count

    def groups(self) -> LetterGroups:
        """Letters by the reason and the first line of the error, the most frequent first."""
        return run(self._groups())

    def list(self, where: LetterFilter | None = None, limit: int | None = None) -> Iterator[Letter]:
        """Letters that are neither redriven nor purged, oldest first; those that `where` picks."""
        left = parse_limit(limit)
        _check_filter(where)
        return self._pages(where, left)

    def _pages(self, where: LetterFilter | None, left: int) -> Iterator[Letter]:
        after: str | None = None
        while left > 0:
            page = run(self._page(after, min(left, _PAGE) if where is None else _PAGE))
            for letter in page.letters:
                if left > 0 and (where is None or where(letter)):
                    left -= 1
                    yield letter
            after = page.next
            if after is None:
                return

    def redrive(
        self,
        letters: Letter | Sequence[Letter] | None = None,
        where: LetterFilter | None = None,
        *,
        to: RedriveTo = "group",
        limit: int | None = None,
    ) -> int:
        """Send letters back to their topic as new messages: these, those picked, or all; with
        `limit` so many of them at most, the oldest first.

        To the group in which each failed, and to nobody else; with `to="topic"`, as with a letter
        that names no group, to every reader of the topic.

        With both, those of the letters that `where` picks. A letter that was redriven or purged
        before is passed over; one that never was here is InvalidInput, and nothing happens.
        """
        return run(self._redrive(letters, where, to, limit))

    def purge(
        self,
        letters: Letter | Sequence[Letter] | None = None,
        where: LetterFilter | None = None,
        *,
        limit: int | None = None,
    ) -> int:
        """Throw letters away: these, those picked, or all; as `redrive` takes them."""
        return run(self._purge(letters, where, limit))


class AsyncDeadLetters(LetterCalls):
    """The same, to be awaited."""

    async def count(self) -> int:
        """How many letters are neither redriven nor purged."""
        return (await run_async(self._page(None, 1))).count

    async def groups(self) -> LetterGroups:
        """Letters by the reason and the first line of the error, the most frequent first."""
        return await run_async(self._groups())

    async def list(
        self, where: LetterFilter | None = None, limit: int | None = None
    ) -> Sequence[Letter]:
        """Letters that are neither redriven nor purged, oldest first; those that `where` picks."""
        left, after = parse_limit(limit), None
        _check_filter(where)
        found = []
        while left > 0:
            steps = self._page(after, min(left, _PAGE) if where is None else _PAGE)
            page = await run_async(steps)
            chosen = [each for each in page.letters if where is None or where(each)][:left]
            found += chosen
            left -= len(chosen)
            after = page.next
            if after is None:
                break
        return found

    async def redrive(
        self,
        letters: Letter | Sequence[Letter] | None = None,
        where: LetterFilter | None = None,
        *,
        to: RedriveTo = "group",
        limit: int | None = None,
    ) -> int:
        """Send letters back to their topic as new messages: these, those picked, or all; with
        `limit` so many of them at most, the oldest first.

        To the group in which each failed, and to nobody else; with `to="topic"`, as with a letter
        that names no group, to every reader of the topic.

        With both, those of the letters that `where` picks. A letter that was redriven or purged
        before is passed over; one that never was here is InvalidInput, and nothing happens.
        """
        return await run_async(self._redrive(letters, where, to, limit))

    async def purge(
        self,
        letters: Letter | Sequence[Letter] | None = None,
        where: LetterFilter | None = None,
        *,
        limit: int | None = None,
    ) -> int:
        """Throw letters away: these, those picked, or all; as `redrive` takes them."""
        return await run_async(self._purge(letters, where, limit))


def _check_filter(where: LetterFilter | None) -> None:
    if where is not None and not callable(where):
        raise InvalidInput(
            f"where is {where!r:.100}; it must be a function that takes a letter, "
            "and says whether it is meant"
        )


def _parse_letters(letters: Letter | Iterable[Letter]) -> list[Letter]:
    """The letters that somebody picked out, or InvalidInput."""
    if isinstance(letters, Letter):
        return [letters]
    some = list(letters) if isinstance(letters, Iterable) else [letters]
    for each in some:
        if not isinstance(each, Letter):
            raise InvalidInput(
                f"a dead letter or a list of them is wanted, as dead_letters() lists them; "
                f"not {each!r:.100}"
            )
    return some


def _place(letter: Letter) -> LetterPlace:
    """Not the letter itself, which may be long."""
    return LetterPlace(partition=letter.partition, offset=letter.message.offset, id=letter.id)
