"""Reading: fetches, which wait where all long polls do, and where offsets and times are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.errors import Forbidden, PenstockError
from penstock.log.base import DONE
from penstock.model import calls
from penstock.model.groups import FetchedPart, PartitionOffset
from penstock.model.names import TopicName
from penstock.record.batch import Batch
from penstock.server.kafka import records_out
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.codes import Code, Refused, refusal_of
from penstock.server.kafka.messages import NOW, Answer

_ANSWER_BYTES_MAX = 4 << 20
"""Of one answer, so that making it does not hold up the others; clients ask again at once."""
_JOINED_BYTES = 1 << 20
_JOINED_ROWS = 10_000
_SPAN_MAX = (1 << 31) - 1  # of offsets in one record batch
_WAIT_S_MAX = 30.0

_LATEST, _EARLIEST = -1, -2
_MS_MAX = 253_402_300_799_000  # the last one that a datetime can be


class _Wanted(NamedTuple):
    topic: str
    partition: int
    name: TopicName | None
    offset: int
    bytes_max: int
    code: Code = Code.NONE


class _Read(NamedTuple):
    wanted: _Wanted
    code: Code
    high_watermark: int = -1
    start: int = -1
    records: bytes = b""


def fetch(call: KafkaCall) -> Answer | Coroutine[Any, Any, Answer]:
    body = call.body
    if getattr(body, "session_id", 0):
        return _answer([], Code.FETCH_SESSION_ID_NOT_FOUND)
    wanted = _wanted(call)
    names = {each.name for each in wanted if each.name is not None}
    if not all(map(call.api.is_open, names)):
        return _fetch_when_open(call, wanted, names)
    return _fetch(call, wanted)


async def _fetch_when_open(
    call: KafkaCall, wanted: Sequence[_Wanted], names: Iterable[TopicName]
) -> Answer:
    await call.door.opened(names)
    outcome: Any = _fetch(call, wanted)
    answer: Answer = await outcome if isinstance(outcome, Coroutine) else outcome
    return answer


def _fetch(call: KafkaCall, wanted: Sequence[_Wanted]) -> Answer | Coroutine[Any, Any, Answer]:
    reads = _read(call, wanted)
    wait_s = min(call.body.max_wait.total_seconds(), _WAIT_S_MAX)
    if _is_enough(reads, call.body.min_bytes) or wait_s <= 0 or call.door.stopping:
        return _answer(reads)
    return _poll(call, wanted, wait_s)


def offset_for_leader_epoch(call: KafkaCall) -> Answer:
    """There is one epoch, whose end is that of the log."""
    topics = []
    for topic in call.body.topics:
        partitions = []
        for part in topic.partitions:
            wanted = _Wanted(topic.topic, part.partition, None, 0, 0)
            code, _, end = _bounds(call, wanted)
            partitions.append(
                Answer(error_code=code, partition=part.partition, leader_epoch=-1, end_offset=end)
            )
        topics.append(Answer(topic=topic.topic, partitions=partitions))
    return Answer(throttle_time=NOW, topics=topics)


async def list_offsets(call: KafkaCall) -> Answer:
    """Beside the event loop, because topics may have to be opened, and times looked for."""
    return await call.door.aside(_list_offsets, call)


# Fetching.


def _wanted(call: KafkaCall) -> list[_Wanted]:
    """What is asked for, beginning elsewhere each time, so that each partition has its turn."""
    found = []
    is_allowed = call.may("look")
    for topic in call.body.topics:
        name, code = None, Code.NONE
        try:
            name = call.topic(topic.topic)
        except Refused as exc:
            code = exc.code
        if not is_allowed:
            code = Code.TOPIC_AUTHORIZATION_FAILED
        found += [
            _Wanted(
                topic.topic,
                part.partition,
                name,
                part.fetch_offset,
                part.partition_max_bytes,
                code,
            )
            for part in topic.partitions
        ]
    session = call.session
    session.turn = session.turn + 1 if session.turn + 1 < len(found) else 0
    return found[session.turn :] + found[: session.turn]


def _read(call: KafkaCall, wanted: Sequence[_Wanted]) -> list[_Read]:
    left = max(1, min(call.body.max_bytes, _ANSWER_BYTES_MAX))
    reads = []
    for each in wanted:
        read = _read_one(call, each, min(each.bytes_max, left) if left > 0 else 0)
        left -= len(read.records)
        reads.append(read)
    return reads


def _read_one(call: KafkaCall, wanted: _Wanted, bytes_max: int) -> _Read:
    if wanted.code is not Code.NONE:
        return _Read(wanted, wanted.code)
    if wanted.offset < 0 or wanted.partition < 0:
        return _Read(wanted, Code.OFFSET_OUT_OF_RANGE)
    position = PartitionOffset(str(wanted.name), wanted.partition, wanted.offset)
    try:
        (part,) = call.api.fetch([position], bytes_max, durable=True).parts
    except PenstockError as exc:
        code = refusal_of(exc).code
        # Of those that a fetch may have, one after which clients fetch again.
        return _Read(wanted, Code.KAFKA_STORAGE_ERROR if code is Code.REQUEST_TIMED_OUT else code)
    if part.out_of_range:
        return _Read(wanted, Code.OFFSET_OUT_OF_RANGE, part.end, part.start)
    records = _records(part, wanted.offset, bytes_max)
    return _Read(wanted, Code.NONE, part.end, part.start, records)


def _records(part: FetchedPart, offset: int, bytes_max: int) -> bytes:
    """The messages as record batches, at least one message if there is any. Offsets that have none
    are covered, so that the reader gets over them."""
    pieces: list[bytes | memoryview] = []
    some: list[Batch] = []
    rows = size = 0
    left = bytes_max
    end = part.next_offset
    for batch in part.batches:
        fitting = len(batch)
        if batch.payload_bytes > left:
            fitting = min(fitting, max(batch.rows_within(left), 0 if some or pieces else 1))
            if fitting < len(batch):
                end = some[-1].next_offset if some else end
                if fitting:
                    batch = batch.slice(0, fitting)
                    end = batch.next_offset
                    some.append(batch)
                break
        if some and (
            size + batch.payload_bytes > _JOINED_BYTES
            or rows + len(batch) > _JOINED_ROWS
            or batch.next_offset - int(some[0].offset_numbers()[0]) > _SPAN_MAX
        ):
            pieces += records_out.encode(some, some[-1].next_offset)
            some, rows, size = [], 0, 0
        some.append(batch)
        rows += len(batch)
        size += batch.payload_bytes
        left -= batch.payload_bytes
    if some:
        first = int(some[0].offset_numbers()[0])
        pieces += records_out.encode(some, min(end, first + _SPAN_MAX))
    elif end > offset and not pieces:
        pieces.append(records_out.empty(offset, min(end, offset + _SPAN_MAX)))
    return b"".join(pieces)


def _is_enough(reads: Sequence[_Read], bytes_min: int) -> bool:
    """Whether there is something to tell; an error always is."""
    found = sum(len(read.records) for read in reads)
    return found >= max(bytes_min, 1) or any(read.code is not Code.NONE for read in reads)


async def _poll(call: KafkaCall, wanted: Sequence[_Wanted], wait_s: float) -> Answer:
    loop = asyncio.get_running_loop()
    polls = call.door.polls
    names = list(dict.fromkeys(each.name for each in wanted if each.name is not None))
    unconfirmed: set[_Wanted] = set()

    def watch(each: _Wanted) -> None:
        """What is published and not durable yet is no news when it is: look again then."""
        if each.name is None or each in unconfirmed:
            return
        future = call.api.unconfirmed(each.name, each.partition)
        if future is not DONE:
            unconfirmed.add(each)
            future.add_done_callback(lambda _: _call(loop, confirmed, each))

    def confirmed(each: _Wanted) -> None:
        unconfirmed.discard(each)
        assert each.name is not None
        polls.look(each.name)

    def ready() -> list[_Read] | None:
        if not call.door.gate.may_go_on(call.session.key):
            return None
        reads = _read(call, wanted)
        if _is_enough(reads, call.body.min_bytes):
            return reads
        for each in wanted:
            watch(each)
        return None

    poll = polls.wait(names, object(), ready, lambda found: found, wait_s)
    found = await poll.future
    return _answer(_read(call, wanted) if found is None else found)


def _call(
    loop: asyncio.AbstractEventLoop, callback: Callable[[_Wanted], None], wanted: _Wanted
) -> None:
    """From any thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, wanted)


def _answer(reads: Sequence[_Read], code: Code = Code.NONE) -> Answer:
    topics: dict[str, list[Answer]] = {}
    for read in reads:
        topics.setdefault(read.wanted.topic, []).append(
            Answer(
                partition_index=read.wanted.partition,
                error_code=read.code,
                high_watermark=read.high_watermark,
                last_stable_offset=read.high_watermark,
                log_start_offset=read.start,
                aborted_transactions=(),
                preferred_read_replica=-1,
                records=read.records,
            )
        )
    return Answer(
        throttle_time=NOW,
        error_code=code,
        session_id=0,
        responses=[
            Answer(topic=topic, partitions=partitions) for topic, partitions in topics.items()
        ],
    )


# Offsets and times.


def _list_offsets(call: KafkaCall) -> Answer:
    topics = []
    for topic in call.body.topics:
        partitions = []
        for part in topic.partitions:
            wanted = _Wanted(topic.name, part.partition_index, None, 0, 0)
            code, stamp_ms, offset = _offset_at(call, wanted, part.timestamp)
            partitions.append(
                Answer(
                    partition_index=part.partition_index,
                    error_code=code,
                    timestamp=stamp_ms,
                    offset=offset,
                    leader_epoch=-1,
                )
            )
        topics.append(Answer(name=topic.name, partitions=partitions))
    return Answer(throttle_time=NOW, topics=topics)


def _offset_at(call: KafkaCall, wanted: _Wanted, timestamp_ms: int) -> tuple[Code, int, int]:
    """The first offset at or after a time, with the time of its message; -1, -1 if there is
    none."""
    code, start, end = _bounds(call, wanted)
    if code is not Code.NONE or timestamp_ms == _LATEST:
        return code, -1, end
    if timestamp_ms == _EARLIEST:
        return code, -1, start
    if timestamp_ms < 0:
        return Code.INVALID_REQUEST, -1, -1
    name = call.topic(wanted.topic)
    at = datetime.fromtimestamp(min(timestamp_ms, _MS_MAX) / 1000, UTC)
    bounds = call.api.ask(
        calls.DescribePartition(
            topic=name.topic,
            namespace=name.namespace,
            partition=wanted.partition,
            at=at.isoformat(),
        )
    )
    assert not isinstance(bounds, Future)
    offset = bounds.at
    if offset is None or offset >= end:
        return Code.NONE, -1, -1
    (part,) = call.api.fetch(
        [PartitionOffset(str(name), wanted.partition, offset)], 1, durable=True
    ).parts
    if not part.batches:
        return Code.NONE, timestamp_ms, offset  # it has expired, and nothing came after
    batch = part.batches[0]
    return Code.NONE, int(batch.timestamps_us()[0]) // 1000, int(batch.offset_numbers()[0])


def _bounds(call: KafkaCall, wanted: _Wanted) -> tuple[Code, int, int]:
    """Where a partition begins and ends for readers."""
    try:
        call.check("describe")
        position = PartitionOffset(str(call.topic(wanted.topic)), wanted.partition, 0)
        (part,) = call.api.fetch([position], 0, durable=True).parts
    except Refused as exc:
        return exc.code, -1, -1
    except Forbidden:
        return Code.TOPIC_AUTHORIZATION_FAILED, -1, -1
    except PenstockError as exc:
        return refusal_of(exc).code, -1, -1
    return Code.NONE, part.start, part.end
