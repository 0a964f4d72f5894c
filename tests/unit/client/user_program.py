"""A program as users write it, for the type checker: it is checked, and not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_type

import msgspec

import penstock
import penstock.aio
from penstock.client.client import AsyncClient, Client
from penstock.client.received import AsyncReceivedMessage, ReceivedBatch, ReceivedMessage
from penstock.client.stream_progress import StreamMessage
from penstock.errors import DeliveryError
from penstock.model.published import Delayed, Published, PublishedBatch
from penstock.model.settings import TopicSettings


class Order(msgspec.Struct):
    id: int


@dataclass
class Shipment:
    id: int


def blocking() -> None:
    with penstock.connect("./data") as ps:
        assert_type(ps, Client)
        ps.create_topic("orders", partitions=4, retention=None, backoff=("1s", 2, "1m"))
        ps.create_topic("invoices", ttl="1d", codec="zstd", weights=(5, 4, 3, 2, 1), exist_ok=True)
        assert_type(ps.alter_topic("orders", fsync="always", lag_alarm=30), TopicSettings)
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
        await ps.create_topic("orders", visibility=timedelta(seconds=9), schema_check="full")
        assert_type(await ps.alter_topic("orders", retention="7d"), TopicSettings)
        assert_type(await ps.publish("orders", Order(1)), Published)
        assert_type(await ps.publish("orders", Order(1), delay=5), Delayed)
        assert_type(await ps.publish_batch("orders", [{"id": 1}], deliver_at=[1.5]), Sequence[str])
        assert_type(await ps.receive("orders", "g"), list[AsyncReceivedMessage])
        for each in await ps.receive_batch("orders", "g"):
            await each.ack()


app = penstock.App()
app.topic("shipments", max_retries=10)


@app.consumer(app.topic("orders", partitions=4), group="billing", time_limit="30s")
async def bill(order: Order) -> None:
    await app.publish("shipments", Shipment(order.id), key="k", delay="5m")


@app.schedule("nightly", cron="30 2 * * *", retries=3, time_limit="1h")
def report() -> None:
    app.publish("reports", "done", dedup_id="1")


def tried() -> None:
    with app.test({"orders": {"max_retries": 1}}) as bench:
        bench.send("orders", Order(1), priority="high")


def wrong(ps: Client) -> None:
    ps.create_topic("orders", partition=4)  # type: ignore[call-arg]
    ps.create_topic("orders", fsync="sometimes")  # type: ignore[arg-type]
    ps.alter_topic("orders", visibility=None)  # type: ignore[arg-type]
    app.topic("orders", retries=4)  # type: ignore[call-arg]
    app.publish("orders", b"x", partitions=4)  # type: ignore[call-arg]
    ps.publish("orders", 5)  # type: ignore[call-overload]
    ps.publish("orders", b"x", delay="1s", deliver_at=5)  # type: ignore[call-overload]
    ps.receive("orders", "g", start="newest")  # type: ignore[arg-type]
    ps.publish_batch("orders", [b"x"], delay="1s", producer=(1, 0, 0))  # type: ignore[call-overload]
