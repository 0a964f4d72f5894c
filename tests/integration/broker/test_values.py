"""Values that are objects: published as JSON, and read as what they were."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.errors import InvalidInput, InvalidPayload, PartitionNotFound

JSON = {"content-type": b"application/json"}


class Order(msgspec.Struct):
    id: int
    items: list[str] = []


@dataclass
class Shipment:
    id: int
    sent: datetime


class Model:
    """As pydantic's models are."""

    def __init__(self, id_: int) -> None:
        self.id = id_

    def model_dump_json(self) -> str:
        return f'{{"id":{self.id}}}'

    @classmethod
    def model_validate_json(cls, data: bytes) -> Model:
        return cls(msgspec.json.decode(data)["id"])


@pytest.fixture
def orders(ps: Any) -> Any:
    ps.create_topic("orders")
    return ps


def test_structs_dataclasses_dicts_and_lists_are_json(orders: Any) -> None:
    sent = datetime(2030, 1, 31, 12, tzinfo=UTC)
    given = [Order(1, ["tea"]), Shipment(2, sent), {"id": 3}, [4, None, "x"], (5,), Model(6)]
    for value in given:
        orders.publish("orders", value)
    got = orders.receive("orders", "g", 10)
    assert [m.headers for m in got] == [JSON] * 6
    assert got[0].value == b'{"id":1,"items":["tea"]}'
    assert got[0].json(Order) == Order(1, ["tea"])
    assert got[0].json() == {"id": 1, "items": ["tea"]}
    assert got[1].json(Shipment) == Shipment(2, sent)
    assert got[2].json(dict[str, int]) == {"id": 3}
    assert [m.json() for m in got[3:5]] == [[4, None, "x"], [5]]
    assert got[5].json(Model).id == 6


def test_bytes_and_text_stay_as_they_are(orders: Any) -> None:
    for value in (b"\xff", "café", None):
        orders.publish("orders", value)
    first, second, third = orders.receive("orders", "g", 10)
    assert [m.headers for m in (first, second, third)] == [{}, {}, {}]
    assert (second.text(), third.text()) == ("café", "")
    with pytest.raises(InvalidPayload, match="no text"):
        first.text()
    with pytest.raises(InvalidPayload, match="no JSON"):
        second.json()
    with pytest.raises(InvalidPayload, match="no Order"):
        second.json(Order)


def test_other_headers_stay_and_a_content_type_of_ones_own_counts(orders: Any) -> None:
    own = {"Content-Type": "application/cloudevents+json", "a": b"1"}
    orders.publish("orders", {"id": 1}, headers=own, key="k", priority="high")
    orders.publish("orders", {"id": 2}, headers={"a": b"1"}, delay="0s")
    first = orders.receive("orders", "g", 10, wait=1)[0]
    assert first.headers == {"Content-Type": b"application/cloudevents+json", "a": b"1"}
    assert first.json() == {"id": 1}


def test_a_batch_may_mix_them(orders: Any) -> None:
    values = [b"raw", {"id": 1}, "text", Order(2)]
    orders.publish_batch("orders", values, headers=[None, {"a": "1"}, {"b": "2"}, None])
    orders.publish_batch("orders", [Order(n) for n in range(300)], keys=["k"] * 300)
    batch = orders.receive_batch("orders", "g", 1000)
    got = list(batch)
    assert [m.value for m in got[:4]] == [b"raw", b'{"id":1}', b"text", b'{"id":2,"items":[]}']
    assert [m.headers for m in got[:4]] == [{}, {"a": b"1"} | JSON, {"b": b"2"}, JSON]
    assert [m.json(Order).id for m in got[4:]] == list(range(300))
    assert len(batch) == 304
    assert bool(batch)
    assert repr(batch).endswith("of 304 messages of orders>")
    batch.ack()
    nothing = orders.receive_batch("orders", "g", 10)
    assert not nothing
    assert list(nothing) == []
    assert "no messages" in repr(nothing)


def test_a_message_of_a_batch_can_be_settled_by_itself(orders: Any) -> None:
    orders.publish_batch("orders", [b"a", b"b", b"c"])
    batch = orders.receive_batch("orders", "g", 3)
    list(batch)[1].nack(delay=0)
    batch.ack()
    (again,) = orders.receive("orders", "g", wait=5)
    assert again.value == b"b"


def test_a_producer_takes_them_too(orders: Any) -> None:
    with orders.producer("orders") as out:
        out.send(Order(1))
        out.send({"id": 2}, key="k")
        out.send(b"raw")
    got = orders.receive("orders", "g", 10)
    assert [m.value for m in got] == [b'{"id":1,"items":[]}', b'{"id":2}', b"raw"]
    assert [m.headers for m in got] == [JSON, JSON, {}]


@pytest.mark.parametrize("wrong", [5, 1.5, True, object(), {"a": object()}, Order, {1, 2}])
def test_what_is_no_value_is_told(orders: Any, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="value"):
        orders.publish("orders", wrong)
    with pytest.raises(InvalidInput, match="value"):
        orders.publish_batch("orders", [b"x", wrong])
    with orders.producer("orders") as out, pytest.raises(InvalidInput, match="value"):
        out.send(wrong)
    assert orders.receive("orders", "g") == []


def test_times_are_datetimes(orders: Any) -> None:
    orders.publish("orders", b"x", ttl="1h")
    orders.publish("orders", b"y")
    for m in (*orders.receive("orders", "g", 2), *orders.peek("orders", partition=0)):
        assert m.timestamp == datetime.fromtimestamp(m.timestamp_us / 1e6, UTC)
        if m.value == b"x":
            assert m.expires_at - m.timestamp == timedelta(hours=1)
        else:
            assert m.expires_at is None


def test_what_is_peeked_or_streamed_is_read_alike(orders: Any) -> None:
    orders.publish("orders", Order(7))
    (peeked,) = orders.peek("orders", partition=0)
    assert peeked.json(Order) == Order(7)
    with orders.stream("orders", "audit") as stream:
        message = stream.next(10)
        assert message.json(Order) == Order(7)
        assert message.text() == '{"id":7,"items":[]}'


def test_a_batch_can_be_delayed(orders: Any) -> None:
    ids = orders.publish_batch("orders", [{"id": 1}, b"x"], delay="1h")
    orders.publish("orders", b"now")
    now = orders.peek("orders", partition=0)[0].timestamp
    at = [now + timedelta(hours=1), now + timedelta(hours=2)]
    more = orders.publish_batch("orders", [b"y", b"z"], deliver_at=at)
    assert {d.id for d in orders.delayed("orders")} == {*ids, *more}
    assert orders.cancel("orders", ids[0])
    with pytest.raises(InvalidInput, match="no producer"):
        orders.publish_batch("orders", [b"y"], delay="1h", producer=(1, 0, 0))
    with pytest.raises(InvalidInput, match="not both"):
        orders.publish_batch("orders", [b"y"], delay="1h", deliver_at=at[0])


def test_a_producer_names_partitions_delays_and_ids(ps: Any) -> None:
    ps.create_topic("orders", partitions=3)
    with ps.producer("orders", messages_max=3) as out:
        for n in range(10):
            out.send(b"%d" % n, partition=2)
        for _ in range(3):
            out.send({"id": 1}, dedup_id="one", partition=1)
            out.send("two", key="k", dedup_id=b"two", headers={"a": "1"})
        out.send(Order(9), delay="1h", ttl="1m", partition=0)
        for _ in range(2):
            out.send(b"later", delay="2h", partition=0, dedup_id="three", dedup_window="1d")
        for partition in (3, -1, "1", True):
            with pytest.raises(PartitionNotFound):
                out.send(b"x", partition=partition)
        with pytest.raises(InvalidInput, match="delay"):
            out.send(b"x", delay="soon")
        with pytest.raises(InvalidInput):
            out.send(b"x", dedup_id="")
        with pytest.raises(InvalidInput, match="dedup_window"):
            out.send(b"x", dedup_window="1h")
    assert [m.value for m in ps.peek("orders", partition=2, limit=99) if m.key is None] == [
        b"%d" % n for n in range(10)
    ]
    known = [m for p in range(3) for m in ps.peek("orders", partition=p, limit=99)]
    (one,) = [m for m in known if m.value == b'{"id":1}']
    (two,) = [m for m in known if m.value == b"two"]
    assert one.headers == {"penstock-dedup-id": b"one"} | JSON
    assert two.headers == {"penstock-dedup-id": b"two", "a": b"1"}
    first, second = sorted(ps.delayed("orders"), key=lambda each: each.deliver_at_us)
    assert first.message.json(Order) == Order(9)
    assert first.message.expires_at_us == first.deliver_at_us + 60_000_000
    assert second.message.value == b"later"
    assert second.message.headers == {
        "penstock-dedup-id": b"three",
        "penstock-dedup-window": b"86400000",
    }
    assert ps.cancel("orders", second.id)
