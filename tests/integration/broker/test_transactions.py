"""Transactions through every door: all of a block, or nothing of it."""

# ruff: noqa: PT012 - what is raised is raised by the end of the block

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import (
    InvalidInput,
    LeaseLost,
    ProducerFenced,
    RequestTooLarge,
    TopicNotFound,
    TransactionForgotten,
    TransactionNotFound,
    TransactionRefused,
)
from penstock.model.names import TopicName
from penstock.model.transactions import StagedMessages, StagedTransaction
from penstock.record.batch import Batch
from penstock.record.schema import ulid_text
from tests.integration.broker.world import World, take, values


@pytest.fixture
def shop(world: World) -> Any:
    for topic, partitions in (("orders", 1), ("shipments", 2), ("mail", 1)):
        world.ps.create_topic(topic, partitions=partitions)
    return world.ps


def held(ps: Any, count: int = 1) -> list[Any]:
    """Messages of `orders` under a lease."""
    ps.publish_batch("orders", [b"order %d" % n for n in range(count)])
    return list(ps.receive("orders", "billing", max_messages=count))


def test_messages_and_acks_are_done_together_at_the_end(shop: Any) -> None:
    first, second = held(shop, 2)
    with shop.transaction() as tx:
        one = tx.publish("shipments", b"a", key="c-17", headers={"h": "1"}, priority="high")
        many = tx.publish_batch("mail", [b"m1", b"m2"])
        tx.ack(first)
        tx.nack(second, delay=0)
        assert shop.stats("shipments").messages == 0
        assert shop.stats("orders").in_flight == 2
    assert shop.stats("orders").in_flight == 0
    (sent,) = shop.receive("shipments", "g")
    assert (sent.value, sent.key, sent.headers) == (b"a", b"c-17", {"h": b"1"})
    assert sent.priority == 1
    assert (one.result().id, one.result().partition) == (sent.id, sent.partition)
    assert [(each.partition, each.offset) for each in many.result()] == [(0, 0), (0, 1)]
    assert take(shop, "mail") == [b"m1", b"m2"]
    assert values(shop.receive("orders", "billing")) == [second.value]


def test_after_an_exception_nothing_leaves(shop: Any) -> None:
    (message,) = held(shop)
    with pytest.raises(ZeroDivisionError), shop.transaction() as tx:
        tx.publish("shipments", b"a")
        tx.ack(message)
        raise ZeroDivisionError
    assert shop.stats("shipments").messages == 0
    message.ack()
    assert shop.transactions() == []


def test_a_refusal_refuses_all_and_names_each_reason(shop: Any, world: World) -> None:
    late, good = held(shop, 2)
    late.ack()
    with pytest.raises(TransactionRefused) as caught, shop.transaction() as tx:
        tx.publish("shipments", b"a")
        tx.ack(good)
        tx.ack(late)
    assert [(each.item, each.code) for each in caught.value.reasons] == [
        ("settle[0]", "already_settled")
    ]
    with pytest.raises(TransactionRefused) as caught, shop.transaction() as tx:
        tx.publish("nowhere", b"a")
        tx.publish("shipments", b"a", partition=7)
        tx.publish("mail", b"a")
    reasons = [(each.item, each.code) for each in caught.value.reasons]
    assert reasons == [("messages[0]", "topic_not_found"), ("messages[1]", "partition_not_found")]
    assert "nowhere" in str(caught.value)
    assert [shop.stats(topic).messages for topic in ("shipments", "mail")] == [0, 0]
    assert shop.stats("orders").in_flight == 1
    good.ack()


def test_a_lease_that_ran_out_refuses_all(shop: Any, world: World) -> None:
    (message,) = held(shop)
    world.pass_(31)
    with pytest.raises(TransactionRefused) as caught, shop.transaction() as tx:
        tx.publish("shipments", b"a")
        tx.ack(message)
    assert caught.value.reasons[0].code in (LeaseLost.code, "already_settled")
    assert shop.stats("shipments").messages == 0


def test_a_batch_is_settled_and_another_rejected(shop: Any) -> None:
    shop.publish_batch("orders", [b"%d" % n for n in range(10)])
    done = shop.receive_batch("orders", "billing", 6)
    bad = shop.receive_batch("orders", "billing", 4)
    with shop.transaction() as tx:
        tx.ack(done)
        tx.reject(bad, reason="no good")
        tx.publish("mail", b"six done")
    assert shop.stats("orders").depth == 0
    letters = list(shop.dead_letters("orders").list())
    assert sorted(values(letters)) == [b"6", b"7", b"8", b"9"]
    assert {letter.reason for letter in letters} == {"rejected"}
    (outcome,) = shop.transactions()
    settled = [(each.verb, each.count) for each in outcome.settled]
    assert settled == [("ack", 6), ("reject", 4)]


def test_the_last_nack_of_a_message_is_a_dead_letter(shop: Any) -> None:
    shop.alter_topic("orders", max_retries=0)
    (message,) = held(shop)
    with shop.transaction() as tx:
        tx.nack(message, error="broken")
        tx.publish("mail", b"sorry")
    (letter,) = shop.dead_letters("orders").list()
    assert (letter.reason, letter.error) == ("max_retries", "broken")
    assert shop.stats("orders").depth == 0


def test_messages_are_settled_by_their_receipts(shop: Any) -> None:
    messages = held(shop, 3)
    receipts = [message.receipt for message in messages]
    with shop.transaction() as tx:
        tx.ack(receipts[:2], group="billing")
        tx.nack(receipts[2], group="billing", delay="1h")
    assert shop.stats("orders").depth == 1
    with pytest.raises(InvalidInput), shop.transaction() as tx:
        tx.ack(receipts)


def test_delays_ttls_and_deduplication_are_obeyed(shop: Any, world: World) -> None:
    shop.publish("mail", b"first", dedup_id="known")
    due_s = world.clock.wall_ns() / 1e9 + 20
    with shop.transaction() as tx:
        later = tx.publish("shipments", b"later", delay="10s")
        at = tx.publish("shipments", b"at", deliver_at=due_s)
        each = tx.publish_batch("shipments", [b"x", b"y"], deliver_at=[due_s, due_s + 1])
        short = tx.publish("mail", b"short", ttl="5s")
        again = tx.publish("mail", b"again", dedup_id="known")
        new = tx.publish("mail", b"new", dedup_id="new")
        repeated = tx.publish("mail", b"new", dedup_id="new", dedup_window="1h")
    assert again.result().duplicate
    assert (new.result().duplicate, repeated.result().duplicate) == (False, True)
    assert new.result().id == repeated.result().id
    assert shop.publish("mail", b"new", dedup_id="new").duplicate
    assert at.result().deliver_at_us == round(due_s * 1e6)
    assert len(each.result()) == 2
    assert short.result().offset == 1
    assert shop.stats("shipments").delayed == 4
    assert shop.cancel("shipments", later.result().id)
    world.pass_(9)
    assert take(shop, "mail") == [b"first", b"new"]
    world.pass_(15)
    assert sorted(take(shop, "shipments")) == [b"at", b"x", b"y"]


def test_offsets_of_a_stream_are_committed_with_what_was_made_of_it(shop: Any) -> None:
    shop.publish_batch("orders", [b"0", b"1", b"2"])
    with shop.stream("orders", "readers", commit_every=None) as stream:
        for _ in range(2):
            message = stream.next(5)
        with shop.transaction() as tx:
            tx.publish("mail", message.value)
            tx.commit(stream)
        committed = shop.describe_stream_group("readers").committed
        assert list(committed.values()) == [2]
        with pytest.raises(ZeroDivisionError), shop.transaction() as tx:
            assert stream.next(5).value == b"2"
            tx.commit(stream)
            raise ZeroDivisionError
        assert list(shop.describe_stream_group("readers").committed.values()) == [2]
    with shop.stream("orders", "others") as stream:
        stream.next(5)
        with pytest.raises(InvalidInput, match="commit_every=None"), shop.transaction() as tx:
            tx.commit(stream)


def test_offsets_of_who_is_no_member_any_more_refuse_all(shop: Any) -> None:
    shop.publish("orders", b"0")
    stream = shop.stream("orders", "readers", commit_every=None)
    stream.next(5)
    with pytest.raises(TransactionRefused) as caught, shop.transaction() as tx:
        tx.publish("mail", b"made of it")
        tx.commit(stream)
        stream.leave()
    assert caught.value.reasons[0].item == "offsets[0]"
    assert shop.stats("mail").messages == 0


def test_a_newer_holder_of_a_producers_name_fences_the_older_one(world: World, shop: Any) -> None:
    with shop.transaction(producer="billing-7") as tx:
        tx.publish("mail", b"1")
    with shop.transaction(producer="billing-7") as tx:
        tx.publish("mail", b"2")
    other = world.client("default")
    with other.transaction(producer="billing-7") as tx:
        tx.publish("mail", b"3")
    with pytest.raises(ProducerFenced), shop.transaction(producer="billing-7") as tx:
        tx.publish("mail", b"zombie")
    world.ps = shop
    with other.transaction(producer="billing-7") as tx:
        tx.publish("mail", b"4")
    assert take(shop, "mail") == [b"1", b"2", b"3", b"4"]


def test_an_epoch_is_remembered_over_a_restart(here: World) -> None:
    here.ps.create_topic("mail")
    with here.ps.transaction(producer="p") as tx:
        tx.publish("mail", b"1")
    old = tx.outcome.epoch
    ps = here.restart()
    with ps.transaction(producer="p") as tx:
        tx.publish("mail", b"2")
    assert tx.outcome.epoch > old


def test_transactions_are_listed_and_described(shop: Any, world: World) -> None:
    for n in range(3):
        with shop.transaction() as tx:
            tx.publish("mail", b"%d" % n)
        world.pass_(0.4)
    with pytest.raises(TransactionRefused), shop.transaction() as refused:
        refused.publish("nowhere", b"x")
    listed = shop.transactions()
    assert [each.state for each in listed] == ["refused", "committed", "committed", "committed"]
    assert listed[1].id == tx.id
    assert listed[0].reasons[0].code == TopicNotFound.code
    assert [each.id for each in shop.transactions(limit=2)] == [refused.id, tx.id]
    described = shop.describe_transaction(tx.id)
    assert described.published[0].topic == "mail"
    assert described.published[0].count == 1
    assert shop.describe_transaction(refused.id).state == "refused"
    with pytest.raises(TransactionNotFound):
        shop.describe_transaction("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    world.pass_(5)
    assert shop.transactions() == listed
    assert shop.describe_transaction(tx.id) == described


def test_answers_are_known_after_restarts_and_for_a_day(here: World) -> None:
    here.ps.create_topic("mail")
    with here.ps.transaction() as tx:
        tx.publish("mail", b"once")
    for go_on in (here.kill, here.restart, here.kill):
        ps = go_on()
        assert ps.describe_transaction(tx.id) == tx.outcome
        assert ps.stats("mail").messages == 1
    here.pass_(10)
    ps = here.restart()
    assert ps.describe_transaction(tx.id) == tx.outcome
    here.clock.advance(25 * 3600)
    for _ in range(2):
        with ps.transaction() as other:
            other.publish("mail", b"another")
        here.pass_(3)
    with pytest.raises(TransactionNotFound):
        ps.describe_transaction(tx.id)


def test_an_id_from_before_all_that_are_remembered_is_not_done_again(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many transactions a day that those of an hour ago are forgotten."""
    monkeypatch.setattr("penstock.broker.transaction_outcomes.KEPT_MAX", 5)
    here.ps.create_topic("mail")

    def commit(id_: str) -> None:
        messages = [StagedMessages(topic="mail", batch=Batch.build([b"x"]))]
        staged = StagedTransaction(id=id_, namespace="default", messages=messages)
        here.broker.transactions.commit(staged)

    ids = []
    for _ in range(8):
        ids.append(ulid_text((here.clock.wall_ns() // 1_000_000) << 80 | len(ids)))
        commit(ids[-1])
        here.pass_(600)
    for go_on in (lambda: None, here.kill, here.restart):
        go_on()
        for id_ in ids[:3]:
            with pytest.raises(TransactionForgotten):
                commit(id_)
        for id_ in ids[3:]:
            commit(id_)
        assert here.broker.stats(TopicName("default", "mail")).messages == 8


def test_an_empty_block_is_no_transaction(shop: Any) -> None:
    with shop.transaction() as tx:
        pass
    assert tx.outcome is None
    assert shop.transactions() == []


def test_a_transaction_that_is_over_takes_nothing_more(shop: Any) -> None:
    with shop.transaction() as tx:
        sent = tx.publish("mail", b"1")
        with pytest.raises(InvalidInput):
            sent.result()
    with pytest.raises(InvalidInput, match="over"):
        tx.publish("mail", b"2")


def test_a_message_that_is_settled_twice_refuses_all(shop: Any) -> None:
    (message,) = held(shop)
    with pytest.raises(TransactionRefused) as caught, shop.transaction() as tx:
        tx.ack(message)
        tx.nack(message)
    assert caught.value.reasons[0].code == "invalid_input"
    message.ack()


def test_messages_of_another_namespace_are_not_settled(shop: Any, world: World) -> None:
    other = world.client("other")
    other.create_topic("orders")
    other.publish("orders", b"x")
    (theirs,) = other.receive("orders", "billing")
    with pytest.raises(InvalidInput, match="namespace"), shop.transaction() as tx:
        tx.ack(theirs)
    with pytest.raises((InvalidInput, TransactionRefused)), shop.transaction() as tx:
        tx.ack(theirs.receipt, group="billing")
    theirs.ack()


def test_a_transaction_is_bounded(sync: World) -> None:
    sync.ps.create_topic("mail")
    with pytest.raises(RequestTooLarge), sync.ps.transaction() as tx:
        tx.publish_batch("mail", [b""] * 100_001)
    with pytest.raises(RequestTooLarge), sync.ps.transaction() as tx:
        for _ in range(9):
            tx.publish("mail", b"x" * (8 << 20))
    assert sync.ps.stats("mail").messages == 0


def test_values_are_encoded_as_when_they_are_published(shop: Any) -> None:
    with shop.transaction() as tx:
        tx.publish("mail", {"a": 1}, key="k")
        tx.publish("mail", "text")
        tx.publish("mail", None, key="k")
    messages = shop.receive("mail", "g", 10)
    assert values(messages) == [b'{"a":1}', b"text", None]
    assert messages[0].headers == {"content-type": b"application/json"}


def test_the_order_of_messages_is_that_of_the_block(shop: Any) -> None:
    with shop.transaction() as tx:
        for n in range(6):
            ttl = "1h" if n % 2 else None
            tx.publish("mail", b"%d" % n, ttl=ttl, priority="normal")
        tx.publish_batch("mail", [b"6", b"7"])
        tx.publish("mail", b"8")
    assert take(shop, "mail") == [b"%d" % n for n in range(9)]


def test_leases_are_extended_while_a_block_runs(tmp_path: Path) -> None:
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders")
        ps.publish("orders", b"1")
        (message,) = ps.receive("orders", "billing", visibility="400ms")
        with ps.transaction() as tx:
            tx.ack(message)
            time.sleep(1.2)
            assert ps.receive("orders", "billing") == []
        assert ps.stats("orders").depth == 0


def test_json_does_what_a_client_does(tmp_path: Path) -> None:
    from tests.integration.server.running import RunningServer

    world = World(tmp_path / "data")
    server = RunningServer(world.broker)
    try:
        world.ps.create_topic("mail", partitions=1)
        world.ps.publish("mail", b"first")
        (message,) = world.ps.receive("mail", "g")
        body = {
            "id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "publish": [
                {
                    "topic": "mail",
                    "messages": [{"value": {"a": 1}, "key": "k"}, {"value": "x", "delay": "1h"}],
                }
            ],
            "settle": [{"group": "g", "receipts": [message.receipt]}],
        }
        from urllib.request import Request, urlopen

        answers = []
        for _ in range(2):
            request = Request(
                f"{server.url}/v1/transactions",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            with urlopen(request) as reply:
                assert reply.status == 201
                answers.append(json.load(reply))
        assert answers[0] == answers[1]
        assert answers[0]["published"][0]["runs"][0]["offset"] == 1
        assert world.ps.stats("mail").messages == 2
        assert world.ps.stats("mail").depth == 1
        with urlopen(f"{server.url}/metrics") as reply:
            text = reply.read().decode()
        assert "penstock_transactions_committed_total 1.0" in text
        assert "penstock_transactions_finishing 0.0" in text
    finally:
        server.stop()
        world.close_all()
