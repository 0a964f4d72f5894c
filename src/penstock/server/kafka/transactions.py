"""Transactions of Kafka's producers.

What a producer sends within one is kept in memory, by its transactional id, and reaches the broker
when the producer ends it: as one transaction of the broker's own, messages and offsets together. So
readers never see a part that could be taken back, and a transaction that is aborted, times out or
is lost with the server has left nothing anywhere.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.errors import PenstockError, ProducerFenced, TransactionRefused
from penstock.model import calls
from penstock.model.groups import PartitionOffset
from penstock.model.names import TopicName
from penstock.model.transactions import (
    BYTES_MAX,
    MESSAGES_MAX,
    StagedMessages,
    StagedOffsets,
    StagedTransaction,
)
from penstock.record.batch import Batch
from penstock.record.schema import new_batch_ulid, ulid_text
from penstock.server.durable import durable
from penstock.server.gate import ByteBudget
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.codes import Code, Refused, refusal_of
from penstock.server.kafka.messages import NOW, Answer
from penstock.server.kafka.records_in import ProducedBatch

TIMEOUT_MS_MAX = 15 * 60_000
PRODUCERS_MAX = 10_000

Place = tuple[str, str]
"""A namespace, and a transactional id."""


class TransactionalProducer(msgspec.Struct):
    """The one that holds a transactional id, and the transaction that it is in, if any."""

    producer_id: int
    epoch: int
    """Of the broker's, by which those who held the name before are refused."""
    timeout_ns: int
    sequences: dict[tuple[TopicName, int], int] = {}
    """On each partition the number that comes next."""
    id: str = ""
    """Of the transaction; empty: there is none."""
    deadline_ns: int = 0
    messages: dict[tuple[TopicName, int], list[Batch]] = {}
    offsets: dict[str, dict[tuple[str, int], int]] = {}
    count: int = 0
    nbytes: int = 0
    ended: bool | None = None
    """How the last transaction ended, for who asks again."""


class StagedTransactions:
    """Those of all producers. Any thread may call."""

    def __init__(self, buffers: ByteBudget) -> None:
        self._buffers = buffers
        self._producers: OrderedDict[Place, TransactionalProducer] = OrderedDict()
        self._lock = threading.Lock()

    def begin_producer(self, place: Place, epoch: int, timeout_ms: int) -> TransactionalProducer:
        """Whoever held the id before is not known any more, and what it has not ended is gone."""
        producer = TransactionalProducer(
            secrets.randbelow((1 << 62) - 1) + 1, epoch, timeout_ms * 1_000_000
        )
        with self._lock:
            former = self._producers.pop(place, None)
            if former is not None:
                self._clear(former)
            self._producers[place] = producer
            if len(self._producers) > PRODUCERS_MAX:
                self._clear(self._producers.popitem(last=False)[1])
        return producer

    def find(self, place: Place, producer_id: int, now_ns: int) -> TransactionalProducer:
        """The producer that a request names, in a transaction. Raises Refused."""
        with self._lock:
            producer = self._producers.get(place)
            if producer is None:
                raise Refused(
                    Code.INVALID_PRODUCER_ID_MAPPING, "nobody holds this transactional id"
                )
            if producer.producer_id != producer_id:
                raise Refused(Code.INVALID_PRODUCER_EPOCH, "another one holds this id now")
            if not producer.id:
                producer.id = ulid_text(new_batch_ulid(now_ns))
                producer.deadline_ns, producer.ended = 0, None
            return producer

    def known(self, place: Place, producer_id: int) -> TransactionalProducer:
        """The same without beginning a transaction."""
        with self._lock:
            producer = self._producers.get(place)
        if producer is None:
            raise Refused(Code.INVALID_PRODUCER_ID_MAPPING, "nobody holds this transactional id")
        if producer.producer_id != producer_id:
            raise Refused(Code.INVALID_PRODUCER_EPOCH, "another one holds this id now")
        return producer

    def add(
        self, producer: TransactionalProducer, part: tuple[TopicName, int], given: ProducedBatch
    ) -> None:
        """Keep messages, unless they are here already. Raises Refused, or Unavailable."""
        rows = len(given.batch)
        with self._lock:
            expected = producer.sequences.get(part, given.base_sequence)
            if given.base_sequence + rows <= expected and part in producer.sequences:
                return  # sent again
            if given.base_sequence != expected:
                raise Refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, f"expected {expected}")
            nbytes = given.batch.payload_bytes
            if producer.count + rows > MESSAGES_MAX or producer.nbytes + nbytes > BYTES_MAX:
                raise Refused(
                    Code.INVALID_RECORD,
                    f"a transaction has at most {MESSAGES_MAX} messages and {BYTES_MAX} bytes",
                )
            self._buffers.take(nbytes)
            producer.messages.setdefault(part, []).append(given.batch)
            producer.count += rows
            producer.nbytes += nbytes
            producer.sequences[part] = (given.base_sequence + rows) % (1 << 31)

    def end(self, producer: TransactionalProducer, committed: bool) -> None:
        with self._lock:
            self._clear(producer)
            producer.ended = committed

    def expire(self, now_ns: int) -> None:
        """Forget producers whose transaction takes too long: they are refused from now on."""
        with self._lock:
            for place, producer in list(self._producers.items()):
                if not producer.id:
                    continue
                if not producer.deadline_ns:
                    producer.deadline_ns = now_ns + producer.timeout_ns
                elif producer.deadline_ns <= now_ns:
                    self._clear(producer)
                    producer.producer_id = 0  # nobody's
                    del self._producers[place]

    def _clear(self, producer: TransactionalProducer) -> None:
        self._buffers.give_back(producer.nbytes)
        producer.id, producer.count, producer.nbytes = "", 0, 0
        producer.messages, producer.offsets = {}, {}
        producer.ended = None


# Requests.


async def begin_producer(call: KafkaCall) -> Answer:
    """InitProducerId with a transactional id."""
    body = call.body
    timeout_ms = round(body.transaction_timeout.total_seconds() * 1000)
    code, producer_id, epoch = Code.NONE, -1, -1
    if not call.may("publish"):
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        code = Code.INVALID_TRANSACTION_TIMEOUT
    else:
        asked = calls.BeginProducer(namespace=call.namespace, producer=body.transactional_id)
        try:
            held: Any = await call.door.aside(call.api.ask, asked)
            place = call.namespace, body.transactional_id
            made = call.broker.transactions.begin_producer(place, held.epoch, timeout_ms)
            producer_id, epoch = made.producer_id, 0
        except PenstockError as exc:
            code = refusal_of(exc).code
    return Answer(throttle_time=NOW, error_code=code, producer_id=producer_id, producer_epoch=epoch)


def add_partitions(call: KafkaCall) -> Answer:
    body = call.body
    place = call.namespace, body.v3_and_below_transactional_id
    code = _begun(call, place, body.v3_and_below_producer_id)
    results = []
    for topic in body.v3_and_below_topics:
        told = code if code is not Code.NONE else _topic_code(call, topic.name)
        results.append(
            Answer(
                name=topic.name,
                results_by_partition=[
                    Answer(partition_index=number, partition_error_code=told)
                    for number in topic.partitions
                ],
            )
        )
    return Answer(throttle_time=NOW, results_by_topic_v3_and_below=results)


def add_offsets(call: KafkaCall) -> Answer:
    return Answer(throttle_time=NOW, error_code=_begun(call, _place(call), call.body.producer_id))


def commit_offsets(call: KafkaCall) -> Answer:
    """Positions that are set when the transaction ends."""
    body = call.body
    code = _begun(call, _place(call), body.producer_id)
    if code is Code.NONE and not call.may("consume"):
        code = Code.GROUP_AUTHORIZATION_FAILED
    topics = []
    for topic in body.topics:
        told = code if code is not Code.NONE else _topic_code(call, topic.name)
        if told is Code.NONE:
            producer = call.broker.transactions.known(_place(call), body.producer_id)
            offsets = producer.offsets.setdefault(body.group_id, {})
            for part in topic.partitions:
                offsets[topic.name, part.partition_index] = part.committed_offset
        topics.append(
            Answer(
                name=topic.name,
                partitions=[
                    Answer(partition_index=part.partition_index, error_code=told)
                    for part in topic.partitions
                ],
            )
        )
    return Answer(throttle_time=NOW, topics=topics)


async def end(call: KafkaCall) -> Answer:
    body = call.body
    code = Code.NONE
    try:
        producer = call.broker.transactions.known(_place(call), body.producer_id)
        if not producer.id:
            if producer.ended is not body.committed:
                raise Refused(Code.INVALID_TXN_STATE, "there is no transaction to end")
        else:
            if body.committed:
                _, told = await call.door.aside(call.api.transact, _staged(call, producer))
                await durable(told)
            call.broker.transactions.end(producer, body.committed)
    except Refused as exc:
        code = exc.code
    except ProducerFenced:
        code = Code.INVALID_PRODUCER_EPOCH
    except TransactionRefused:
        code = Code.INVALID_TXN_STATE
    except PenstockError as exc:
        code = Code.COORDINATOR_NOT_AVAILABLE if exc.retriable else refusal_of(exc).code
    return Answer(throttle_time=NOW, error_code=code)


def stage(
    call: KafkaCall, name: TopicName, partition: int, batches: Sequence[ProducedBatch]
) -> None:
    """Keep what a producer sends within its transaction. Raises Refused, or Unavailable."""
    described: Any = call.broker.topic_ids.describe(name)[1]
    if not 0 <= partition < described.settings.partitions:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} has no such partition")
    for given in batches:
        if not given.is_transactional:
            raise Refused(Code.INVALID_RECORD, "a batch of no transaction in one")
        producer = call.broker.transactions.find(
            (call.namespace, call.body.transactional_id),
            given.producer_id,
            call.api.clock.wall_ns(),
        )
        call.broker.transactions.add(producer, (name, partition), given)


def _staged(call: KafkaCall, producer: TransactionalProducer) -> StagedTransaction:
    namespace = call.namespace
    return StagedTransaction(
        id=producer.id,
        namespace=namespace,
        producer=call.body.transactional_id,
        epoch=producer.epoch,
        messages=[
            StagedMessages(topic=name.topic, batch=Batch.concat(batches), partition=number)
            for (name, number), batches in producer.messages.items()
        ],
        offsets=[
            StagedOffsets(
                group=group,
                member_id="",
                generation=0,
                offsets=[
                    PartitionOffset(str(TopicName(namespace, topic)), number, offset)
                    for (topic, number), offset in offsets.items()
                ],
            )
            for group, offsets in producer.offsets.items()
        ],
    )


def _begun(call: KafkaCall, place: Place, producer_id: int) -> Code:
    """Begin a transaction, unless the producer is in one."""
    if not call.may("publish"):
        return Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    try:
        call.broker.transactions.find(place, producer_id, call.api.clock.wall_ns())
    except Refused as exc:
        return exc.code
    return Code.NONE


def _topic_code(call: KafkaCall, topic: str) -> Code:
    try:
        call.broker.topic_ids.describe(call.topic(topic))
    except Refused as exc:
        return exc.code
    except PenstockError as exc:
        return refusal_of(exc).code
    return Code.NONE


def _place(call: KafkaCall) -> Place:
    return call.namespace, call.body.transactional_id
