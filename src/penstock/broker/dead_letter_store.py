"""How a message that was given up becomes a dead letter, and what a crash on the way leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from penstock.broker.catalog import Catalog
from penstock.broker.dead_letters import origin_of
from penstock.broker.topic import Topic
from penstock.broker.tracer import trace_ids_of
from penstock.delivery.offsets import Offsets
from penstock.delivery.picking import DeadLetter
from penstock.errors import DiskFull, PenstockError
from penstock.log.base import PartitionLog
from penstock.model.dead_letters import ORIGIN_HEADER, Origin
from penstock.model.names import TopicName
from penstock.record.batch import Batch, Message
from penstock.trace.events import TraceKind

_PAGE = 1000
_LETTERS_BYTES_MAX = 16 << 20
_LETTERS_LOOKED_AT_MAX = 10_000


class NoDeadLetterTopic(Exception):
    """Nothing has happened yet: the topic, or its partition, has to be made first."""


class DeadLetterTopicStore:
    """The dead letters of a topic, as its partitions see them: a place to store them."""

    def __init__(
        self, name: TopicName, topics: Mapping[TopicName, Topic], catalog: Catalog
    ) -> None:
        self._name = name
        self._topics = topics
        self._catalog = catalog

    def keeps(self, letter: DeadLetter) -> bool:
        """Whether such messages are stored at all."""
        settings = self._catalog.settings(self._name)
        if not settings.dead_letters or self._catalog.is_dead_letters(self._name):
            return False
        return letter.reason != "expired" or settings.dead_letter_expired

    def store(self, partition: int, group: str, letter: DeadLetter, batches: list[Batch]) -> None:
        """Store messages as dead letters; when this returns they are as safe as they will be."""
        if not batches:
            return
        dead = self._dead()
        if dead is None or partition >= len(dead.partitions):
            raise NoDeadLetterTopic
        traces, origin = dead.partitions[partition].traces, str(self._name)
        for batch in batches:
            offsets, row = batch.offset_numbers(), 0
            for letters in to_letters(self._name.topic, partition, group, letter, batch):
                (placed,) = dead.publish(letters, partition=partition)
                stop = row + len(letters)
                traces.took_over(
                    TraceKind.DEAD_LETTERED,
                    Offsets.run(placed.first_offset, placed.first_offset + len(letters)),
                    placed.ulid,
                    trace_ids_of(batch.slice(row, len(letters))),
                    (origin, partition, Offsets.of(offsets[row:stop])),
                    group,
                    letter.error or letter.reason,
                )
                row = stop
        if self._catalog.settings(self._name).fsync != "never":
            # The message is about to be done with: its letter has to last longer than that.
            dead.partitions[partition].log.ordered()

    def ends(self) -> list[int]:
        """Where the letters end, in each partition of their topic; no crash takes one below."""
        dead = self._dead()
        return [] if dead is None else [each.log.durable_end for each in dead.partitions]

    def sync(self) -> bool:
        """Try to make all letters durable; whether they are."""
        dead = self._dead()
        logs = [each.log for each in dead.partitions] if dead else []
        for log in logs:
            with suppress(PenstockError):
                log.sync()
        return all(log.durable_end == log.end for log in logs)

    def since(self, ends: Sequence[int]) -> Iterator[Origin]:
        """Where the letters come from that were stored since they ended there, and will last."""
        dead = self._dead()
        for partition in dead.partitions if dead else ():
            known = partition.number < len(ends)
            yield from _origins(partition.log, ends[partition.number] if known else 0)

    def _dead(self) -> Topic | None:
        if self._catalog.is_dead_letters(self._name):
            return None
        return self._topics.get(self._catalog.dead_letters_of(self._name))


def finish_dead_letters(topic: Topic, store: DeadLetterTopicStore) -> int:
    """After a crash: messages whose letter is stored are done, even if the ledger does not know.

    If they were handed out again, a dead letter could be acked as well. A checkpoint covers all
    letters before it, so that only those since the oldest checkpoint are looked at.
    """
    known = [partition.letters_known for partition in topic.partitions]
    if not store.ends() and any(known):
        # Their topic is gone. If it is made again, its letters are all to be looked at.
        checkpoint_all(topic)
    stored = 0
    finished = 0
    for origin in store.since([min(ends) for ends in zip(*known, strict=False)]):
        stored += 1
        if origin.topic == topic.name.topic and 0 <= origin.partition < len(topic.partitions):
            finished += topic.partitions[origin.partition].finish_dead_letter(origin)
    if stored > _LETTERS_LOOKED_AT_MAX:
        checkpoint_all(topic)  # so that nobody has to look at as many again
    return finished


def checkpoint_all(topic: Topic) -> None:
    """Note where the dead letters of a topic end now, if there is room to do so."""
    with suppress(DiskFull):
        for partition in topic.partitions:
            partition.checkpoint()


def _origins(log: PartitionLog, offset: int) -> Iterator[Origin]:
    end = log.durable_end
    if offset > end:  # they were lost, in a topic that has no fsync
        offset = 0
    offset = max(offset, log.start)
    while offset < end:
        read = log.read(offset)
        for message in read.messages():
            if message.offset < end:
                yield origin_of(message)
        offset = read.next_offset


def to_letters(
    topic: str, partition: int, group: str, letter: DeadLetter, batch: Batch
) -> Iterator[Batch]:
    """Messages as the dead letters that they become, in batches that are not too large.

    Each letter is longer than its message was, and so is a batch of them.
    """
    rows = max(1, min(_PAGE, _LETTERS_BYTES_MAX * len(batch) // (batch.nbytes + 1)))
    for start in range(0, len(batch), rows):
        messages = batch.slice(start, rows).messages()
        yield _letters(topic, partition, group, letter, messages)


def _letters(
    topic: str, partition: int, group: str, letter: DeadLetter, messages: Sequence[Message]
) -> Batch:
    headers = []
    for message in messages:
        origin = Origin(
            topic=topic,
            partition=partition,
            offset=message.offset,
            id=message.id,
            group=group,
            reason=letter.reason,
            attempts=letter.attempts,
            published_at_us=message.timestamp_us,
            first_delivery_us=letter.first_delivery_us,
            last_delivery_us=letter.last_delivery_us,
            consumer=letter.consumer,
            error=letter.error,
            nonce=letter.nonce,
        )
        headers.append({**message.headers, ORIGIN_HEADER: msgspec.json.encode(origin)})
    return Batch.build(
        [m.value for m in messages],
        keys=[m.key for m in messages],
        headers=headers,
        priority=[m.priority for m in messages],
    )
