"""Producing: record batches become frames of the log."""

from __future__ import annotations

import secrets
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.log.base import DONE
from penstock.model import calls
from penstock.model.names import TopicName
from penstock.model.published import ProducerSequence
from penstock.server.durable import durable
from penstock.server.kafka import transactions
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.codes import Code, Refused, refusal_of
from penstock.server.kafka.messages import NOW, Answer
from penstock.server.kafka.records_in import (
    BatchHeader,
    DecodingRoom,
    ProducedBatch,
    decode,
    read_headers,
)

NO_ANSWER = Answer()
"""What a producer that wants no acknowledgement gets."""

_ACKS_ALL = -1
# More than that in one request is decoded beside the event loop.
_LOOP_RECORDS = 10_000
_LOOP_PARTS = 1_000
_LOOP_BYTES = 2 << 20
_LOOP_PACKED_BYTES = 16 << 10
_LOOP_UNPACKED_BYTES = 1 << 20
_LOOP_HEADERS = 5_000
_UNPACKED_BYTES_MIN = 16 << 20
_BATCH_HEADERS = 500_000
_PRODUCER_IDS = 1 << 62
_NOBODY = -1


class _TakesLong(Exception):
    """More comes out of the batches of a request than their length tells."""


class _Decoded(NamedTuple):
    """The records for one partition."""

    partition: int
    name: TopicName
    batches: list[ProducedBatch]


class _Stored(NamedTuple):
    """What became of the records for one partition."""

    partition: int
    code: Code
    first_offset: int = -1
    message: str | None = None
    futures: Sequence[Future[None]] = ()


def produce(call: KafkaCall) -> Answer | Coroutine[Any, Any, Answer]:
    if not _is_short(call.body):
        return _store_aside(call)
    try:
        decoded = _decode(call, DecodingRoom(_LOOP_UNPACKED_BYTES, _LOOP_HEADERS))
    except _TakesLong:
        return _store_aside(call)
    names = {part.name for _, parts in decoded for part in parts if isinstance(part, _Decoded)}
    if not all(map(call.api.is_open, names)):
        return _store_aside(call)
    stored = _store(call, decoded)
    if call.body.acks != _ACKS_ALL or _is_durable(stored):
        return _answer(call, stored)
    return _when_durable(call, stored)


def init_producer_id(call: KafkaCall) -> Answer | Coroutine[Any, Any, Answer]:
    if call.body.transactional_id is not None:
        return transactions.begin_producer(call)
    code, producer_id, epoch = Code.NONE, secrets.randbelow(_PRODUCER_IDS - 1) + 1, 0
    if not call.may("publish"):
        code, producer_id, epoch = Code.CLUSTER_AUTHORIZATION_FAILED, -1, -1
    return Answer(throttle_time=NOW, error_code=code, producer_id=producer_id, producer_epoch=epoch)


_Topics = list[tuple[str, list[_Stored]]]
_DecodedTopics = list[tuple[str, list[_Decoded | _Stored]]]


def _is_short(body: Any) -> bool:
    """Whether it is decoded in no time, as far as the first bytes of its batches tell."""
    total = packed = records = parts = 0
    for topic in body.topic_data:
        for partition in topic.partition_data:
            data = partition.records or b""
            total += len(data)
            parts += 1
            if len(data) > 22 and data[22] & 7:
                packed += len(data)
            records += int.from_bytes(data[57:61], "big")
    return (
        total <= _LOOP_BYTES
        and packed <= _LOOP_PACKED_BYTES
        and records <= _LOOP_RECORDS
        and parts <= _LOOP_PARTS
    )


def _decode(call: KafkaCall, room: DecodingRoom | None = None) -> _DecodedTopics:
    """All records of a request, before any is stored. Raises _TakesLong if they are more than
    there is `room` for; without one, each batch may be as large as any."""
    return [
        (
            topic.name,
            [_decode_part(call, topic.name, part, room) for part in topic.partition_data],
        )
        for topic in call.body.topic_data
    ]


def _decode_part(
    call: KafkaCall, topic: str, part: Any, room: DecodingRoom | None
) -> _Decoded | _Stored:
    try:
        call.check("publish")
        if call.body.acks not in (-1, 0, 1):
            raise Refused(Code.INVALID_REQUEST, f"acks={call.body.acks}")
        name = call.topic(topic)
        headers = read_headers(part.records or b"")
        batches = [decode(each, room or _room_of(call, name, each)) for each in headers]
    except (Refused, PenstockError) as exc:
        refused = exc if isinstance(exc, Refused) else refusal_of(exc)
        if room is not None and refused.code is Code.MESSAGE_TOO_LARGE:
            raise _TakesLong from None
        return _Stored(part.index, refused.code, message=refused.message)
    return _Decoded(part.index, name, batches)


def _room_of(call: KafkaCall, name: TopicName, header: BatchHeader) -> DecodingRoom:
    bytes_max = _UNPACKED_BYTES_MIN
    if header.codec:
        bytes_max = max(bytes_max, _message_bytes_max(call, name))
    return DecodingRoom(bytes_max, _BATCH_HEADERS)


def _store(call: KafkaCall, topics: _DecodedTopics) -> _Topics:
    return [(name, [_store_part(call, part) for part in parts]) for name, parts in topics]


def _store_part(call: KafkaCall, part: _Decoded | _Stored) -> _Stored:
    if isinstance(part, _Stored):
        return part  # it was refused
    number, name, batches = part
    try:
        if call.body.transactional_id is not None:
            transactions.stage(call, name, number, batches)
            return _Stored(number, Code.NONE)  # where is known when it is committed
        placed = [_publish(call, name, number, produced) for produced in batches]
    except (Refused, PenstockError) as exc:
        refused = exc if isinstance(exc, Refused) else refusal_of(exc)
        return _Stored(number, refused.code, message=refused.message)
    code = Code.NONE
    if placed[0][0] < 0:  # stored so long ago that nobody knows where
        code = Code.DUPLICATE_SEQUENCE_NUMBER
    return _Stored(number, code, placed[0][0], None, [future for _, future in placed])


def _publish(
    call: KafkaCall, name: TopicName, partition: int, produced: ProducedBatch
) -> tuple[int, Future[None]]:
    """Where the messages are, and when that is durable."""
    if produced.is_transactional:
        raise Refused(Code.INVALID_TXN_STATE, "there is no such transaction")
    producer = None
    if produced.producer_id != _NOBODY:
        if produced.producer_id <= 0 or produced.base_sequence < 0:
            raise Refused(
                Code.INVALID_PRODUCER_ID_MAPPING, f"{produced.producer_id} is no producer of ours"
            )
        producer = ProducerSequence(
            produced.producer_id, produced.producer_epoch, produced.base_sequence, wraps=True
        )
    (placed,) = call.api.publish(name, produced.batch, partition=partition, producer=producer)
    return placed.first_offset, placed.durable


def _message_bytes_max(call: KafkaCall, name: TopicName) -> int:
    try:
        described = call.api.ask(calls.DescribeTopic(topic=name.topic, namespace=name.namespace))
    except PenstockError:  # there is none yet
        return 0
    assert not isinstance(described, Future)
    return described.settings.message_bytes_max


def _is_durable(topics: _Topics) -> bool:
    return all(future is DONE for _, parts in topics for part in parts for future in part.futures)


async def _store_aside(call: KafkaCall) -> Answer:
    stored = await call.door.aside(_decode_and_store, call)
    if call.body.acks != _ACKS_ALL:
        return _answer(call, stored)
    return await _when_durable(call, stored)


def _decode_and_store(call: KafkaCall) -> _Topics:
    # One partition after the other, so that not all of them are in memory at once.
    return [
        (
            topic.name,
            [
                _store_part(call, _decode_part(call, topic.name, part, None))
                for part in topic.partition_data
            ],
        )
        for topic in call.body.topic_data
    ]


async def _when_durable(call: KafkaCall, topics: _Topics) -> Answer:
    return _answer(
        call, [(name, [await _settled(part) for part in parts]) for name, parts in topics]
    )


async def _settled(part: _Stored) -> _Stored:
    try:
        for future in part.futures:
            await durable(future)
    except PenstockError as exc:
        refused = refusal_of(exc)
        return _Stored(part.partition, refused.code, message=refused.message)
    return part


def _answer(call: KafkaCall, topics: _Topics) -> Answer:
    if not call.body.acks:
        for _, parts in topics:
            for part in parts:
                if part.code is not Code.NONE:  # all that can be told: the connection ends
                    raise Refused(part.code, part.message or "")
        return NO_ANSWER
    return Answer(
        throttle_time=NOW,
        responses=[
            Answer(
                name=name,
                partition_responses=[
                    Answer(
                        index=part.partition,
                        error_code=part.code,
                        base_offset=part.first_offset,
                        log_append_time=None,
                        log_start_offset=-1,
                        record_errors=(),
                        error_message=part.message,
                    )
                    for part in parts
                ],
            )
            for name, parts in topics
        ],
    )
