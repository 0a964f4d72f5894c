"""Namespaces as tenants: made and deleted, and held to their quotas at every door."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import pytest

from penstock.broker.api import Api
from penstock.errors import (
    InvalidInput,
    MessageTooLarge,
    NamespaceNotEmpty,
    QuotaExceeded,
    RateQuotaExceeded,
    SchemaNotFound,
    StorageQuotaExceeded,
    TopicNotFound,
    TransactionRefused,
)
from penstock.model.names import TopicName
from penstock.model.transactions import StagedMessages, StagedTransaction
from penstock.record.batch import Batch
from penstock.record.schema import ulid_text
from tests.integration.broker.world import Background, World, until


def test_a_namespace_is_made_described_and_deleted(world: World) -> None:
    ps = world.ps
    assert ps.create_namespace("shop").created_us is not None
    ps.create_namespace("shop")
    assert ps.namespaces() == ["default", "shop"]
    shop = world.client("shop")
    shop.create_topic("orders", partitions=3)
    shop.publish("orders", b"x" * 100)
    used = ps.describe_namespace("shop").usage
    assert (used.topics, used.partitions, used.storage_bytes > 100) == (1, 3, True)
    with pytest.raises(NamespaceNotEmpty) as refused:
        ps.delete_namespace("shop")
    assert refused.value.topics == 1
    assert ps.delete_namespace("shop", force=True)
    assert not ps.delete_namespace("shop")
    assert ps.namespaces() == ["default"]
    with pytest.raises(InvalidInput):
        ps.create_namespace("No Name")


def test_who_gets_the_name_of_a_deleted_namespace_finds_nothing(here: World) -> None:
    ps, shop = here.ps, here.client("shop")
    for client in (ps, shop):
        client.schemas.register("address", {"type": "string"})
        client.schemas.register(
            "orders-value",
            {"$ref": "address.json"},
            references=[("address.json", "address", 1)],
        )
        client.schemas.set_compatibility("none")
        client.schemas.set_mode("readonly", subject="address")
        client.create_topic("orders")
        client.publish("orders", b"x")
        client.reset_stream_group("readers", "orders", "earliest")
    ps.delete_namespace("shop", force=True)
    for go_on in (lambda: None, here.kill, here.restart):
        go_on()
        ps, shop = here.ps, here.client("shop")
        assert (shop.schemas.subjects(), shop.stream_groups(), shop.topics()) == ([], [], [])
        with pytest.raises(SchemaNotFound):
            shop.schemas.get_by_id(1)
        assert shop.schemas.settings().compatibility == "backward"
        assert [each.subject for each in ps.schemas.subjects()] == ["address", "orders-value"]
        assert ps.schemas.settings("address").mode == "readonly"
        assert ps.stream_groups() == ["readers"]
    shop.schemas.register("address", {"type": "number"})


def test_groups_with_members_go_with_their_namespace(here: World) -> None:
    shop = here.client("shop")
    shop.create_topic("orders")
    shop.publish("orders", b"x")
    with shop.stream("orders", "readers", commit_every=None) as stream:
        assert stream.next(0).value == b"x"
        assert shop.stream_groups() == ["readers"]
        here.ps.delete_namespace("shop", force=True)
        assert shop.stream_groups() == []
        with pytest.raises(TopicNotFound):
            stream.next(0)
    assert (shop.stream_groups(), shop.topics()) == ([], [])
    here.kill()
    assert here.client("shop").stream_groups() == []


def test_who_makes_topics_faster_than_they_are_deleted_keeps_the_namespace(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, made = sync.client("shop"), count()
    sync.ps.set_quotas("shop", topics=5)
    shop.create_topic("orders")
    delete_topic = sync.broker.delete_topic

    def delete_and_make(name: TopicName) -> None:
        delete_topic(name)
        shop.create_topic(f"orders-{next(made)}")

    with monkeypatch.context() as patch:
        patch.setattr(sync.broker, "delete_topic", delete_and_make)
        with pytest.raises(NamespaceNotEmpty):
            sync.ps.delete_namespace("shop", force=True)
    assert sync.ps.describe_namespace("shop").quotas.topics == 5
    assert sync.ps.delete_namespace("shop", force=True)
    assert shop.topics() == []


def test_quotas_outlast_a_restart(world: World) -> None:
    world.ps.set_quotas("shop", topics=1, policy="refuse", retention="30d")
    ps = world.restart()
    quotas = ps.describe_namespace("shop").quotas
    assert (quotas.topics, quotas.policy, quotas.retention_ms) == (1, "refuse", 30 * 86_400_000)
    shop = world.client("shop")
    shop.create_topic("orders")
    with pytest.raises(QuotaExceeded) as refused:
        shop.create_topic("more")
    assert (refused.value.quota, refused.value.limit, refused.value.used) == ("topics", 1, 2)
    ps.set_quotas("shop")
    shop.create_topic("more")


def test_a_quota_that_is_none_is_told_with_the_nearest(world: World) -> None:
    with pytest.raises(InvalidInput, match="unknown quota 'topcs'; did you mean 'topics'"):
        world.ps.set_quotas("shop", topcs=1)
    with pytest.raises(InvalidInput, match=r"there are publish_messages, .*retention, policy"):
        world.ps.set_quotas("shop", xyz=1)


def test_what_is_counted_is_refused_before_it_is_made(world: World) -> None:
    ps = world.ps
    ps.set_quotas("default", partitions=3, groups=1, delayed=2, schedules=1, message_bytes=100)
    ps.create_topic("orders", partitions=2)
    with pytest.raises(QuotaExceeded):
        ps.create_topic("more", partitions=2)
    with pytest.raises(QuotaExceeded):
        ps.alter_topic("orders", partitions=4)
    ps.alter_topic("orders", visibility="1m")
    ps.publish_batch("orders", [b"x", b"y"])
    ps.receive("orders", "billing")[0].ack()
    with pytest.raises(QuotaExceeded):
        ps.receive("orders", "shipping")
    assert ps.groups("orders") == ["billing"]
    ps.publish("orders", b"x", delay="1h")
    with pytest.raises(QuotaExceeded):
        ps.publish_batch("orders", [b"x", b"y"], delay="1h")
    ps.publish("orders", b"x", delay="1h")
    assert ps.delay_stats("orders").pending == 2
    ps.schedule("one", topic="orders", value=b"x", every="1h")
    ps.schedule("one", topic="orders", value=b"y", every="1h")
    with pytest.raises(QuotaExceeded):
        ps.schedule("two", topic="orders", value=b"x", every="1h")
    with pytest.raises(MessageTooLarge):
        ps.publish("orders", b"x" * 101)
    ps.set_quotas("default", retention="1h")
    with pytest.raises(QuotaExceeded):
        ps.create_topic("kept")
    ps.create_topic("kept", retention="30m")
    assert ps.describe_namespace().refused == 1


def test_storage_that_is_full_takes_no_messages_and_all_acks(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", segment_bytes=1 << 20)
    ps.publish_batch("orders", [b"x" * 1000] * 20)
    ps.set_quotas("default", storage_bytes=10_000)
    with pytest.raises(StorageQuotaExceeded) as full:
        ps.publish("orders", b"x")
    assert full.value.limit == 10_000
    for message in ps.receive("orders", "billing", max_messages=20):
        message.ack()
    ps.purge("orders")
    world.pass_(2)
    ps.publish("orders", b"x")


def test_who_publishes_too_fast_waits_and_then_is_refused(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders")
    ps.set_quotas("default", publish_messages=100)
    began = time.monotonic()
    ps.publish_batch("orders", [b"x"] * 100)
    assert time.monotonic() - began < 5
    late = Background(lambda: ps.publish_batch("orders", [b"x"] * 50))
    time.sleep(0.05)
    assert not late.done
    assert ps.stats("orders").messages == 150  # they are stored, and the answer waits
    sync.pass_(0.6)
    late.result()
    sync.pass_(10)
    large = Background(lambda: ps.publish_batch("orders", [b"x"] * 1000))  # passes, and goes deep
    time.sleep(0.05)
    sync.pass_(1.1)
    large.result()
    with pytest.raises(RateQuotaExceeded) as refused:
        ps.publish("orders", b"x")
    assert 6 < refused.value.retry_after_s < 8
    assert (refused.value.quota, refused.value.limit) == ("publish_messages", 100)
    assert ps.stats("orders").messages == 1150
    described = ps.describe_namespace()
    assert (described.delayed_answers, described.refused) == (2, 1)


def test_a_transaction_is_counted_as_one_and_its_answer_waits(world: World) -> None:
    """Each topic's part by itself would go into debt, and the next part be refused for it."""
    ps = world.ps
    for topic in ("orders", "mail", "shipments"):
        ps.create_topic(topic)
    ps.set_quotas("default", publish_messages=100)

    def commit(count: int) -> None:
        with ps.transaction() as tx:
            for topic in ("orders", "mail", "shipments"):
                tx.publish_batch(topic, [b"x"] * count)

    def held_back_s(count: int) -> float:
        """How long the answer comes after the messages, which are there at once."""
        before = ps.stats("shipments").messages
        answer = Background(lambda: commit(count))
        until(lambda: ps.stats("shipments").messages == before + count)
        assert not answer.done
        began_ns = world.clock.monotonic_ns()
        until(lambda: world.pass_(0.05) or answer.done)
        answer.result()
        return (world.clock.monotonic_ns() - began_ns) / 1e9

    assert held_back_s(50) > 0.45
    world.pass_(10)
    assert held_back_s(300) > 0.95
    order = ps.receive("orders", "billing")[0]
    with ps.transaction() as tx:
        tx.ack(order)  # acks always pass
    described = ps.describe_namespace()
    assert (described.delayed_answers, described.refused) == (2, 0)
    ps.set_quotas("default", publish_messages=1, policy="refuse")
    commit(2)
    with pytest.raises(RateQuotaExceeded):
        commit(2)
    assert ps.stats("mail").messages == 352


@pytest.mark.parametrize("quota", [{"publish_messages": 10}, {"storage_bytes": 10_000}])
def test_a_transaction_that_is_refused_uses_up_no_quota(
    world: World, quota: dict[str, int]
) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.create_topic("mail")
    ps.publish("orders", b"x")
    (lost,) = ps.receive("orders", "billing")
    world.pass_(31)
    ps.set_quotas("default", policy="refuse", **quota)

    def commit() -> None:
        with ps.transaction() as tx:
            tx.publish_batch("mail", [b"x" * 600] * 10)
            tx.ack(lost)

    for _ in range(3):  # as a client does that tries again
        with pytest.raises(TransactionRefused) as refused:
            commit()
        assert [each.item for each in refused.value.reasons] == ["settle[0]"]
    ps.publish_batch("mail", [b"x" * 100] * 10)
    assert ps.stats("mail").messages == 10


def test_a_transaction_that_a_quota_refuses_is_among_the_refused_until_it_passes(
    world: World,
) -> None:
    ps, api = world.ps, Api(world.broker)
    for topic in ("orders", "mail"):
        ps.create_topic(topic)
    ps.publish("orders", b"x")
    (order,) = ps.receive("orders", "billing")
    ps.set_quotas("default", publish_messages=1, policy="refuse")
    ps.publish_batch("mail", [b"x"] * 3)

    def commit() -> None:
        with ps.transaction() as tx:
            tx.publish("mail", b"x")
            tx.ack(order)

    with pytest.raises(RateQuotaExceeded):
        commit()
    (refused,) = ps.transactions()
    assert (refused.state, ps.describe_transaction(refused.id)) == ("refused", refused)
    assert [(each.item, each.code) for each in refused.reasons] == [
        ("messages", "rate_quota_exceeded")
    ]
    world.pass_(5)
    order.ack()  # nothing is locked, nor settled
    ps.set_quotas("default", storage_bytes=1, policy="refuse")
    staged = StagedTransaction(
        id=ulid_text((world.clock.wall_ns() // 1_000_000) << 80 | 7),
        namespace="default",
        messages=[StagedMessages(topic="mail", batch=Batch.build([b"x"]))],
    )
    for _ in range(2):  # the same one, which counts once
        with pytest.raises(StorageQuotaExceeded):
            api.transact(staged)
    assert world.broker.transactions.totals().refused == 2
    assert [each.reasons[0].code for each in ps.transactions()] == [
        "storage_quota_exceeded",
        "rate_quota_exceeded",
    ]
    assert ps.stats("mail").messages == 3
    ps.set_quotas("default", policy="refuse")
    api.transact(staged)
    assert [each.state for each in ps.transactions()] == ["committed", "refused"]
    assert ps.describe_transaction(staged.id).state == "committed"


def test_delayed_messages_of_a_transaction_are_counted_together(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.set_quotas("default", delayed=3)

    def commit(count: int) -> None:
        with ps.transaction() as tx:
            tx.publish("orders", b"at once")
            for number in range(count):
                tx.publish("orders", b"later", delay=f"{number + 1}h")

    with pytest.raises(TransactionRefused) as refused:
        commit(4)
    found = {(each.item, each.code) for each in refused.value.reasons}
    assert found == {(f"messages[{n}]", "quota_exceeded") for n in (1, 2, 3, 4)}
    assert (ps.stats("orders").messages, ps.stats("orders").delayed) == (0, 0)
    commit(3)
    assert (ps.stats("orders").messages, ps.stats("orders").delayed) == (1, 3)


def test_a_policy_refuses_at_once_or_only_warns(sync: World, caplog: Any) -> None:
    ps = sync.ps
    ps.create_topic("orders")
    ps.set_quotas("default", publish_bytes=1000, policy="refuse")
    ps.publish("orders", b"x" * 5000)
    with pytest.raises(RateQuotaExceeded):
        ps.publish("orders", b"x")
    sync.pass_(5)
    ps.publish("orders", b"x")
    ps.set_quotas("default", publish_bytes=1000, policy="warn")
    for _ in range(3):
        ps.publish("orders", b"x" * 5000)
    assert caplog.text.count("above its quota of publish_bytes") == 1


def test_what_is_received_too_fast_comes_later(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x"] * 50)
    ps.set_quotas("default", receive_messages=10)
    got = ps.receive("orders", "billing", max_messages=30)
    assert len(got) == 30
    assert ps.receive("orders", "billing", max_messages=10) == []
    for message in got:
        message.ack()  # acks always pass
    world.pass_(3.1)
    assert len(ps.receive("orders", "billing", max_messages=10)) == 10


def test_another_namespace_is_not_held_back(world: World) -> None:
    world.ps.set_quotas("shop", publish_messages=1, policy="refuse")
    shop = world.client("shop")
    for client in (shop, world.ps):
        client.create_topic("orders")
        client.publish_batch("orders", [b"x"] * 10)
    with pytest.raises(RateQuotaExceeded):
        shop.publish("orders", b"x")
    world.ps.publish_batch("orders", [b"x"] * 1000)


@pytest.mark.parametrize("wrong", [{"topics": -1}, {"policy": "never"}, {"publish_messages": 0}])
def test_a_quota_that_makes_no_sense_is_refused(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        world.ps.set_quotas("shop", **wrong)
    assert world.ps.namespaces() == ["default"]
