"""Queue mode: receive, and settle by ack, nack, reject and extend: one, many, or by receipt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.received import AsyncReceivedBatch
from penstock.errors import (
    AlreadySettled,
    BrokerClosed,
    DeliveryError,
    InvalidInput,
    InvalidReceipt,
    LeaseLost,
    PartitionNotFound,
    TopicNotFound,
)
from tests.integration.broker.doors import Blocking
from tests.integration.broker.world import World, values


@pytest.fixture
def orders(ps: Any) -> Any:
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"%d" % n for n in range(10)])
    return ps


def test_a_message_is_handed_out_once_and_done_when_it_is_acked(orders: Any, world: World) -> None:
    first = orders.receive("orders", "g", 4)
    rest = orders.receive("orders", "g", 100)
    assert values(first) == [b"0", b"1", b"2", b"3"]
    assert values(rest) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert orders.receive("orders", "g") == []
    for message in first + rest:
        message.ack()
    world.pass_(3600)
    assert orders.receive("orders", "g") == []
    assert orders.stats("orders").groups[0].committed == {0: 10}


def test_a_with_block_acks_or_nacks(orders: Any, world: World) -> None:
    first, second, third = orders.receive("orders", "g", 3)
    with first:
        pass
    with pytest.raises(RuntimeError, match="boom"), second:
        raise RuntimeError("boom")
    with third:
        third.reject("no good")
    orders.purge("orders", group="other")
    world.pass_(1)
    assert [(m.value, m.delivery_count) for m in orders.receive("orders", "g", 1)] == [(b"1", 2)]
    (letter,) = orders.dead_letters("orders").list()
    assert (letter.value, letter.error) == (b"2", "no good")


def test_a_with_block_raises_what_went_wrong_inside_even_if_the_lease_is_over(
    orders: Any, world: World
) -> None:
    (message,) = orders.receive("orders", "g", 1, visibility="1s")
    world.pass_(2)
    with pytest.raises(ZeroDivisionError), message:
        raise ZeroDivisionError
    (message,) = orders.receive("orders", "g", 1, visibility="1s")
    with pytest.raises(LeaseLost), message:
        world.pass_(2)


def test_a_nacked_message_comes_back_after_the_backoff(ps: Any, world: World) -> None:
    ps.create_topic("orders", max_retries=None)
    ps.publish("orders", b"x")
    for count, delay_s in enumerate([1, 2, 4, 8, 16, 32, 60, 60], start=1):
        (message,) = ps.receive("orders", "g")
        assert message.delivery_count == count
        message.nack()
        world.pass_(delay_s - 0.01)
        assert ps.receive("orders", "g") == []
        world.pass_(0.01)
    assert ps.receive("orders", "g")[0].delivery_count == 9


def test_the_backoff_is_the_topics_own(ps: Any, world: World) -> None:
    ps.create_topic("orders", backoff=("100ms", 10.0, "3s"))
    ps.publish("orders", b"x")
    for delay_s in (0.1, 1, 3):
        ps.receive("orders", "g")[0].nack()
        world.pass_(delay_s - 0.01)
        assert ps.receive("orders", "g") == []
        world.pass_(0.01)
    assert len(ps.receive("orders", "g")) == 1


def test_a_nack_may_bring_its_own_delay(orders: Any, world: World) -> None:
    first, second = orders.receive("orders", "g", 2)
    first.nack(delay="5s")
    second.nack(delay=0)
    assert values(orders.receive("orders", "g", 1)) == [b"1"]
    world.pass_(4.9)
    assert b"0" not in values(orders.receive("orders", "g", 100))
    world.pass_(0.1)
    assert values(orders.receive("orders", "g")) == [b"0"]


def test_a_rejected_message_goes_straight_to_the_dead_letters(orders: Any, world: World) -> None:
    orders.receive("orders", "g", 1)[0].reject("malformed")
    world.pass_(3600)
    assert values(orders.receive("orders", "g", 1)) == [b"1"]
    (letter,) = orders.dead_letters("orders").list()
    assert (letter.value, letter.reason, letter.error) == (b"0", "rejected", "malformed")
    assert letter.attempts == 1


def test_an_extended_message_is_held_for_longer(orders: Any, world: World) -> None:
    first, second = orders.receive("orders", "g", 2, visibility="10s")
    world.pass_(8)
    first.extend("30s")
    world.pass_(2)
    assert values(orders.receive("orders", "g", 1, visibility="1h")) == [b"1"]
    with pytest.raises(LeaseLost):
        second.ack()
    world.pass_(27)
    first.extend("10s")
    world.pass_(9)
    first.ack()


def test_extending_may_also_shorten(orders: Any, world: World) -> None:
    (message,) = orders.receive("orders", "g", 1, visibility="1h")
    message.extend("2s")
    world.pass_(2)
    assert b"0" in values(orders.receive("orders", "g", 100))


def test_visibility_by_topic_and_by_receive(ps: Any, world: World) -> None:
    ps.create_topic("orders", visibility="5s", max_retries=None)
    ps.publish("orders", b"x")
    for visibility, held_s in ((None, 5), ("90s", 90), (0.5, 0.5)):
        assert len(ps.receive("orders", "g", visibility=visibility)) == 1
        world.pass_(held_s - 0.1)
        assert ps.receive("orders", "g") == []
        world.pass_(0.1)
    assert len(ps.receive("orders", "g")) == 1


# Batches.


def test_a_batch_comes_as_columns(orders: Any) -> None:
    batch = orders.receive_batch("orders", "g", 7)
    assert len(batch) == 7
    table = batch.table()
    assert table.column("value").to_pylist() == [b"%d" % n for n in range(7)]
    assert table.column("offset").to_pylist() == list(range(7))
    assert table.column("partition").to_pylist() == [0] * 7
    assert table.column("delivery_count").to_pylist() == [1] * 7
    assert table.column("priority").to_pylist() == [2] * 7
    assert len(batch.receipts()) == 7


def test_a_batch_is_settled_as_one(orders: Any, world: World) -> None:
    acked = orders.receive_batch("orders", "g", 3)
    nacked = orders.receive_batch("orders", "g", 3)
    rejected = orders.receive_batch("orders", "g", 2)
    extended = orders.receive_batch("orders", "g", 2, visibility="5s")
    acked.ack()
    nacked.nack(error="later")
    rejected.reject("never")
    extended.extend("20s")
    world.pass_(10)
    again = orders.receive_batch("orders", "g")
    assert again.table().column("value").to_pylist() == [b"3", b"4", b"5"]
    assert again.table().column("delivery_count").to_pylist() == [2, 2, 2]
    assert values(orders.dead_letters("orders").list()) == [b"6", b"7"]
    extended.ack()
    again.ack()
    assert orders.stats("orders").depth == 0


def test_a_batch_may_come_from_several_partitions(ps: Any) -> None:
    ps.create_topic("orders", partitions=3)
    ps.publish_batch("orders", [b"x"] * 60, keys=[f"k{n}" for n in range(60)])
    batch = ps.receive_batch("orders", "g", 100)
    assert len(batch) == 60
    assert set(batch.table().column("partition").to_pylist()) == {0, 1, 2}
    batch.ack()
    stats = ps.stats("orders")
    assert (stats.depth, stats.in_flight) == (0, 0)


def test_what_is_late_on_one_partition_is_acked_on_the_others(ps: Any) -> None:
    ps.create_topic("orders", partitions=3)
    for partition in range(3):
        ps.publish("orders", b"%d" % partition, partition=partition)
    batch = ps.receive_batch("orders", "g", 10)
    lost = batch.table().column("partition").to_pylist()[0]
    ps.seek("orders", "g", "earliest", partition=lost)  # nobody holds anything there now
    with pytest.raises(LeaseLost):
        batch.ack()
    assert values(ps.receive("orders", "g")) == [b"%d" % lost]


def test_an_empty_batch_can_be_settled(ps: Any) -> None:
    ps.create_topic("orders")
    batch = ps.receive_batch("orders", "g")
    assert len(batch) == 0
    assert batch.table().num_rows == 0
    assert batch.receipts() == []
    batch.ack()
    batch.nack()
    batch.reject()
    batch.extend("1s")


def test_a_batch_is_acked_while_the_next_is_received(ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    for partition in (0, 1):
        ps.publish_batch("orders", [b"%d" % n for n in range(5)], partition=partition)
    seen, batch = 0, None
    while batch is None or len(batch):
        batch = ps.receive_batch("orders", "g", 4, ack=batch)
        seen += len(batch)
        assert ps.stats("orders").groups[0].in_flight == len(batch)
    assert seen == 10
    assert ps.stats("orders").groups[0].committed == {0: 5, 1: 5}


def test_a_batch_of_another_group_or_topic_is_acked_too(orders: Any) -> None:
    orders.create_topic("bills")
    orders.publish("bills", b"x")
    others = orders.receive_batch("orders", "others", 4)
    bills = orders.receive_batch("bills", "g", ack=others)
    assert len(orders.receive_batch("orders", "g", 3, ack=bills)) == 3
    assert [g.committed for g in orders.stats("orders").groups if g.group == "others"] == [{0: 4}]
    assert orders.stats("bills").groups[0].committed == {0: 1}


def test_nothing_is_received_if_what_is_to_be_acked_first_is_lost(
    orders: Any, world: World
) -> None:
    late = orders.receive_batch("orders", "g", 4, visibility="1s")
    world.pass_(2)
    with pytest.raises(LeaseLost):
        orders.receive_batch("orders", "g", 10, ack=late)
    with pytest.raises(LeaseLost):  # also if it is another group's
        orders.receive_batch("orders", "others", 10, ack=late)
    assert len(orders.receive_batch("orders", "g", 10)) == 10


def test_a_batch_is_acked_so_once(orders: Any) -> None:
    batch = orders.receive_batch("orders", "g", 4)
    with pytest.raises(InvalidInput, match="30 seconds at the most"):
        orders.receive_batch("orders", "g", 2, wait="1h", ack=batch)
    assert orders.stats("orders").groups[0].in_flight == 4
    for _ in range(2):  # as somebody may do whose first call failed
        assert len(orders.receive_batch("orders", "g", 2, ack=batch)) == 2
    assert orders.stats("orders").groups[0].committed == {0: 4}


def test_a_batch_of_another_broker_is_acked_there(orders: Any, tmp_path: Path) -> None:
    with penstock.connect(tmp_path / "elsewhere") as elsewhere:
        elsewhere.create_topic("orders")
        elsewhere.publish_batch("orders", [b"x", b"y"])
        batch = elsewhere.receive_batch("orders", "g", 2)
        if isinstance(orders, Blocking):
            batch = AsyncReceivedBatch(batch._leases)
        assert len(orders.receive_batch("orders", "g", 10, ack=batch)) == 10
        assert elsewhere.stats("orders").groups[0].committed == {0: 2}


@pytest.mark.parametrize("wrong", [[], "batch", 1])
def test_only_a_batch_can_be_acked_so(wrong: Any, orders: Any) -> None:
    with pytest.raises(InvalidInput, match="a batch that receive_batch gave"):
        orders.receive_batch("orders", "g", ack=wrong)


def test_a_batch_that_was_settled_in_part_is_settled_for_the_rest(orders: Any) -> None:
    batch = orders.receive_batch("orders", "g", 4)
    assert orders.ack("g", batch.receipts()[:2]) == {}
    assert orders.nack("g", batch.receipts()[2:3], delay="1h") == {}
    batch.ack()
    stats = orders.stats("orders").groups[0]
    assert (stats.in_flight, stats.retrying, stats.depth) == (0, 1, 7)
    with pytest.raises(LeaseLost):
        batch.ack()


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "extend"])
def test_a_batch_that_is_done_says_so(verb: str, orders: Any) -> None:
    batch = orders.receive_batch("orders", "g", 4)
    batch.ack()
    how = {"visibility": "1s"} if verb == "extend" else {}
    with pytest.raises(AlreadySettled):
        getattr(batch, verb)(**how)
    with pytest.raises(AlreadySettled):
        orders.receive_batch("orders", "g", ack=batch)
    assert orders.stats("orders").groups[0].depth == 6


def test_a_long_batch_is_done_only_if_all_of_it_is(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x"] * 2500)
    batch = ps.receive_batch("orders", "g", 2500)
    receipts = batch.receipts()
    assert ps.ack("g", receipts[:-1]) == ps.nack("g", receipts[-1], delay=0) == {}
    with pytest.raises(LeaseLost):
        batch.ack()
    ps.receive("orders", "g")[0].ack()
    with pytest.raises(AlreadySettled):
        batch.ack()


def test_a_batch_of_several_partitions_is_lost_if_any_of_it_is(ps: Any, world: World) -> None:
    ps.create_topic("orders", partitions=2)
    for partition in (0, 1):
        ps.publish_batch("orders", [b"a", b"b"], partition=partition)
    batch = ps.receive_batch("orders", "g", 4)
    done, lost = batch.receipts()[:2], batch.receipts()[2:]
    assert ps.ack("g", done) == ps.nack("g", lost, delay=0) == {}
    with pytest.raises(LeaseLost):
        batch.ack()
    with pytest.raises(LeaseLost):
        ps.receive_batch("orders", "g", ack=batch)
    assert ps.stats("orders").groups[0].depth == 2


# Receipts.


def test_messages_can_be_settled_from_elsewhere_by_receipt(orders: Any, world: World) -> None:
    receipts = [m.receipt for m in orders.receive("orders", "g", 8)]
    assert receipts[0].rsplit(":", 1)[0] == "orders:0:0:1"
    assert orders.ack("g", receipts[0]) == {}
    assert orders.ack("g", receipts[1:3]) == {}
    assert orders.nack("g", receipts[3:5], delay="1s", error="busy") == {}
    assert orders.reject("g", [receipts[5]], reason="bad") == {}
    assert orders.extend("g", receipts[6:8], visibility="2h") == {}
    world.pass_(3600)
    assert values(orders.receive("orders", "g", 100)) == [b"3", b"4", b"8", b"9"]
    assert values(orders.dead_letters("orders").list()) == [b"5"]
    assert orders.ack("g", receipts[6:8]) == {}


def test_what_cannot_be_settled_is_told_receipt_by_receipt(orders: Any) -> None:
    acked, lost, good = [m.receipt for m in orders.receive("orders", "g", 3)]
    orders.ack("g", acked)
    orders.nack("g", lost, delay=0)
    orders.receive("orders", "g", 1)
    unknown = good.rsplit(":", 1)[0] + ":" + "0" * 15
    never = good.replace(":0:2:", ":0:9:")
    errors = orders.ack("g", [acked, lost, unknown, never])
    assert {receipt: type(error) for receipt, error in errors.items()} == {
        acked: AlreadySettled,
        lost: LeaseLost,
        unknown: LeaseLost,
        never: InvalidReceipt,
    }
    errors = orders.ack("g", [acked, good])
    assert list(errors) == [acked]  # what is good is settled, whatever stands beside it
    assert type(orders.ack("g", good)[good]) is AlreadySettled


def test_a_receipt_of_a_topic_or_partition_that_is_not_there_stands_alone(orders: Any) -> None:
    orders.create_topic("gone")
    orders.publish("gone", b"x")
    deleted = orders.receive("gone", "g")[0].receipt
    orders.delete_topic("gone")
    for settle in (
        orders.ack,
        orders.nack,
        orders.reject,
        lambda group, receipts: orders.extend(group, receipts, visibility="1s"),
    ):
        first, second = [m.receipt for m in orders.receive("orders", "g", 2)]
        nowhere = first.replace("orders:0:", "orders:7:")
        errors = settle("g", [deleted, first, nowhere, second])
        assert {receipt: type(error) for receipt, error in errors.items()} == {
            deleted: InvalidReceipt,
            nowhere: InvalidReceipt,
        }
        assert "its topic was deleted" in str(errors[deleted])
    assert orders.stats("orders").in_flight == 2  # those that were extended


@pytest.mark.parametrize(
    "receipt",
    [
        "",
        "x",
        "orders:0:0:1",
        "orders:0:0:1:xyz",
        "orders:-1:0:1:" + "0" * 15,
        "Orders!:0:0:1:" + "0" * 15,
        None,
        5,
        b"orders",
    ],
)
def test_something_that_is_no_receipt_is_refused(receipt: Any, orders: Any) -> None:
    held = orders.receive("orders", "g", 1)[0].receipt
    for settle in (
        orders.ack,
        orders.nack,
        orders.reject,
        lambda group, receipts: orders.extend(group, receipts, visibility="1s"),
    ):
        with pytest.raises(InvalidReceipt, match="not a valid receipt"):
            settle("g", [held, receipt])
    assert orders.stats("orders").in_flight == 1  # the good one was not touched either


def test_the_receipt_of_another_group_is_not_valid(orders: Any) -> None:
    receipt = orders.receive("orders", "mine", 1)[0].receipt
    orders.receive("orders", "yours", 1)
    assert isinstance(orders.ack("yours", receipt)[receipt], LeaseLost)
    assert isinstance(orders.ack("nobody", receipt)[receipt], InvalidReceipt)
    assert orders.groups("orders") == ["mine", "yours"]  # asking makes no group
    assert orders.ack("mine", receipt) == {}


# What is refused, and leaves everything as it was.


def test_wrong_arguments_are_refused_before_anything_happens(orders: Any) -> None:
    (message,) = orders.receive("orders", "g", 1)
    for wrong in (
        lambda: message.nack(delay="soon"),
        lambda: message.nack(delay=-1),
        lambda: message.nack(delay="91d"),
        lambda: message.nack(delay=10**15),
        lambda: message.nack(error=404),
        lambda: message.nack(error=ValueError("x")),
        lambda: message.nack(error="\ud800"),
        lambda: message.reject(17),
        lambda: message.extend(-1),
        lambda: message.extend("13h"),
        lambda: message.extend("x"),
        lambda: message.extend(None),
        lambda: orders.receive("orders", "g", 0),
        lambda: orders.receive("orders", "g", 100_001),
        lambda: orders.receive("orders", "g", "5"),
        lambda: orders.receive("orders", "g", 2.0),
        lambda: orders.receive("orders", "g", True),
        lambda: orders.receive("orders", "g", consumer=3),
        lambda: orders.receive("orders", "g", visibility=-1),
        lambda: orders.receive("orders", "g", visibility="12h1s"),
        lambda: orders.receive("orders", "g", wait="31s"),
        lambda: orders.receive("orders", "g", wait="20 s"),
        lambda: orders.receive_batch("orders", "g", -1),
        lambda: orders.ack("g", 5),
    ):
        with pytest.raises(InvalidInput):
            wrong()
    assert orders.stats("orders").in_flight == 1
    message.ack()


def test_an_endless_error_text_is_cut(orders: Any, world: World) -> None:
    orders.receive("orders", "g", 1)[0].reject("x" * 1_000_000)
    (letter,) = orders.dead_letters("orders").list()
    assert letter.error == "x" * 4096
    world.kill()


def test_settling_twice_is_a_distinct_error(orders: Any, world: World) -> None:
    first, second, third = orders.receive("orders", "g", 3)
    first.ack()
    second.reject("no")
    third.nack()
    for message, error in ((first, AlreadySettled), (second, AlreadySettled), (third, LeaseLost)):
        for verb, arguments in (("ack", ()), ("nack", ()), ("reject", ()), ("extend", ("1s",))):
            with pytest.raises(error) as caught:
                getattr(message, verb)(*arguments)
            assert isinstance(caught.value, DeliveryError)
    world.pass_(1)
    assert values(orders.receive("orders", "g", 1)) == [b"2"]
    assert orders.dead_letters("orders").count() == 1


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("lease", ["held", "lost"])
def test_whatever_became_of_a_message_its_topic_that_is_gone_is_what_is_told(
    orders: Any, world: World, settled: bool, lease: str
) -> None:
    (message,) = orders.receive("orders", "g", 1, visibility="10s")
    if settled:
        message.ack()
    if lease == "lost":
        world.pass_(11)
    orders.delete_topic("orders")
    for verb, arguments in (("ack", ()), ("nack", ()), ("reject", ()), ("extend", ("1s",))):
        with pytest.raises(TopicNotFound):
            getattr(message, verb)(*arguments)
    orders.create_topic("orders")
    with pytest.raises(DeliveryError):  # another topic, of which nobody was given anything
        message.ack()


@pytest.mark.parametrize("settled", [False, True])
def test_whatever_became_of_a_message_a_broker_that_is_closed_is_what_is_told(
    sync: World, settled: bool
) -> None:
    sync.ps.create_topic("orders")
    sync.ps.publish("orders", b"x")
    (message,) = sync.ps.receive("orders", "g", 1)
    if settled:
        message.ack()
    sync.close()
    for verb in ("ack", "nack", "reject"):
        with pytest.raises(BrokerClosed):
            getattr(message, verb)()


def test_what_was_handed_out_is_there_although_its_topic_went_meanwhile(sync: World) -> None:
    sync.ps.create_topic("orders", partitions=2)
    sync.ps.publish("orders", b"x", partition=1)
    receive = sync.broker.receive

    def receive_and_lose(*args: Any, **how: Any) -> Any:
        delivered = receive(*args, **how)
        sync.ps.delete_topic("orders")
        sync.ps.create_topic("orders")
        return delivered

    sync.broker.receive = receive_and_lose  # type: ignore[method-assign]
    (message,) = sync.ps.receive("orders", "g", 1)
    assert message.value == b"x"
    with pytest.raises(PartitionNotFound):
        message.ack()
