"""Transactions of Kafka's producers: all of one is there, or nothing."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.integration.kafka.clients import (
    Message,
    confluent_publish,
    confluent_read,
    confluent_settings,
    take,
)
from tests.integration.server.process import ServerProcess

WAIT_S = 20
SOME = [Message(b"k%d" % n, b"%d" % n, (), 1_700_000) for n in range(20)]


def transactional(kafka: str, id_: str = "billing") -> Producer:
    producer = Producer(
        confluent_settings(kafka, transaction_timeout_ms=5000) | {"transactional.id": id_}
    )
    producer.init_transactions(WAIT_S)
    return producer


def send(producer: Producer, topic: str, messages: list[Message]) -> None:
    for each in messages:
        producer.produce(topic, each.value, each.key, timestamp=each.timestamp_ms)
    assert producer.flush(WAIT_S) == 0


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(kafka: str, ps: Any) -> None:
    ps.create_topic("a", partitions=2)
    ps.create_topic("b")
    producer = transactional(kafka)
    producer.begin_transaction()
    send(producer, "a", SOME)
    send(producer, "b", SOME[:3])
    assert ps.peek("a") == ps.peek("b") == []
    producer.commit_transaction(WAIT_S)
    assert sorted(confluent_read(kafka, "a", 20)) == sorted(SOME)
    assert confluent_read(kafka, "b", 3, isolation_level="read_committed") == SOME[:3]
    producer.begin_transaction()
    send(producer, "b", SOME[3:5])
    producer.commit_transaction(WAIT_S)
    assert [m.value for m in ps.peek("b")] == [b"0", b"1", b"2", b"3", b"4"]


def test_nothing_is_left_of_an_aborted_one(kafka: str, ps: Any) -> None:
    ps.create_topic("a")
    producer = transactional(kafka)
    producer.begin_transaction()
    send(producer, "a", SOME)
    producer.abort_transaction(WAIT_S)
    assert ps.peek("a") == []
    producer.begin_transaction()
    send(producer, "a", SOME[:2])
    producer.commit_transaction(WAIT_S)
    assert [m.offset for m in ps.peek("a")] == [0, 1]


def test_offsets_are_committed_with_it(kafka: str, ps: Any) -> None:
    """Read, change, write: the position moves exactly if what was made of it is there."""
    ps.create_topic("in")
    ps.create_topic("out")
    confluent_publish(kafka, "in", SOME)
    consumer = Consumer(
        confluent_settings(kafka, auto_offset_reset="earliest", enable_auto_commit=False)
        | {"group.id": "workers"}
    )
    consumer.subscribe(["in"])
    producer = transactional(kafka)
    for committed in (False, True):
        found = take(consumer, 20)
        assert len(found) == 20
        producer.begin_transaction()
        send(producer, "out", found)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S
        )
        if committed:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
            consumer.seek(TopicPartition("in", 0, 0))
            assert ps.peek("out") == []
            assert not ps.stream_groups()
    assert ps.describe_stream_group("workers").committed[("in", 0)] == 20
    assert len(ps.peek("out", limit=100)) == 20
    consumer.close()


def test_who_comes_later_fences_who_was_there(kafka: str, ps: Any) -> None:
    ps.create_topic("a")
    first = transactional(kafka)
    first.begin_transaction()
    send(first, "a", SOME)
    second = transactional(kafka)
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(WAIT_S)
    assert refused.value.args[0].name() in ("_FENCED", "INVALID_PRODUCER_EPOCH")
    assert ps.peek("a") == []
    second.begin_transaction()
    send(second, "a", SOME[:1])
    second.commit_transaction(WAIT_S)
    assert [m.value for m in ps.peek("a")] == [b"0"]


def test_aiokafka(kafka: str, ps: Any) -> None:
    ps.create_topic("a")

    async def publish() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka, transactional_id="aio")
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait("a", b"kept")
            await producer.begin_transaction()
            await producer.send_and_wait("a", b"dropped")
            await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(publish())
    assert [m.value for m in ps.peek("a")] == [b"kept"]


def test_one_that_takes_too_long_is_forgotten(kafka: str, ps: Any, server: Any) -> None:
    ps.create_topic("a")
    producer = transactional(kafka)
    producer.begin_transaction()
    send(producer, "a", SOME)
    listener = server.server.kafka
    now_ns = listener.door.api.clock.monotonic_ns()
    listener.home.transactions.expire(now_ns)
    listener.home.transactions.expire(now_ns + 10 * 1_000_000_000)
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)
    assert ps.peek("a") == []
    assert listener.door.gate.buffers.taken == 0


def test_a_server_that_dies_in_the_middle_leaves_nothing_of_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    with ServerProcess(tmp_path / "data", kafka=address, auto_create=True) as process:
        confluent_publish(address, "a", SOME[:1])
        producer = transactional(address)
        producer.begin_transaction()
        send(producer, "a", SOME)
        process.kill()
        process.start()
        with pytest.raises(KafkaException):
            producer.commit_transaction(WAIT_S)
        again = transactional(address)
        again.begin_transaction()
        send(again, "a", SOME[1:3])
        again.commit_transaction(WAIT_S)
        assert confluent_read(address, "a", 3) == SOME[:3]
