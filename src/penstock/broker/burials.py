"""How a message that was given up becomes a dead letter, and what a crash on the way leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock.broker.catalog import Catalog
from penstock.broker.dead_letters import ORIGIN_HEADER, Origin, origin_of
from penstock.broker.names import TopicName
from penstock.broker.partition import Bury
from penstock.broker.topic import Topic
from penstock.delivery.offsets import Offsets
from penstock.delivery.picking import DeadLetter
from penstock.record.batch import Batch, Message

_PAGE = 1000
_LETTERS_BYTES_MAX = 16 << 20


class NoDeadLetterTopic(Exception):
    """Nothing has happened yet: the topic has to be made first."""


def burying(name: TopicName, topics: Mapping[TopicName, Topic], catalog: Catalog) -> Bury:
    """How the partitions of a topic store dead letters."""

    def bury(partition: int, group: str, letter: DeadLetter, batches: list[Batch]) -> None:
        settings = catalog.settings(name)
        if letter.reason == "expired" and not settings.dead_letter_expired:
            return
        if name.is_dead_letters or not batches:
            return
        dead = topics.get(name.dead_letters)
        if dead is None:
            raise NoDeadLetterTopic
        for batch in batches:
            for letters in to_letters(name.topic, partition, group, letter, batch):
                dead.publish(letters)
        if settings.fsync != "never":
            # The message is about to be done with: its letter has to last longer than that.
            for each in dead.partitions:
                each.log.sync()

    return bury


def finish_burials(topic: Topic, dead: Topic) -> int:
    """After a crash: messages whose letter is stored, and which are held as if it were not, are
    done. Whoever got them again could ack what is a dead letter already.

    A letter is younger than the lease under which its message was given up, so that only the
    youngest letters are looked at. If the wall clock was set back in between, one may be missed;
    its message comes again then, and there may be a second letter.
    """
    held = {
        (partition.number, group, lease.nonce): lease
        for partition in topic.partitions
        for group, queue in partition.queues.items()
        for lease in queue.state.leases
    }
    if not held:
        return 0
    since_us = min(lease.wall_us for lease in held.values())
    given_up: dict[tuple[int, str, int], set[int]] = {}
    for partition in dead.partitions:
        offset = partition.log.find(since_us)
        while offset < partition.log.end:
            read = partition.log.read(offset)
            for message in read.messages():
                origin = origin_of(message)
                place = origin.partition, origin.group, origin.nonce
                if place in held and origin.topic == topic.name.topic:
                    given_up.setdefault(place, set()).add(origin.offset)
            offset = read.next_offset
    finished = 0
    for (number, group, nonce), found in given_up.items():
        offsets = held[number, group, nonce].those_held(Offsets.of(found))
        if offsets.count:
            topic.partitions[number].finish(group, offsets, nonce)
            finished += offsets.count
    return finished


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
