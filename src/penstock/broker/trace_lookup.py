"""Finding the lives of messages, in the words of the API."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.durations import parse_us
from penstock.errors import InvalidInput
from penstock.model.calls import FindTraces, ReadTraceBlocks
from penstock.model.names import TopicName, parse_topic, topic_name
from penstock.model.traces import Trace, TraceBlocks, TraceEvent, TracePage
from penstock.model.values import Time, parse_time
from penstock.record import compute as pc
from penstock.record.schema import BITS, parse_ulid, ulid_text
from penstock.trace.events import (
    OUTSIDE,
    TraceBlock,
    TraceKind,
    encode_block,
)
from penstock.trace.lives import BIRTHS, Link, Lived, Place, life

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.trace_log import TraceFinder

HOUR_US = 3_600_000_000
READ_BYTES_MAX = 32 << 20
"""Of a topic, in search of a key, before a page ends."""

BLOCKS_MAX = 256
"""Read in search of a topic, before a page ends."""


class _Found(NamedTuple):
    links: list[Link]
    next: str | None


def find_traces(broker: Broker, call: FindTraces) -> TracePage:
    """The page that a call asks for."""
    _check(call)
    name = None if call.topic is None else topic_name(call.topic, call.namespace)
    finder = broker.tracer.find()
    namespace = topic_name("any", call.namespace).namespace
    found = _links(broker, finder, call) if finder is not None else _Found([], None)
    lives: dict[tuple[int, int], Trace] = {}
    for link in found.links:
        assert finder is not None
        told = [lived for lived in life(finder, link) if _is_in(lived, namespace)]
        if told:
            lives.setdefault((told[0].location, told[0].nth), _told(told))
    if name is not None and not lives:
        broker.settings(name)  # what is known of a deleted topic is told; a typo is refused
    return TracePage(traces=list(lives.values()), next=found.next, dropped=broker.tracer.dropped)


def read_blocks(broker: Broker, call: ReadTraceBlocks) -> TraceBlocks:
    start = call.start
    if call.since is not None:
        start = max(start, broker.tracer.at(_us("since", call.since)))
    blocks, following, end = broker.tracer.raw(start, call.stop, call.max_bytes)
    if call.namespace is not None:
        namespace = topic_name("any", call.namespace).namespace
        blocks = [data for block in blocks if (data := _only(block, namespace)) is not None]
    return TraceBlocks(blocks=blocks, next=following, end=end)


def _check(call: FindTraces) -> None:
    ways = [call.message_id is not None, call.trace_id is not None, call.topic is not None]
    if sum(ways) != 1:
        raise InvalidInput(
            "say which messages: a message_id, a trace_id, or a topic, perhaps with partition and "
            "offset, with a key or with a time"
        )
    if (call.partition is None) != (call.offset is None):
        raise InvalidInput("a place is a partition and an offset: give both")
    if call.topic is None and (call.partition is not None or call.key is not None):
        raise InvalidInput("partition, offset and key are of a topic: give it, too")
    if call.partition is not None and call.key is not None:
        raise InvalidInput("give a partition and an offset, or a key")


def _links(broker: Broker, finder: TraceFinder, call: FindTraces) -> _Found:
    """From where the lives are followed."""
    if call.message_id is not None:
        return _Found([parse_ulid(call.message_id)], None)
    if call.trace_id is not None:
        return _Found(list(_of_trace(finder, _parse_trace_id(call.trace_id), call.limit)), None)
    assert call.topic is not None
    name = topic_name(call.topic, call.namespace)
    if call.partition is not None and call.offset is not None:
        return _Found([Place(str(name), call.partition, call.offset)], None)
    now_us = broker.clock.wall_ns() // 1000
    until_us = now_us + 1 if call.until is None else _us("until", call.until)
    since_us = until_us - HOUR_US if call.since is None else _us("since", call.since)
    if call.key is not None:
        return _of_key(broker, name, call.key.encode(), since_us, until_us, call)
    return _of_time(finder, str(name), since_us, until_us, call)


def _of_trace(finder: TraceFinder, trace_id: int, limit: int) -> Iterator[Link]:
    yield trace_id  # the id of a message that brought none
    for location, row in finder.of_trace(trace_id):
        if limit <= 0:
            return
        for nth in row.nths_of_trace(trace_id, limit):
            lived = Lived(location, row, nth)
            limit -= 1
            ulid = lived.ulid
            yield lived.place if ulid is None else ulid


def _of_time(
    finder: TraceFinder, topic: str, since_us: int, until_us: int, call: FindTraces
) -> _Found:
    """Messages to which something happened, in the order in which it was stored."""
    links: dict[Link, None] = {}
    blocks = 0
    after = -1 if call.after is None else _number(call.after)
    for location, located in finder.topic(topic, since_us, until_us, after):
        if located is None:
            blocks += 1
            if blocks > BLOCKS_MAX:
                return _Found(list(links), str(max(location - 1, 0)))
            continue
        row = located.row
        for nth in range(min(row.count, call.limit)):
            lived = Lived(located.location, row, nth)
            ulid = lived.ulid
            links.setdefault(lived.place if ulid is None else ulid)
        if len(links) >= call.limit:
            return _Found(list(islice(links, call.limit)), str(location))
    return _Found(list(links), None)


def _of_key(
    broker: Broker, name: TopicName, key: bytes, since_us: int, until_us: int, call: FindTraces
) -> _Found:
    """Messages of the topic itself that have the key, traced or not."""
    topic = broker.topic(name, create=False)
    wanted, left_bytes = pa.scalar(key, pa.binary()), READ_BYTES_MAX
    links: list[Link] = []
    at_partition, at_offset = _after(call.after)
    for partition in topic.partitions[at_partition:]:
        log = partition.log
        offset = max(log.find(since_us), log.start)
        if partition.number == at_partition:
            offset = max(offset, at_offset)
        while offset < log.end:
            if left_bytes <= 0 or len(links) >= call.limit:
                return _Found(links, f"{partition.number}-{offset}")
            read = log.read(offset, 256 << 10)
            for batch in read.batches:
                left_bytes -= batch.payload_bytes
                if batch.columns & BITS["key"] and len(links) < call.limit:
                    fits = pc.equal(batch.keys, wanted).to_numpy(zero_copy_only=False)
                    fits = fits.astype(bool) & (batch.timestamps_us() < until_us)
                    numbers = batch.offset_numbers()
                    for row in np.flatnonzero(fits).tolist():
                        if numbers[row] >= offset and len(links) < call.limit:
                            links.append(Place(str(name), partition.number, int(numbers[row])))
            offset = read.next_offset
            if len(links) >= call.limit:
                last = links[-1]
                assert isinstance(last, Place)
                offset = last.offset + 1
    return _Found(links, None)


def _told(lived: list[Lived]) -> Trace:
    """A life in the words of the API."""
    births = [each for each in lived if each.row.kind in BIRTHS]
    first = next(iter(births), lived[0])
    ulid = next((each.ulid for each in lived if each.ulid is not None), None)
    trace_ids = (each.row.trace_id(each.nth) for each in lived)
    trace_id = next((each for each in trace_ids if each is not None), None)
    place = first.place
    return Trace(
        trace_id=None if trace_id is None else f"{trace_id:032x}",
        id=None if ulid is None else ulid_text(ulid),
        topic=parse_topic(place.topic).topic,
        partition=place.partition,
        offset=None if first.row.kind in OUTSIDE else place.offset,
        events=[_event(each) for each in lived if not _is_said_better(each, lived)],
    )


def _event(lived: Lived) -> TraceEvent:
    row, ulid = lived.row, lived.ulid
    return TraceEvent(
        at_us=row.at_us,
        event=TraceKind(row.kind).name.lower(),  # type: ignore[arg-type]
        topic=parse_topic(row.topic).topic,
        partition=row.partition,
        offset=lived.place.offset,
        id=None if ulid is None else ulid_text(ulid),
        group=row.group,
        consumer=row.consumer,
        delivery_count=row.delivery_count,
        lease=f"{row.lease:015x}" if row.lease else "",
        until_us=row.until_us or None,
        error=row.error,
    )


def _is_said_better(lived: Lived, others: list[Lived]) -> bool:
    """A letter is published in its topic; that it is a letter says as much, and more."""
    if lived.row.kind != TraceKind.PUBLISHED:
        return False
    better = (TraceKind.DEAD_LETTERED, TraceKind.REDRIVEN)
    return any(each.row.kind in better and each.place == lived.place for each in others)


def _is_in(lived: Lived, namespace: str) -> bool:
    return parse_topic(lived.row.topic).namespace == namespace


def _only(data: bytes, namespace: str) -> bytes | None:
    """A block with the rows of one namespace; None if there is none."""
    rows = TraceBlock(data).rows()
    some = [row for row in rows if parse_topic(row.topic).namespace == namespace]
    if len(some) == len(rows):
        return data
    return encode_block(some) if some else None


def _parse_trace_id(text: str) -> int:
    try:
        if len(text) != 32 or not text.isascii():
            raise ValueError
        return int(text, 16)
    except ValueError:
        raise InvalidInput(f"{text!r:.100} is not a trace id: it has 32 hex digits") from None


def _after(after: str | None) -> tuple[int, int]:
    if after is None:
        return 0, 0
    partition, _, offset = after.partition("-")
    return _number(partition), _number(offset)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidInput(f"after is {text!r:.100}; give the next of the page before")
    return int(text)


def _us(name: str, value: Time) -> int:
    return parse_us(parse_time(value, name), name)
