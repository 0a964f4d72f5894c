"""Publishing what a foreign source holds: each message once, however often that is tried.

How far an import came is kept in the `attributes` of the topic, after messages were stored; each
message has a deduplication id as well, for those that were stored and not noted when an import was
interrupted. Partition goes to partition. Messages that outlived their TTL are left out, those that
are not yet visible are delayed, and groups get the positions that they had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.client.client import Client
from penstock.errors import TopicNotFound
from penstock.model.dead_letters import ORIGIN_HEADER, Origin
from penstock.model.names import is_group_name
from penstock.model.published import PublishedBatch
from penstock.transfer.foreign import Foreign, ForeignMessage, ForeignTopic, GroupPosition, Imported
from penstock.transfer.goqueue import letter_bytes, letter_of

_BATCH_MESSAGES = 1000
_BATCH_BYTES = 4 << 20
_NOTE_EVERY_S = 2.0
_WINDOW = "14d"
_NOBODY = "00000000000000000000000000"

Advance = Callable[[str, int], None]
"""Told of the topic and of so many bytes that were read."""


class Importer:
    def __init__(
        self,
        ps: Client,
        source: Foreign,
        *,
        advance: Advance = lambda name, count: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._ps = ps
        self._source = source
        self._advance = advance
        self._now = now
        self._positions = source.positions()

    def run(self, names: dict[str, str] | None = None) -> list[Imported]:
        """Import all topics, or those named here, as what they are called here."""
        done = []
        for topic in self._source.topics():
            if names is None or topic.name in names:
                done.append(self._topic(topic, (names or {}).get(topic.name, topic.name)))
        return done

    def _topic(self, topic: ForeignTopic, name: str) -> Imported:
        result = Imported(topic=name)
        kept = self._settings(name, topic.partitions)
        for partition in range(topic.partitions):
            marks = _Marks(
                each
                for each in self._positions
                if (each.topic, each.partition) == (topic.name, partition)
            )
            key = f"import.{self._source.source_id}.{topic.name}.{partition}"
            noted = _noted(kept.get(key))
            marks.offsets |= noted.offsets
            noted_at = self._now()
            last = noted.last
            messages = self._source.read(topic, partition, last)
            for batch in _batches(messages, marks):
                result.messages += len(batch)
                self._publish(topic, name, partition, batch, result, marks)
                last = batch[-1].number
                self._advance(name, sum(_size(each) for each in batch))
                if self._now() - noted_at > _NOTE_EVERY_S:
                    self._note(name, key, _Noted(last, marks.offsets, noted.has_positions))
                    noted_at = self._now()
            if not noted.has_positions:
                result.positions += self._set_positions(name, partition, marks)
            if last > noted.last or not noted.has_positions:
                self._note(name, key, _Noted(last, {}, True))
        return result

    def _publish(
        self,
        topic: ForeignTopic,
        name: str,
        partition: int,
        batch: Sequence[ForeignMessage],
        result: Imported,
        marks: _Marks,
    ) -> None:
        now_us = int(self._now() * 1e6)
        alive = [each for each in batch if each.expires_us is None or each.expires_us > now_us]
        result.expired += len(batch) - len(alive)
        if topic.dead_letters_of is not None:
            alive = [_as_letter(each, topic.dead_letters_of) for each in alive]
        waiting = [each for each in alive if (each.deliver_at_us or 0) > now_us]
        ready = [each for each in alive if (each.deliver_at_us or 0) <= now_us]
        ids = f"{self._source.source_id}:{topic.name}:{partition}"
        for some in _by_expiry(ready):
            stored = self._ps.publish_batch(
                name,
                [each.value for each in some],
                **self._columns(some, now_us),
                partition=partition,
                dedup_ids=[f"{ids}:{each.number}" for each in some],
                dedup_window=_WINDOW,
            )
            marks.stored(some, stored)
            result.known += sum(len(x.rows) for x in stored.placed if x.duplicate)
        for some in _by_expiry(waiting):
            result.delayed += len(some)
            self._ps.publish_batch(
                name,
                [each.value for each in some],
                **self._columns(some, now_us),
                deliver_at=[each.deliver_at_us / 1e6 for each in some],  # type: ignore[operator]
                partition=partition,
                dedup_ids=[f"{ids}:{each.number}" for each in some],
                dedup_window=_WINDOW,
            )

    def _columns(self, some: Sequence[ForeignMessage], now_us: int) -> dict[str, Any]:
        columns: dict[str, Any] = {
            "keys": [each.key for each in some],
            "headers": [dict(each.headers) for each in some],
            "priority": [each.priority for each in some],
        }
        expires_us = some[0].expires_us
        if expires_us is not None:
            columns["ttl"] = (expires_us - max(now_us, some[0].deliver_at_us or 0)) / 1e6
        return columns

    def _set_positions(self, name: str, partition: int, marks: _Marks) -> int:
        """Groups of this import go on where they were; one that is here already is left alone."""
        count = 0
        (end,) = [p.end for p in self._ps.stats(name).partitions if p.partition == partition]
        for position in marks.positions:
            offset = marks.offsets.get(position.next_number, end)
            self._ps.seek(name, position.group, offset, partition=partition)
            count += 1
        return count

    def _settings(self, name: str, partitions: int) -> dict[str, str]:
        """The topic's attributes; it is made, or gets the partitions that it lacks."""
        try:
            known = self._ps.describe_topic(name)
        except TopicNotFound:
            return dict(self._ps.create_topic(name, partitions=partitions).attributes)
        if known.partitions < partitions:
            known = self._ps.alter_topic(name, partitions=partitions)
        return dict(known.attributes)

    def _note(self, name: str, key: str, noted: _Noted) -> None:
        self._ps.sync()  # what is noted as stored lasts
        text = msgspec.json.encode(noted).decode()
        attributes = {**self._ps.describe_topic(name).attributes, key: text}
        self._ps.alter_topic(name, attributes=attributes)


class _Noted(msgspec.Struct, array_like=True):
    """How far the import of a partition came."""

    last: int = -1
    offsets: dict[int, int] = {}
    """Where the positions of groups are, as far as they were passed."""
    has_positions: bool = False
    """Groups have got theirs, and go on by themselves from here."""


def _noted(text: str | None) -> _Noted:
    return _Noted() if text is None else msgspec.json.decode(text, type=_Noted)


class _Marks:
    """The positions of groups on a partition, and where they are once messages are stored."""

    def __init__(self, positions: Iterable[GroupPosition]) -> None:
        self.positions = list(positions)
        self.numbers = sorted({each.next_number for each in self.positions})
        self.offsets: dict[int, int] = {}

    def stored(self, some: Sequence[ForeignMessage], stored: PublishedBatch) -> None:
        """Batches end before each position, so that it is where one begins."""
        first = some[0].number
        for number in self.numbers:
            if number not in self.offsets and first >= number:
                at = next((each.first_offset for each in stored.placed), -1)
                if at >= 0:
                    self.offsets[number] = at


def _batches(messages: Iterator[ForeignMessage], marks: _Marks) -> Iterator[list[ForeignMessage]]:
    batch: list[ForeignMessage] = []
    batch_bytes = 0
    numbers = list(marks.numbers)
    for message in messages:
        passes = bool(numbers) and message.number >= numbers[0]
        while numbers and message.number >= numbers[0]:
            numbers.pop(0)
        full = len(batch) == _BATCH_MESSAGES or batch_bytes > _BATCH_BYTES
        if batch and (passes or full):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(message)
        batch_bytes += _size(message)
    if batch:
        yield batch


def _by_expiry(messages: Sequence[ForeignMessage]) -> Iterator[list[ForeignMessage]]:
    """A TTL is for all messages of a call; those with the same end go together, in order."""
    run: list[ForeignMessage] = []
    for message in messages:
        same = run and (run[0].expires_us, run[0].expires_us and run[0].deliver_at_us) == (
            message.expires_us,
            message.expires_us and message.deliver_at_us,
        )
        if run and not same:
            yield run
            run = []
        run.append(message)
    if run:
        yield run


def _as_letter(message: ForeignMessage, of: str) -> ForeignMessage:
    """A dead letter as Penstock has them: the message that it was, and its story."""
    headers = dict(message.headers)
    attempts, error, partition, offset, reason = 0, "", -1, -1, "max_retries"
    group, consumer = "", ""
    value, key = message.value, message.key
    letter = letter_of(message)
    if letter is not None:
        value, key = letter_bytes(letter.original_value), letter_bytes(letter.original_key)
        attempts, error = letter.delivery_attempts, letter.last_error
        partition, offset = letter.original_partition, letter.original_offset
        reason = letter.why or reason
        group = letter.last_group if is_group_name(letter.last_group) else ""
        consumer = letter.last_consumer
    else:
        attempts = int(headers.pop("dlq.retry_count", None) or b"0")
        error = (headers.pop("dlq.failure_reason", None) or b"").decode("utf-8", "replace")
        offset = int(headers.pop("dlq.original_msg_id", None) or b"-1")
        headers.pop("dlq.last_failure", None)
    origin = Origin(
        topic=of,
        partition=partition,
        offset=offset,
        id=_NOBODY,
        group=group,
        consumer=consumer,
        reason=reason,
        attempts=attempts,
        published_at_us=message.timestamp_us or 0,
        error=error,
    )
    headers[ORIGIN_HEADER] = msgspec.json.encode(origin)
    return message._replace(value=value, key=key, headers=headers)


def _size(message: ForeignMessage) -> int:
    return len(message.value or b"") + len(message.key or b"") + 64
