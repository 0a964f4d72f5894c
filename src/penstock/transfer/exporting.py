"""Messages of a topic, out of Penstock: as a file, or into another data folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import penstock
from penstock.client.client import Client
from penstock.errors import InvalidInput, TopicNotFound
from penstock.model.topics import Count
from penstock.record.batch import Message
from penstock.transfer.files import write_lines, write_parquet
from penstock.transfer.foreign import ForeignDamage, ForeignMessage, ForeignTopic, GroupPosition
from penstock.transfer.importing import Importer

_PAGE = 1000

Advance = Callable[[int], None]


def export(ps: Client, topic: str, target: Path, advance: Advance = lambda _: None) -> Count:
    """All messages that the topic holds now: to .jsonl, to .parquet, or to a data folder."""
    if target.suffix in (".jsonl", ".ndjson"):
        return Count(count=write_lines(str(target), messages_of(ps, topic, advance)))
    if target.suffix == ".parquet":
        return Count(count=write_parquet(str(target), messages_of(ps, topic, advance)))
    if target.suffix and not target.is_dir():
        raise InvalidInput(f"{target} is neither .jsonl nor .parquet nor a data folder")
    with penstock.connect(target) as other:
        source = PenstockTopic(ps, topic, advance)
        if source.is_in(other):
            raise InvalidInput(
                f"{target} has this very topic, or a copy of it: name another folder, or its "
                "messages would be there twice"
            )
        (done,) = Importer(other, source).run()
        return Count(count=done.messages)


def messages_of(
    ps: Client, topic: str, advance: Advance = lambda _: None
) -> Iterator[tuple[int, Message]]:
    """With their partitions, up to where each ends now."""
    for partition in ps.stats(topic).partitions:
        yield from _of_partition(ps, topic, partition.partition, 0, partition.end, advance)


class PenstockTopic:
    """A topic as something that can be imported elsewhere."""

    def __init__(self, ps: Client, topic: str, advance: Advance) -> None:
        self.damage: list[ForeignDamage] = []
        self._ps = ps
        self._topic = topic
        self._advance = advance
        self._stats = ps.stats(topic)
        self.source_id = f"penstock-{self._stats.incarnation or self._stats.created_us}"

    def is_in(self, ps: Client) -> bool:
        """Whether the topic that would get the messages is this one."""
        try:
            stats = ps.stats(self._topic)
        except TopicNotFound:
            return False
        mine = self._stats
        return (stats.incarnation, stats.created_us) == (mine.incarnation, mine.created_us)

    def topics(self) -> list[ForeignTopic]:
        stats = self._stats
        return [ForeignTopic(self._topic, len(stats.partitions), stats.size_bytes)]

    def positions(self) -> list[GroupPosition]:
        return [
            GroupPosition(group.group, self._topic, partition, offset)
            for group in self._stats.groups
            for partition, offset in group.committed.items()
        ]

    def read(self, topic: ForeignTopic, partition: int, after: int) -> Iterator[ForeignMessage]:
        end = self._stats.partitions[partition].end
        for _, message in _of_partition(
            self._ps, self._topic, partition, after + 1, end, self._advance
        ):
            yield ForeignMessage(
                message.offset,
                message.value,
                message.key,
                message.headers,
                message.priority,
                message.timestamp_us,
                message.expires_at_us,
            )


def _of_partition(
    ps: Client, topic: str, partition: int, start: int, end: int, advance: Advance
) -> Iterator[tuple[int, Message]]:
    while start < end:
        found = ps.peek(topic, partition=partition, at=start, limit=_PAGE)
        for message in found:
            if message.offset < end:
                yield partition, message
        advance(sum(message.nbytes for message in found))
        if not found:
            return
        start = found[-1].offset + 1
