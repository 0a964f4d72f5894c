"""The clients that people have, each with the same few verbs. None of them is changed."""

from __future__ import annotations

import asyncio
import subprocess
import time
import warnings
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

import aiokafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of how it reads its own files
    import kafka

WAIT_S = 20.0


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


def confluent_settings(address: str, **settings: Any) -> dict[str, Any]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": address, "log_level": 0} | given


def confluent_publish(
    address: str, topic: str, messages: Sequence[Message], **settings: Any
) -> None:
    producer = Producer(confluent_settings(address, linger_ms=5, **settings))
    failed: list[KafkaError] = []
    for each in messages:
        stamp = {} if each.timestamp_ms is None else {"timestamp": each.timestamp_ms}
        producer.produce(
            topic,
            each.value,
            each.key,
            headers=list(each.headers),
            on_delivery=lambda error, _: failed.append(error) if error else None,
            **stamp,
        )
    left = producer.flush(WAIT_S)
    if failed:
        raise KafkaException(failed[0])
    assert not left, f"{left} messages were not delivered"


def confluent_read(
    address: str, topic: str, count: int, *, group: str = "readers", **settings: Any
) -> list[Message]:
    """So many messages, as a member of a group, which commits that it has read them."""
    consumer = Consumer(
        confluent_settings(address, auto_offset_reset="earliest", **settings) | {"group.id": group}
    )
    consumer.subscribe([topic])
    found = take(consumer, count)
    if found:
        consumer.commit(asynchronous=False)
    consumer.close()
    return found


def take(consumer: Consumer, count: int, wait_s: float = WAIT_S) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + wait_s
    while len(found) < count and time.monotonic() < deadline:
        for each in consumer.consume(count - len(found), 0.2):
            assert each.error() is None, each.error()
            found.append(
                Message(
                    each.key(),
                    each.value(),
                    tuple(each.headers() or ()),
                    each.timestamp()[1],
                )
            )
    return found


def kafka_python_publish(
    address: str, topic: str, messages: Sequence[Message], **settings: Any
) -> None:
    with closing(kafka.KafkaProducer(bootstrap_servers=address, **settings)) as producer:
        futures = [
            producer.send(
                topic,
                each.value,
                each.key,
                headers=list(each.headers),
                timestamp_ms=each.timestamp_ms,
            )
            for each in messages
        ]
        for future in futures:
            future.get(WAIT_S)


def kafka_python_read(
    address: str, topic: str, count: int, *, group: str = "readers", **settings: Any
) -> list[Message]:
    found: list[Message] = []
    with closing(
        kafka.KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            consumer_timeout_ms=round(WAIT_S * 1000),
            **settings,
        )
    ) as consumer:
        for each in consumer:
            found.append(Message(each.key, each.value, tuple(each.headers), each.timestamp))
            if len(found) == count:
                break
        consumer.commit()
    return found


def aiokafka_publish(
    address: str, topic: str, messages: Sequence[Message], **settings: Any
) -> None:
    async def publish() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, **settings)
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    each.value,
                    each.key,
                    headers=list(each.headers),
                    timestamp_ms=each.timestamp_ms,
                )
                for each in messages
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(publish())


def aiokafka_read(
    address: str, topic: str, count: int, *, group: str = "readers", **settings: Any
) -> list[Message]:
    async def read() -> list[Message]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            **settings,
        )
        await consumer.start()
        try:
            found: list[Message] = []
            deadline = time.monotonic() + WAIT_S
            while len(found) < count and time.monotonic() < deadline:
                for each in (await consumer.getmany(timeout_ms=200)).values():
                    found += [
                        Message(one.key, one.value, tuple(one.headers), one.timestamp)
                        for one in each
                    ]
            await consumer.commit()
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())


CLIENTS: dict[str, tuple[Any, Any]] = {
    "confluent": (confluent_publish, confluent_read),
    "kafka-python": (kafka_python_publish, kafka_python_read),
    "aiokafka": (aiokafka_publish, aiokafka_read),
}
"""How each publishes and reads."""


def kcat(address: str, *arguments: str, given: str | None = None) -> str:
    done = subprocess.run(
        ["kcat", "-b", address, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=WAIT_S * 2,
        check=True,
    )
    return done.stdout
