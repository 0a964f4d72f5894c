"""Dead letters of a topic far away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.model.listing import check_where, parse_letters, parse_limit
from penstock.model.names import TopicName
from penstock.model.letters import LetterFilter, Letter
from penstock.client.remote.asking import JSON, Asking, decode, encode
from penstock.client.remote.http import Request
from penstock.client.remote.paths import topic_path
from penstock.client.waiting import Steps, awaiting, blocking, run
from penstock.model.topics import Count, LetterPage, letter_of

_PAGE = 1000
_PLACES_MAX = 100_000  # in one request; a server takes a few times as much


class LetterCalls:
    """What can be asked about them, for threads and event loops."""

    def __init__(self, asking: Asking, name: TopicName) -> None:
        self._asking = asking
        self._path = f"{topic_path(name)}/dead-letters"

    def ask_page(self, after: str | None, limit: int) -> Steps[LetterPage]:
        path = f"{self._path}?limit={limit}" + (f"&after={after}" if after else "")
        return decode((yield from self._asking.ask(Request("GET", path))), LetterPage)

    def ask_count(self) -> Steps[int]:
        """How many letters are neither redriven nor purged."""
        return (yield from self.ask_page(None, 1)).count

    def ask_list(
        self, where: LetterFilter | None = None, limit: int | None = None
    ) -> Steps[list[Letter]]:
        """Letters that are neither redriven nor purged, oldest first; those that `where` picks."""
        found: list[Letter] = []
        left = parse_limit(limit)
        check_where(where)
        after: str | None = None
        while left > 0:
            page = yield from self.ask_page(after, min(left, _PAGE) if where is None else _PAGE)
            letters = [letter_of(each) for each in page.letters]
            chosen = [letter for letter in letters if where is None or where(letter)][:left]
            found += chosen
            left -= len(chosen)
            after = page.next
            if after is None:
                break
        return found

    def ask_redrive(
        self, letters: Letter | Sequence[Letter] | None = None, where: LetterFilter | None = None
    ) -> Steps[int]:
        """Send letters back to their topic as new messages: these, those picked, or all."""
        return (yield from self._apply("redrive", letters, where))

    def ask_purge(
        self, letters: Letter | Sequence[Letter] | None = None, where: LetterFilter | None = None
    ) -> Steps[int]:
        """Throw letters away: these, those picked, or all."""
        return (yield from self._apply("purge", letters, where))

    def _apply(
        self, verb: str, letters: Letter | Sequence[Letter] | None, where: LetterFilter | None
    ) -> Steps[int]:
        check_where(where)
        if letters is None and where is None:
            return (yield from self._ask_apply(verb, {}))
        places: list[dict[str, Any]] = []
        if letters is not None:
            some = parse_letters(letters)
            places += map(_place, filter(where, some) if where is not None else some)
        else:
            after: str | None = None
            while True:
                page = yield from self.ask_page(after, _PAGE)
                places += map(_place, filter(where, map(letter_of, page.letters)))
                after = page.next
                if after is None:
                    break
        done = 0
        for start in range(0, len(places), _PLACES_MAX):
            body = {"letters": places[start : start + _PLACES_MAX]}
            done += yield from self._ask_apply(verb, body)
        return done

    def _ask_apply(self, verb: str, body: dict[str, Any]) -> Steps[int]:
        request = Request("POST", f"{self._path}/{verb}", encode(body), JSON)
        return decode((yield from self._asking.ask(request)), Count).count


class RemoteDeadLetters(LetterCalls):
    """The face of `DeadLetters`, for threads."""

    count = blocking(LetterCalls.ask_count)
    redrive = blocking(LetterCalls.ask_redrive)
    purge = blocking(LetterCalls.ask_purge)

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[Letter]:
        return self.list()

    def list(
        self,
        where: LetterFilter | None = None,
        limit: int | None = None,
        *,
        after: tuple[int, int] | None = None,
    ) -> Iterator[Letter]:
        """Letters that are neither redriven nor purged, oldest first; those that `where` picks."""
        left = parse_limit(limit)
        check_where(where)
        place = None if after is None else f"{after[0]}-{after[1]}"
        while left > 0:
            page = run(self.ask_page(place, min(left, _PAGE) if where is None else _PAGE))
            for letter in map(letter_of, page.letters):
                if left > 0 and (where is None or where(letter)):
                    left -= 1
                    yield letter
            place = page.next
            if place is None:
                return


class AsyncRemoteDeadLetters(LetterCalls):
    """The same for an event loop."""

    list = awaiting(LetterCalls.ask_list)
    count = awaiting(LetterCalls.ask_count)
    redrive = awaiting(LetterCalls.ask_redrive)
    purge = awaiting(LetterCalls.ask_purge)


def _place(letter: Letter) -> dict[str, Any]:
    """Not the letter itself, which may be long."""
    return {"partition": letter.partition, "offset": letter.message.offset, "id": letter.id}
