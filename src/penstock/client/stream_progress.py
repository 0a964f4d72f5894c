"""How far a member of a stream group is, wherever its broker is. No I/O, and no lock."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable

from penstock.client.payload import DeliveredPayload
from penstock.errors import InvalidInput
from penstock.group.assignment import TopicPartition
from penstock.record.batch import Message

_logger = logging.getLogger("penstock.client")


class StreamMessage(DeliveredPayload):
    """A message of a stream. It needs no ack: reading on is what counts."""

    __slots__ = ("_message", "partition", "topic")

    def __init__(self, message: Message, place: TopicPartition) -> None:
        self._message = message
        self.topic = place.topic
        self.partition = place.partition

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.partition}@{self.offset}>"


class StreamProgress:
    """What a member has read ahead, handed out, done and committed on each of its partitions.

    A message counts as done when the next one is asked for.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self.positions: dict[TopicPartition, int] = {}
        """Where to read on."""
        self.missed = 0
        """Messages that retention dropped before they could be read."""
        self._ahead: deque[StreamMessage] = deque()
        self._current: StreamMessage | None = None
        self._done: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}

    @property
    def is_ahead(self) -> bool:
        """Whether there is a message to hand out."""
        return bool(self._ahead)

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """On each partition, the message that is handed out next."""
        return self.positions | {m.place: m.offset for m in reversed(self._ahead)}

    def read_ahead(self, messages: Iterable[StreamMessage]) -> None:
        self._ahead.extend(messages)

    def hand_out(self) -> StreamMessage:
        message = self._current = self._ahead.popleft()
        return message

    def finish_current(self) -> None:
        message, self._current = self._current, None
        if message is not None:
            place = message.place
            if place in self.positions:
                self._done[place] = message.offset + 1

    def fail_current(self) -> None:
        """The message that was handed out last is not done, and comes again."""
        self._current = None

    def forget_all_of(self, places: Collection[TopicPartition]) -> None:
        """Also what was handed out: it is not for these partitions to say what is done."""
        if self._current is not None and self._current.place in places:
            self._current = None
        self.forget(places)

    def move_to(self, place: TopicPartition, offset: int) -> None:
        """Read on from there, and call all before it done."""
        self.positions[place] = self._done[place] = offset

    def forget(self, places: Collection[TopicPartition]) -> None:
        for place in places:
            self.positions.pop(place, None)
            self._done.pop(place, None)
        if places:
            self._ahead = deque(m for m in self._ahead if m.place not in places)

    def rejoined(self) -> None:
        """What was committed as another member says nothing."""
        self._committed = {}

    def to_commit(self, held: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """What is done on the partitions that it holds; nothing if all that is committed."""
        offsets = {place: offset for place, offset in self._done.items() if place in held}
        return {} if offsets == self._committed else offsets

    def committed(self, offsets: dict[TopicPartition, int]) -> None:
        self._committed = offsets

    def passed_over(self, place: TopicPartition, count: int) -> None:
        """Retention dropped so many messages before they were read."""
        if count > 0:
            self.missed += count
            _logger.warning(
                "group %s: %d messages of %s were dropped by retention before they were read",
                self._group,
                count,
                place,
            )


def places_among(
    assigned: Collection[TopicPartition], partition: int | None, topic: str | None
) -> list[TopicPartition]:
    """Those of the assigned partitions that a `seek` means."""
    places = [
        place
        for place in assigned
        if partition in (None, place.partition) and topic in (None, place.topic)
    ]
    if not places and (partition is not None or topic is not None):
        raise InvalidInput(
            f"{topic or 'a topic'}/{partition} is not assigned to this member, which has "
            f"{', '.join(map(str, assigned)) or 'nothing'} at present"
        )
    return places
