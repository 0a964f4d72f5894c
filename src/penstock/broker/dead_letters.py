"""Dead letters: messages that were given up, each with the story of its failure.

A dead letter lies in the topic `<topic>.dlq` as the message that it was (key, value, headers,
priority), with one more header that says where it came from and why it is here, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.topic_dedup import DEDUP_HEADER, WINDOW_HEADER
from penstock.broker.withheld import LETTERS_GROUP
from penstock.delivery.offsets import Offsets
from penstock.errors import InvalidInput, TopicNotFound
from penstock.model.dead_letters import (
    ORIGIN_HEADER,
    SCHEMA_REASON,
    Letter,
    LetterFilter,
    LetterPlace,
    Origin,
    RedriveTo,
)
from penstock.model.names import TopicName, is_group_name
from penstock.record.batch import Batch, Message
from penstock.record.schema import parse_ulid, ulid_text
from penstock.trace.context import TRACEPARENT, parse_traceparent
from penstock.trace.events import ID_BYTES, TraceKind

if TYPE_CHECKING:
    from penstock.broker.partition import Partition
    from penstock.broker.publish_calls import PublishCalls
    from penstock.broker.topic import Topic
    from penstock.model.published import Placed

_PAGE = 1000
_PAGE_BYTES = 16 << 20  # far less than a frame can hold: a page is published as one


class DeadLetterQueue:
    """The dead letters of one topic."""

    def __init__(self, broker: PublishCalls, name: TopicName) -> None:
        self._broker = broker
        self._name = name

    def count(self) -> int:
        """How many letters are neither redriven nor purged, of all topics that share them."""
        return sum(p.stats(LETTERS_GROUP).depth for p in self._partitions())

    def list(self, limit: int, after: tuple[int, int] | None = None) -> Iterator[Letter]:
        """Letters that are neither redriven nor purged, oldest first.

        `after`: only those past this partition and offset.
        """
        left = limit
        where = self._mine(None)
        for partition in self._partitions():
            start = 0
            if after is not None and partition.number <= after[0]:
                if partition.number < after[0]:
                    continue
                start = after[1] + 1
            for letter in _letters_of(partition, start, where, left):
                left -= 1
                yield letter
            if left <= 0:
                return

    def redrive(
        self,
        letters: Sequence[LetterPlace] | None,
        fits: LetterFilter,
        to: RedriveTo = "group",
        limit: int | None = None,
    ) -> int:
        """Send letters back to their topic as new messages: of these, or of all, those that fit.

        To the group in which each failed: no other group or stream gets it again. One that names no
        group, and with `to="topic"` each, is for every reader.

        A letter that was redriven or purged before is passed over; one that never was here is
        InvalidInput, and nothing happens. Each letter is published before it is done with, so a
        crash between the two sends it twice.
        """
        moved = 0
        for partition, page in self._pages(letters, fits, limit):
            topic = self._broker.topic(self._name)
            never_stored = [letter for letter in page if letter.reason == SCHEMA_REASON]
            if never_stored:  # they are checked again
                again = _revived([each.message for each in never_stored])
                placed = self._broker.publish(self._name, again)
                self._note_redriven(topic, partition, never_stored, placed)
            others = [letter for letter in page if letter.reason != SCHEMA_REASON]
            for group, some in _by_group(others, to).items():
                placed = topic.redrive(_revived([letter.message for letter in some]), group)
                self._note_redriven(topic, partition, some, placed)
            for each in topic.partitions:
                each.log.sync()
            _finish(partition, page)
            moved += len(page)
        return moved

    def matching(self, letters: Sequence[LetterPlace] | None, fits: LetterFilter) -> int:
        """How many letters `redrive` or `purge` would take."""
        return sum(len(page) for _, page in self._pages(letters, fits, None))

    def purge(
        self,
        letters: Sequence[LetterPlace] | None,
        fits: LetterFilter,
        limit: int | None = None,
    ) -> int:
        """Throw letters away, as `redrive` takes them."""
        gone = 0
        for partition, page in self._pages(letters, fits, limit):
            _finish(partition, page)
            partition.traces.purged(Offsets.of([letter.message.offset for letter in page]))
            gone += len(page)
        return gone

    def _note_redriven(
        self, topic: Topic, source: Partition, letters: Sequence[Letter], placed: Sequence[Placed]
    ) -> None:
        dead = str(self._broker.dead_letters_of(self._name))
        for each in placed:
            if each.first_offset < 0:  # it is a dead letter again
                continue
            some = [letters[row] for row in each.rows]
            topic.partitions[each.partition].traces.took_over(
                TraceKind.REDRIVEN,
                Offsets.run(each.first_offset, each.first_offset + len(some)),
                each.ulid,
                b"".join(trace_id_of(letter.message, letter.origin.id) for letter in some),
                (dead, source.number, Offsets.of([letter.message.offset for letter in some])),
            )

    def _partitions(self) -> Sequence[Partition]:
        try:
            return self._broker.topic(
                self._broker.dead_letters_of(self._name), create=False
            ).partitions
        except TopicNotFound:
            self._broker.settings(self._name)  # or there is no such topic
            return ()  # there was no letter yet, or the first one is just being written

    def _pages(
        self, letters: Sequence[LetterPlace] | None, fits: LetterFilter, limit: int | None
    ) -> Iterator[tuple[Partition, Sequence[Letter]]]:
        """As many letters as are wanted, of those that are meant."""
        left = 1 << 62 if limit is None else limit
        for partition, page in self._all_pages(letters, fits):
            yield partition, page[:left]
            left -= len(page)
            if left <= 0:
                return

    def _all_pages(
        self, letters: Sequence[LetterPlace] | None, fits: LetterFilter
    ) -> Iterator[tuple[Partition, Sequence[Letter]]]:
        """The letters that are meant, each with the partition that it was read from: the topic may
        be deleted meanwhile, and others lie there in a new one."""
        fits = self._mine(fits) or fits
        if letters is not None:
            for partition, offsets in self._find(letters):
                for page in letter_pages(_letters_at(partition, offsets, fits)):
                    yield partition, page
            return
        # Not those that die meanwhile.
        for partition, end in [(each, each.log.end) for each in self._partitions()]:
            for page in letter_pages(_letters_of(partition, 0, fits, end=end)):
                yield partition, page

    def _mine(self, fits: LetterFilter | None) -> LetterFilter | None:
        """Where several topics may share one for their letters: only those of this topic."""
        try:
            if self._broker.settings(self._name).dead_letter_topic is None:
                return fits
        except TopicNotFound:
            return fits  # it was deleted, and its letters are still here
        topic = self._name.topic
        return lambda letter: letter.origin.topic == topic and (fits is None or fits(letter))

    def _find(self, places: Iterable[LetterPlace]) -> Sequence[tuple[Partition, Offsets]]:
        """Where letters lie that are neither redriven nor purged. All are checked before the first
        is touched: none may be another one than the caller means."""
        named: dict[int, dict[int, set[str]]] = {}
        for place in places:
            ids = named.setdefault(place.partition, {}).setdefault(place.offset, set())
            if place.id is not None:
                ids.add(place.id)
        partitions = self._partitions()
        found = []
        for number, ids_at in named.items():
            if not 0 <= number < len(partitions):
                self._check_ids(set().union(*ids_at.values()), None)
                continue
            partition = partitions[number]
            start, end = partition.log.start, partition.log.end
            here = Offsets.of([offset for offset in ids_at if start <= offset < end])
            known = dict(_ids_at(partition, here))
            for offset, ids in ids_at.items():
                if offset in known or offset >= end:
                    self._check_ids(ids, known.get(offset))
            waiting = partition.not_done(LETTERS_GROUP, here)
            if waiting.count:
                found.append((partition, waiting))
        return found

    def _check_ids(self, wanted: set[str], found: str | None) -> None:
        for id_ in wanted:
            if id_ != found:
                raise InvalidInput(
                    f"{id_:.100} is no dead letter of {self._name}: it is another topic's, or was "
                    "there before that topic was deleted; list the letters again"
                )


def letter_pages(
    letters: Iterable[Letter], letters_max: int = _PAGE, bytes_max: int | None = None
) -> Iterator[list[Letter]]:
    """Letters in pages that have neither too many nor, but for a single long one, too much."""
    page: list[Letter] = []
    page_bytes = 0
    bytes_max = _PAGE_BYTES if bytes_max is None else min(bytes_max, _PAGE_BYTES)
    for letter in letters:
        letter_bytes = letter.message.nbytes
        if page and (len(page) == letters_max or page_bytes + letter_bytes > bytes_max):
            yield page
            page, page_bytes = [], 0
        page.append(letter)
        page_bytes += letter_bytes
    if page:
        yield page


def _letters_of(
    partition: Partition,
    start: int,
    where: LetterFilter | None,
    limit: int = 1 << 62,
    end: int = 1 << 62,
) -> Iterator[Letter]:
    """Letters from an offset on that are neither redriven nor purged, as many as are wanted."""
    while limit > 0:
        wanted = min(limit, _PAGE) if where is None else _PAGE
        page = partition.unfinished(LETTERS_GROUP, start, wanted, _PAGE_BYTES)
        for message in page:
            if message.offset >= end:
                return
            letter = Letter(partition.number, message, origin_of(message))
            if limit > 0 and (where is None or where(letter)):
                limit -= 1
                yield letter
        if not page:
            return
        start = page[-1].offset + 1


def _letters_at(
    partition: Partition, offsets: Offsets, where: LetterFilter | None
) -> Iterator[Letter]:
    for batch in _frames_at(partition, offsets):
        for message in batch.messages():
            if message.offset in offsets:
                letter = Letter(partition.number, message, origin_of(message))
                if where is None or where(letter):
                    yield letter


def _ids_at(partition: Partition, offsets: Offsets) -> Iterator[tuple[int, str]]:
    """What lies at the offsets, done or not; those that are damaged or compacted are missing."""
    for batch in _frames_at(partition, offsets):
        for offset, id_ in zip(batch.offset_numbers().tolist(), batch.ids.to_pylist(), strict=True):
            if offset in offsets:
                yield offset, ulid_text(int.from_bytes(id_, "big"))


def _frames_at(partition: Partition, offsets: Offsets) -> Iterator[Batch]:
    """Frame by frame, so that no more than one is in memory."""
    log, at = partition.log, 0
    for offset in offsets:
        if offset >= at:
            read = log.read(max(offset, log.start), 1)
            at = read.next_offset
            yield from read


def _finish(partition: Partition, letters: Sequence[Letter]) -> None:
    partition.withdraw(Offsets.of([letter.message.offset for letter in letters]))


def _by_group(letters: Sequence[Letter], to: RedriveTo) -> dict[str | None, list[Letter]]:
    """Letters by the group that they are sent back to; None: to all."""
    found: dict[str | None, list[Letter]] = {}
    for letter in letters:
        group = letter.origin.group if to == "group" else None
        found.setdefault(group if group and is_group_name(group) else None, []).append(letter)
    return found


def trace_id_of(message: Message, id_: str) -> bytes:
    """What a letter's message brought, or else its id, as it was published."""
    context = parse_traceparent(message.headers.get(TRACEPARENT))
    if context is not None:
        return context.trace_id
    try:
        return parse_ulid(id_).to_bytes(ID_BYTES, "big")
    except InvalidInput:  # somebody published a letter with a story of his own
        return message.ulid.to_bytes(ID_BYTES, "big")


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


_NOT_REVIVED = {ORIGIN_HEADER, DEDUP_HEADER, WINDOW_HEADER}
