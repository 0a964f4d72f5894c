"""Publishing: single messages, batches, Arrow; where a message goes, and what goes with it."""

from __future__ import annotations

from typing import Any

import mmh3
import pyarrow as pa
import pytest

from penstock.errors import (
    DiskFull,
    FrameTooLarge,
    InvalidInput,
    MessageTooLarge,
    PartitionNotFound,
    TransactionRefused,
)
from penstock.record.schema import HEADERS, HEADERS_MAX, Priority
from tests.integration.broker.world import World, values


def test_a_message_arrives_with_all_that_was_sent(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    published = ps.publish(
        "orders",
        b"\x00payload\xff",
        key="c-17",
        priority="high",
        headers={"v": b"1", "trace": "abc", "none": None},
        ttl="1h",
    )
    (message,) = ps.receive("orders", "billing")
    assert (published.partition, published.offset, published.duplicate) == (0, 0, False)
    assert (message.partition, message.offset, message.id) == (0, 0, published.id)
    assert message.value == b"\x00payload\xff"
    assert message.key == b"c-17"
    assert message.priority is Priority.HIGH
    assert message.headers == {"v": b"1", "trace": b"abc", "none": None}
    assert message.timestamp_us == world.clock.wall_ns() // 1000
    assert message.expires_at_us == message.timestamp_us + 3_600_000_000
    assert (message.topic, message.group, message.delivery_count) == ("orders", "billing", 1)


def test_text_is_utf8_and_a_message_may_be_empty_or_null(ps: Any) -> None:
    ps.create_topic("orders")
    for value in ("grün", "", b"", None):
        ps.publish("orders", value)
    assert values(ps.receive("orders", "g")) == ["grün".encode(), b"", b"", None]


def test_ids_are_unique_and_sort_by_time(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ids = []
    for _ in range(3):
        ids.append(ps.publish("orders", b"x").id)
        world.clock.advance(0.01)
        ids += [p.id for p in ps.publish_batch("orders", [b"y", b"z"])]
        world.clock.advance(0.01)
    assert len(set(ids)) == 9
    assert ids == sorted(ids)
    assert [m.id for m in ps.receive("orders", "g")] == ids


def test_a_batch_of_lists(ps: Any) -> None:
    ps.create_topic("orders")
    published = ps.publish_batch(
        "orders",
        [b"a", "b", b"c"],
        keys=["k1", None, b"k3"],
        headers=[{"h": "1"}, None, {}],
        priority=["low", 2, "critical"],
    )
    assert len(published) == 3
    assert [p.offset for p in published] == [0, 1, 2]
    got = sorted(ps.receive("orders", "g"), key=lambda m: m.offset)
    assert [(m.value, m.key, m.priority.name) for m in got] == [
        (b"a", b"k1", "LOW"),
        (b"b", None, "NORMAL"),
        (b"c", b"k3", "CRITICAL"),
    ]
    assert [m.headers for m in got] == [{"h": b"1"}, {}, {}]


@pytest.mark.parametrize("kind", ["table", "chunked table", "record batch"])
def test_a_batch_of_arrow(kind: str, ps: Any) -> None:
    ps.create_topic("orders")
    table = pa.table(
        {"value": ["a", "b"], "key": pa.array(["x", None], pa.binary()), "priority": [1, 3]}
    )
    if kind == "chunked table":
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    ps.publish_batch("orders", table.to_batches()[0] if kind == "record batch" else table)
    got = ps.receive("orders", "g")
    assert [(m.value, m.key, m.priority) for m in got] == [
        (b"a", b"x", Priority.HIGH),
        (b"b", None, Priority.LOW),
    ]


def test_a_table_says_itself_what_its_messages_have(ps: Any) -> None:
    ps.create_topic("orders")
    table = pa.table({"value": [b"a"]})
    for extra in ({"keys": [b"k"]}, {"headers": [{"a": b"b"}]}, {"priority": "high"}):
        with pytest.raises(InvalidInput, match="a table brings its own columns"):
            ps.publish_batch("orders", table, **extra)
    with pytest.raises(InvalidInput, match="unknown column 'colour'"):
        ps.publish_batch("orders", pa.table({"value": [b"a"], "colour": ["red"]}))
    with pytest.raises(InvalidInput, match="'value'"):
        ps.publish_batch("orders", pa.table({"key": [b"a"]}))
    assert ps.stats("orders").messages == 0


def test_what_was_received_as_columns_can_be_published_again(ps: Any) -> None:
    ps.create_topic("orders")
    ps.create_topic("copies")
    ps.publish_batch("orders", [b"a", b"b"], keys=[b"k", None], headers=[{"h": "1"}, None])
    table = ps.receive_batch("orders", "copier").table()
    ps.publish_batch("copies", table.select(["key", "value", "headers"]))
    assert [(m.value, m.key, m.headers) for m in ps.receive("copies", "g")] == [
        (b"a", b"k", {"h": b"1"}),
        (b"b", None, {}),
    ]


def test_an_empty_batch_is_nothing(ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    assert list(ps.publish_batch("orders", [])) == []
    assert list(ps.publish_batch("orders", [], keys=[])) == []
    assert list(ps.publish_batch("orders", pa.table({"value": pa.array([], pa.binary())}))) == []
    assert list(ps.publish_batch("orders", [], dedup_ids=[])) == []
    assert ps.stats("orders").messages == 0
    assert ps.receive("orders", "g") == []


# Where a message goes.


def test_a_key_always_goes_to_the_same_partition(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=7)
    keys = [f"customer-{n}" for n in range(50)]
    expected = [mmh3.hash(key.encode(), signed=False) % 7 for key in keys]
    assert [ps.publish("orders", b"x", key=key).partition for key in keys] == expected
    batch = ps.publish_batch("orders", [b"x"] * 50, keys=keys)
    assert [p.partition for p in batch] == expected
    with ps.producer("orders") as out:
        for key in keys:
            out.send(b"from the producer", key=key)
    world.restart()
    assert [world.ps.publish("orders", b"x", key=key).partition for key in keys] == expected
    for message in world.ps.receive("orders", "g", 1000):
        assert message.partition == mmh3.hash(message.key, signed=False) % 7


def test_the_hash_of_a_key_is_pinned(ps: Any) -> None:
    # Another murmur3 (seed 0, 32 bits, unsigned) must give the same, in any language.
    ps.create_topic("orders", partitions=97)
    assert ps.publish("orders", b"x", key="hello").partition == 0x248BFA47 % 97
    assert ps.publish("orders", b"x", key=b"").partition == 0


def test_without_a_key_messages_go_round(ps: Any) -> None:
    ps.create_topic("orders", partitions=3)
    singles = [ps.publish("orders", b"x").partition for _ in range(6)]
    first = singles[0]  # any: each client of a server begins somewhere else
    assert singles == [(first + n) % 3 for n in range(6)]
    batches = [{p.partition for p in ps.publish_batch("orders", [b"x"] * 5)} for _ in range(3)]
    assert batches == [{(first + n) % 3} for n in range(3)]  # a batch stays together


def test_the_order_of_a_batch_is_kept_within_each_partition(ps: Any) -> None:
    ps.create_topic("orders", partitions=3)
    keys = [f"k{n % 5}" for n in range(30)]
    rows = [b"%02d" % n for n in range(30)]
    published = list(ps.publish_batch("orders", rows, keys=keys))
    for partition in range(3):
        here = [n for n, p in enumerate(published) if p.partition == partition]
        assert [published[n].offset for n in here] == list(range(len(here)))
        got = ps.receive("orders", "g", 30, partition=partition)
        assert values(got) == [rows[n] for n in here]
        assert [m.id for m in got] == [published[n].id for n in here]


def test_an_explicit_partition_wins(ps: Any) -> None:
    ps.create_topic("orders", partitions=3)
    assert ps.publish("orders", b"x", key="k", partition=2).partition == 2
    assert {p.partition for p in ps.publish_batch("orders", [b"x"] * 4, partition=1)} == {1}
    for wrong in (3, -1, "1", 1.0, True):
        with pytest.raises(PartitionNotFound, match="has partitions 0 to 2"):
            ps.publish("orders", b"x", partition=wrong)
        with pytest.raises(PartitionNotFound):
            ps.publish("orders", b"x", partition=wrong, delay="1s")


# What is refused.


def test_a_message_that_is_too_long_is_refused_whole(ps: Any) -> None:
    ps.create_topic("orders", message_bytes_max=1000)
    ps.publish("orders", b"x" * 1000)
    for call in (
        lambda: ps.publish("orders", b"x" * 1001),
        lambda: ps.publish("orders", b"x" * 990, key=b"y" * 11),
        lambda: ps.publish_batch("orders", [b"short", b"x" * 2000]),
        lambda: ps.publish("orders", b"x" * 1001, delay="1s"),
    ):
        with pytest.raises(MessageTooLarge, match="at most 1000"):
            call()
    stats = ps.stats("orders")
    assert (stats.messages, stats.delayed) == (1, 0)


def test_a_message_with_too_many_headers_is_refused_whole(ps: Any) -> None:
    """Whoever reads messages one by one looks at each header: a million hold up everybody."""
    ps.create_topic("orders")
    many = {f"h{n}": b"" for n in range(HEADERS_MAX)}
    ps.publish("orders", b"x", headers=many)
    ps.publish_batch("orders", [b"x"] * 2, headers=[many] * 2)
    more = {**many, "one": b"more"}
    column = pa.array([list(more.items())], HEADERS)
    for call in (
        lambda: ps.publish("orders", b"x", headers=more),
        lambda: ps.publish("orders", b"x", headers=more, delay="1s"),
        lambda: ps.publish_batch("orders", [b"x"] * 2, headers=[{}, more]),
        lambda: ps.publish_batch("orders", pa.table({"value": [b"x"], "headers": column})),
        lambda: ps.publish("nowhere", b"x", headers=more),
    ):
        with pytest.raises(InvalidInput, match=r"1001 headers; at most 1000"):
            call()
    with pytest.raises(TransactionRefused, match="at most 1000"), ps.transaction() as tx:
        tx.publish("orders", b"x", headers=more)
    stats = ps.stats("orders")
    assert (stats.messages, stats.delayed) == (3, 0)


@pytest.mark.parametrize("dedup_ids", [None, ["first", "second"]])
def test_a_batch_for_several_partitions_is_refused_whole(dedup_ids: Any, ps: Any) -> None:
    ps.create_topic("orders", partitions=2, message_bytes_max=1000)
    keys = two_partitions()
    with pytest.raises(MessageTooLarge, match="at most 1000"):
        ps.publish_batch("orders", [b"a", b"x" * 1001], keys=keys, dedup_ids=dedup_ids)
    assert ps.stats("orders").messages == 0
    again = ps.publish_batch("orders", [b"a", b"x"], keys=keys, dedup_ids=dedup_ids)
    assert [each.duplicate for each in again] == [False, False]


@pytest.mark.parametrize("dedup", [False, True])
def test_a_batch_of_which_one_part_is_more_than_a_frame_is_refused_whole(
    dedup: bool, here: World
) -> None:
    ps = here.ps
    ps.create_topic("orders", partitions=2)
    first, second = two_partitions()
    rows = [b"a"] + [b"x" * (9 << 20)] * 12
    keys = [first] + [second] * 12
    ids = [str(n) for n in range(len(rows))] if dedup else None
    with pytest.raises(FrameTooLarge, match="at most 104857600"):
        ps.publish_batch("orders", rows, keys=keys, dedup_ids=ids)
    assert ps.stats("orders").messages == 0
    ps.publish_batch("orders", rows[:11], keys=keys[:11], dedup_ids=ids and ids[:11])
    assert ps.stats("orders").messages == 11


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"value": b"x" * ((10 << 20) + 1)}, MessageTooLarge),
        ({"value": b"x" * (10 << 20), "key": b"k"}, MessageTooLarge),
        ({"value": b"x" * (10 << 20), "dedup_id": "one"}, MessageTooLarge),
        ({"value": b"x" * ((10 << 20) + 1), "delay": "1s", "partition": 0}, MessageTooLarge),
        ({"value": b"x", "partition": 7}, PartitionNotFound),
        ({"value": b"x", "partition": 7, "delay": "1s"}, PartitionNotFound),
        ({"value": b"x", "partition": 7, "dedup_id": "one"}, PartitionNotFound),
    ],
    ids=lambda each: str(each)[-60:],
)
def test_no_topic_is_made_for_a_message_that_is_refused(how: Any, error: Any, world: World) -> None:
    ps = world.restart(auto_create=True)
    with pytest.raises(error):
        ps.publish("orders", **how)
    assert ps.topics() == []


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"messages": [b"x"], "partition": 7}, PartitionNotFound),
        ({"messages": [b"x", b"x" * ((10 << 20) + 1)]}, MessageTooLarge),
        ({"messages": [b"x"], "producer": (1, 0, 0)}, InvalidInput),
    ],
    ids=lambda each: str(each)[-60:],
)
def test_no_topic_is_made_for_a_batch_that_is_refused(how: Any, error: Any, world: World) -> None:
    ps = world.restart(auto_create=True)
    with pytest.raises(error):
        ps.publish_batch("orders", **how)
    if "producer" not in how:
        with pytest.raises(error):
            ps.schedule_batch("orders", delay="1s", **how)
    assert ps.topics() == []


def two_partitions() -> list[str]:
    """A key of each partition of a topic that has two."""
    key_of = {mmh3.hash(str(n), signed=False) % 2: str(n) for n in range(99)}
    return [key_of[0], key_of[1]]


def test_a_full_disk_refuses_messages_and_lets_work_go_on(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"a", b"b"])
    room = {"bytes": 10 << 20}
    world.files.free_bytes = lambda folder: room["bytes"]  # type: ignore[union-attr]
    world.restart(free_bytes_min=50 << 20)
    ps = world.ps
    with pytest.raises(DiskFull, match="writes stop below 50 MB"):
        ps.publish("orders", b"c")
    with pytest.raises(DiskFull):
        ps.publish("orders", b"c", delay="1s")
    first, second = ps.receive("orders", "g", 2)
    first.ack()
    second.nack(delay=0)
    assert values(ps.receive("orders", "g")) == [b"b"]
    room["bytes"] = 1 << 30
    ps.publish("orders", b"c")
    assert values(ps.receive("orders", "g")) == [b"c"]


def test_a_large_batch_without_keys_is_spread_over_the_partitions(ps: Any) -> None:
    ps.create_topic("orders", partitions=4)
    sent = [b"%d" % n for n in range(4000)]
    placed = list(ps.publish_batch("orders", sent))
    assert [p.end for p in ps.stats("orders").partitions] == [1000] * 4
    for nth in (0, 999, 1000, 3999):
        where = placed[nth]
        (found,) = ps.peek("orders", partition=where.partition, at=where.offset, limit=1)
        assert (found.value, found.id) == (sent[nth], where.id)
    assert len({each.partition for each in ps.publish_batch("orders", sent[:1999])}) == 1


def test_all_that_was_done_can_be_made_durable_at_once(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", fsync="never", partitions=2)
    ps.publish_batch("orders", [b"x"] * 10)
    ps.sync()
    assert [p.durable_end for p in ps.stats("orders").partitions] == [
        p.end for p in ps.stats("orders").partitions
    ]
