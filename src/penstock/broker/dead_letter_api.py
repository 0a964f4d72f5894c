"""The calls of the API that are about dead letters."""

from __future__ import annotations

from penstock.broker.api_part import ApiPart, topic_of
from penstock.broker.dead_letters import letter_pages
from penstock.broker.letter_groups import group_letters
from penstock.errors import InvalidInput, NotFound
from penstock.model import calls
from penstock.model.dead_letters import Letter, LetterGroups, LetterPage
from penstock.model.topics import Count


class DeadLetterApi(ApiPart):
    """Dead letters of a topic."""

    def list_dead_letters(self, call: calls.ListDeadLetters) -> LetterPage:
        letters = self._broker.dead_letters(topic_of(call))
        after = None if call.after is None else _letter_place(call.after)
        every = letters.list(limit=call.limit + 1, after=after)
        found = letter_pages(every, call.limit, self._answer_bytes_max)
        page = next(found, [])
        more = f"{page[-1].partition}-{page[-1].message.offset}" if next(found, None) else None
        return LetterPage(letters=page, count=letters.count(), next=more)

    def inspect_dead_letter(self, call: calls.InspectDeadLetter) -> Letter:
        name = topic_of(call)
        partition, offset = _letter_place(call.place)
        for letter in self._broker.dead_letters(name).list(limit=1, after=(partition, offset - 1)):
            if (letter.partition, letter.message.offset) == (partition, offset):
                return letter
        raise NotFound(f"topic {name} has no dead letter at {call.place}")

    def redrive_dead_letters(self, call: calls.RedriveDeadLetters) -> Count:
        letters = self._broker.dead_letters(topic_of(call))
        return Count(count=letters.redrive(call.letters, call.fits, call.to, call.limit))

    def purge_dead_letters(self, call: calls.PurgeDeadLetters) -> Count:
        letters = self._broker.dead_letters(topic_of(call))
        return Count(count=letters.purge(call.letters, call.fits, call.limit))

    def group_dead_letters(self, call: calls.GroupDeadLetters) -> LetterGroups:
        letters = self._broker.dead_letters(topic_of(call))
        return group_letters(letters.list(limit=1 << 62), self.clock)

    def count_dead_letters(self, call: calls.CountDeadLetters) -> Count:
        letters = self._broker.dead_letters(topic_of(call))
        return Count(count=letters.matching(call.letters, call.fits))


def _letter_place(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition("-")
    for part in (partition, offset):
        if not part.isascii() or not part.isdigit() or len(part) > 18:
            raise InvalidInput(f"{text!r:.100} is not the place of a letter: partition-offset")
    return int(partition), int(offset)
