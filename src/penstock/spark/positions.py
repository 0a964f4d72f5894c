"""From what a query asks for to offsets: where each partition is to begin and to end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.errors import InvalidInput
from penstock.spark.bounds import DurableRange, Range, TopicBounds
from penstock.spark.options import EARLIEST, LATEST, Offsets, Position, Subscription
from penstock.spark.topic_reader import TopicReader


def present(place: TopicReader, subscription: Subscription) -> dict[str, TopicBounds]:
    """The partitions that a query reads, as they are now."""
    found = {}
    for topic in subscription.chosen(place.topics()):
        every = place.bounds(topic)
        for number in subscription.partitions.get(topic, ()):
            if number not in every:
                raise InvalidInput(
                    f"topic {topic} has partitions {', '.join(map(str, every))}; not {number}"
                )
        found[topic] = TopicBounds(
            {p: b for p, b in every.items() if subscription.has(topic, p)}, every.incarnation
        )
    return found


def resolve(place: TopicReader, now: Mapping[str, TopicBounds], position: Position) -> Offsets:
    """The offset of each partition that a position means."""
    for topic, each in {**position.offsets, **position.times_us}.items():
        for partition in each:
            if partition not in now.get(topic, {}):
                raise InvalidInput(
                    f"an offset is given for {topic}/{partition}, which this query does not read"
                )
    return {
        topic: {
            partition: _resolve(place, topic, partition, bounds, position)
            for partition, bounds in each.items()
        }
        for topic, each in now.items()
    }


def ranges(starts: Offsets, ends: Offsets) -> Iterator[Range]:
    for topic, each in sorted(ends.items()):
        for partition, end in sorted(each.items()):
            yield Range(topic, partition, starts[topic][partition], end)


def _resolve(
    place: TopicReader, topic: str, partition: int, bounds: DurableRange, position: Position
) -> int:
    offset = position.offsets.get(topic, {}).get(partition)
    time_us = position.times_us.get(topic, {}).get(partition)
    if offset is None and time_us is None:
        if isinstance(position.all, int):
            time_us = position.all
        else:
            offset = EARLIEST if position.all == "earliest" else LATEST
    if time_us is not None:
        found = place.find(topic, partition, time_us)
        if position.is_strict and found >= bounds.end:
            raise InvalidInput(
                f"{topic}/{partition} has no message at or after {time_us // 1000} ms since 1970, "
                "and startingOffsetsByTimestampStrategy is error; with latest it begins at the end"
            )
        return found
    if offset in (EARLIEST, LATEST):
        return bounds.start if offset == EARLIEST else bounds.end
    return offset or 0
