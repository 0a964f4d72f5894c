"""Dead letters: messages that were given up, each with the story of its failure.

A dead letter lies in the topic `<topic>.dlq` as the message that it was (key, value, headers,
priority), with one more header that says where it came from and why it is here, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.names import TopicName
from penstock.broker.structs import ORIGIN_HEADER, Chosen, Letter, Origin
from penstock.broker.topic import DEDUP_HEADER
from penstock.delivery.offsets import Offsets
from penstock.errors import TopicNotFound
from penstock.record.batch import Batch, Message

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.partition import Partition

LETTERS_GROUP = "~letters"
"""On a dead-letter topic: what this group has done was redriven or purged."""

_PAGE = 1000


class DeadLetters:
    """The dead letters of one topic."""

    def __init__(self, broker: Broker, name: TopicName) -> None:
        self._broker = broker
        self._name = name

    def __len__(self) -> int:
        return self.count()

    def count(self) -> int:
        """How many letters are neither redriven nor purged."""
        return sum(p.stats(LETTERS_GROUP).depth for p in self._partitions())

    def __iter__(self) -> Iterator[Letter]:
        return self.list()

    def list(
        self,
        where: Chosen | None = None,
        limit: int | None = None,
        *,
        after: tuple[int, int] | None = None,
    ) -> Iterator[Letter]:
        """Letters that are neither redriven nor purged, oldest first; those that `where` picks.

        `after`: only those past this partition and offset.
        """
        left = 1 << 62 if limit is None else limit
        for partition in self._partitions():
            start = 0
            if after is not None and partition.number <= after[0]:
                if partition.number < after[0]:
                    continue
                start = after[1] + 1
            while left > 0:
                page = partition.unfinished(
                    LETTERS_GROUP, start, min(left, _PAGE) if where is None else _PAGE
                )
                if not page:
                    break
                start = page[-1].offset + 1
                for message in page:
                    letter = Letter(partition.number, message, origin_of(message))
                    if left > 0 and (where is None or where(letter)):
                        left -= 1
                        yield letter

    def redrive(
        self, letters: Letter | Sequence[Letter] | None = None, where: Chosen | None = None
    ) -> int:
        """Send letters back to their topic as new messages: these, those picked, or all.

        Each letter is published before it is done with, so a crash between the two sends it twice.
        """
        moved = 0
        for page in self._pages(letters, where):
            topic = self._broker.topic(self._name)
            topic.publish(_revived([letter.message for letter in page]))
            for partition in topic.partitions:
                partition.log.sync()
            self._finish(page)
            moved += len(page)
        return moved

    def purge(
        self, letters: Letter | Sequence[Letter] | None = None, where: Chosen | None = None
    ) -> int:
        """Throw letters away: these, those picked, or all."""
        gone = 0
        for page in self._pages(letters, where):
            self._finish(page)
            gone += len(page)
        return gone

    def _partitions(self) -> Sequence[Partition]:
        try:
            return self._broker.topic(self._name.dead_letters, create=False).partitions
        except TopicNotFound:
            return ()  # there was no letter yet, or the first one is just being written

    def _pages(
        self, letters: Letter | Sequence[Letter] | None, where: Chosen | None
    ) -> Iterator[Sequence[Letter]]:
        if letters is not None:
            some = [letters] if isinstance(letters, Letter) else list(letters)
            still = {(letter.partition, letter.message.offset) for letter in self.list()}
            page = [letter for letter in some if (letter.partition, letter.message.offset) in still]
            if page:
                yield page
            return
        ends = {p.number: p.log.end for p in self._partitions()}  # not those that die meanwhile
        every = self.list(where)
        while page := [
            letter
            for letter in islice(every, _PAGE)
            if letter.message.offset < ends[letter.partition]
        ]:
            yield page

    def _finish(self, letters: Sequence[Letter]) -> None:
        for partition in self._partitions():
            offsets = [x.message.offset for x in letters if x.partition == partition.number]
            if offsets:
                partition.finish(LETTERS_GROUP, Offsets.of(offsets))


_decoder = msgspec.json.Decoder(Origin)


def origin_of(message: Message) -> Origin:
    """The story of a dead letter; of a message that somebody published here, what is known."""
    data = message.headers.get(ORIGIN_HEADER)
    if data:
        with suppress(msgspec.DecodeError):
            return _decoder.decode(data)
    return Origin(
        topic="",
        partition=-1,
        offset=-1,
        id=message.id,
        group="",
        reason="unknown",
        attempts=0,
        published_at_us=message.timestamp_us,
    )


def _revived(messages: Sequence[Message]) -> Batch:
    """Dead letters as the messages that they were."""
    return Batch.build(
        [m.value for m in messages],
        keys=[m.key for m in messages],
        headers=[{k: v for k, v in m.headers.items() if k not in _NOT_REVIVED} for m in messages],
        priority=[m.priority for m in messages],
    )


_NOT_REVIVED = {ORIGIN_HEADER, DEDUP_HEADER}
