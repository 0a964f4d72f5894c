"""A program as users write it, for the type checker: it is checked, and not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_type

import msgspec

import penstock
import penstock.aio
from penstock.client.client import AsyncClient, Client
from penstock.client.received import AsyncReceivedMessage, ReceivedBatch, ReceivedMessage
from penstock.client.stream_progress import StreamMessage
from penstock.errors import DeliveryError
from penstock.model.published import Delayed, Published, PublishedBatch


class Order(msgspec.Struct):
    id: int


@dataclass
class Shipment:
    id: int


def blocking() -> None:
    with penstock.connect("./data") as ps:
        assert_type(ps, Client)
        ps.create_topic("orders", partitions=4)
        assert_type(ps.publish("orders", b"x"), Published)
        assert_type(ps.publish("orders", Order(1), key="k", headers={"a": "1"}), Published)
        assert_type(ps.publish("orders", Shipment(1), priority="high", dedup_id="1"), Published)
        assert_type(ps.publish("orders", {"id": 1}, delay="5m"), Delayed)
        assert_type(ps.publish("orders", [1, 2], deliver_at=datetime.now().astimezone()), Delayed)
        assert_type(ps.publish_batch("orders", [b"a", b"b"], keys=["k", None]), PublishedBatch)
        assert_type(ps.publish_batch("orders", [Order(1), Order(2)]), PublishedBatch)
        assert_type(ps.publish_batch("orders", [b"a"], delay="1h"), Sequence[str])
        assert_type(ps.receive("orders", "g", start="latest", wait="1s"), list[ReceivedMessage])
        for message in ps.receive("orders", group="g", max_messages=10):
            with message:
                assert_type(message.value, bytes | None)
                assert_type(message.json(Order), Order)
                assert_type(message.json(Shipment), Shipment)
                assert_type(message.json(), Any)
                assert_type(message.text(), str)
                assert_type(message.timestamp, datetime)
                assert_type(message.expires_at, datetime | None)
        batch = ps.receive_batch("orders", "g")
        assert_type(batch, ReceivedBatch)
        assert_type([each.json(Order) for each in batch], list[Order])
        assert_type(ps.ack("g", batch.receipts()), dict[str, DeliveryError])
        with ps.producer("orders") as out:
            out.send(Order(1), key="k", partition=1)
            assert_type(out.send(b"x", delay="1s").result(), int)
        with ps.stream("orders", "audit") as stream:
            assert_type(stream.next(wait="1s"), StreamMessage | None)


async def awaited() -> None:
    async with penstock.aio.connect("http://localhost:8080", api_key="...") as ps:
        assert_type(ps, AsyncClient)
        assert_type(await ps.publish("orders", Order(1)), Published)
        assert_type(await ps.publish("orders", Order(1), delay=5), Delayed)
        assert_type(await ps.publish_batch("orders", [{"id": 1}], deliver_at=[1.5]), Sequence[str])
        assert_type(await ps.receive("orders", "g"), list[AsyncReceivedMessage])
        for each in await ps.receive_batch("orders", "g"):
            await each.ack()


def wrong(ps: Client) -> None:
    ps.publish("orders", 5)  # type: ignore[call-overload]
    ps.publish("orders", b"x", delay="1s", deliver_at=5)  # type: ignore[call-overload]
    ps.receive("orders", "g", start="newest")  # type: ignore[arg-type]
    ps.publish_batch("orders", [b"x"], delay="1s", producer=(1, 0, 0))  # type: ignore[call-overload]
