"""Tenants of one topic take turns: a noisy one does not delay the others."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from penstock.broker import fair_marks
from penstock.errors import InvalidInput
from tests.integration.broker.world import World

FLOOD = 5000


def flood(ps: Any, fair_by: str = "header:tenant", count: int = FLOOD, **settings: Any) -> None:
    """Tenant A has published a lot."""
    ps.create_topic("jobs", fair_by=fair_by, **settings)
    for _ in range(count // 1000):
        ps.publish_batch("jobs", [b"a"] * 1000, **of("a", fair_by, 1000))


def of(tenant: str, fair_by: str = "header:tenant", count: int = 0) -> dict[str, Any]:
    """What a message of a tenant is published with, or so many of them."""
    if fair_by == "key":
        return {"keys": [tenant] * count} if count else {"key": tenant}
    return {"headers": [{"tenant": tenant}] * count if count else {"tenant": tenant}}


def got(ps: Any, count: int = 10, *, ack: bool = True) -> Counter[bytes]:
    messages = ps.receive("jobs", "g", max_messages=count)
    if ack:
        for message in messages:
            message.ack()
    return Counter(message.value for message in messages)


@pytest.mark.parametrize("fair_by", ["key", "header:tenant"])
def test_one_message_behind_a_flood_is_in_the_next_receive(world: World, fair_by: str) -> None:
    flood(world.ps, fair_by)
    assert got(world.ps) == {b"a": 10}
    world.ps.publish("jobs", b"b", **of("b", fair_by))
    assert got(world.ps) == {b"a": 9, b"b": 1}
    assert got(world.ps) == {b"a": 10}


def test_one_at_a_time_tenants_take_turns(sync: World) -> None:
    flood(sync.ps)
    for tenant in ("b", "c"):
        sync.ps.publish_batch("jobs", [tenant] * 20, **of(tenant, count=20))
    seen = [got(sync.ps, 1) for _ in range(60)]
    assert sum(seen, Counter()) == {b"a": 20, b"b": 20, b"c": 20}
    for turn in range(0, 60, 3):
        assert sum(seen[turn : turn + 3], Counter()) == {b"a": 1, b"b": 1, b"c": 1}


def test_every_way_into_a_topic_counts(sync: World) -> None:
    ps = sync.ps
    flood(ps, "key")
    ps.publish("jobs", b"late", key="late", delay="1s")
    sync.pass_(1)
    ps.publish("jobs", b"once", key="once", dedup_id="1")
    with ps.transaction() as tx:
        tx.publish("jobs", b"whole", key="whole")
    with ps.producer("jobs") as producer:
        producer.send(b"gathered", key="gathered")
    assert got(ps, 12).keys() == {b"a", b"late", b"once", b"whole", b"gathered"}


def test_after_a_restart_and_for_another_group_it_is_found_in_the_log(sync: World) -> None:
    flood(sync.ps)
    sync.ps.publish("jobs", b"b", **of("b"))
    assert got(sync.ps, 1, ack=False).keys() <= {b"a", b"b"}
    ps = sync.kill(down_s=120)
    assert got(ps, 10)[b"b"] == 1
    assert {m.value for m in ps.receive("jobs", "other", max_messages=10)} == {b"a", b"b"}


def test_who_has_much_in_flight_waits_for_the_others(sync: World) -> None:
    flood(sync.ps)
    assert got(sync.ps, 40, ack=False) == {b"a": 40}
    sync.ps.publish_batch("jobs", [b"b"] * 50, **of("b", count=50))
    assert got(sync.ps, 20, ack=False) == {b"b": 20}
    assert got(sync.ps, 50, ack=False) == {b"a": 20, b"b": 30}


def test_who_is_noisy_is_served_when_nobody_else_has_anything(sync: World) -> None:
    flood(sync.ps)
    assert [got(sync.ps, 1000, ack=False)[b"a"] for _ in range(5)] == [1000] * 5


def test_retries_of_one_do_not_delay_the_others(sync: World) -> None:
    flood(sync.ps, backoff=("1s", 1.0, "1s"), max_retries=100)
    for message in sync.ps.receive("jobs", "g", max_messages=100):
        message.nack()
    sync.ps.publish("jobs", b"b", **of("b"))
    sync.pass_(2)
    assert got(sync.ps) == {b"a": 9, b"b": 1}


def test_lanes_come_first_and_turns_within_each(sync: World) -> None:
    flood(sync.ps)
    sync.ps.publish_batch("jobs", [b"urgent"] * 5, priority="critical", **of("a", count=5))
    sync.ps.publish("jobs", b"b", priority="critical", **of("b"))
    assert got(sync.ps, 6) == {b"urgent": 5, b"b": 1}
    assert got(sync.ps, 6) == {b"a": 6}


def test_who_is_nobody_is_a_tenant_too(sync: World) -> None:
    flood(sync.ps)
    sync.ps.publish_batch("jobs", [b"none"] * 5)
    sync.ps.publish("jobs", b"other", headers={"another": "b"})
    assert got(sync.ps, 10)[b"none"] == 5


def test_it_is_turned_on_and_off(sync: World) -> None:
    flood(sync.ps)
    sync.ps.publish("jobs", b"b", **of("b"))
    sync.ps.alter_topic("jobs", fair_by=None)
    assert got(sync.ps) == {b"a": 10}
    sync.ps.alter_topic("jobs", fair_by="header:tenant")
    assert got(sync.ps) == {b"a": 9, b"b": 1}


def test_each_message_comes_once_whatever_the_turns(sync: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(fair_marks, "CHUNK", 64)
    monkeypatch.setattr(fair_marks, "CHUNKS_MAX", 4)
    rng, ps = Random(1), sync.ps
    ps.create_topic("jobs", fair_by="key", backoff=("0s", 1.0, "0s"))
    published, seen = 0, Counter[bytes]()
    while len(seen) < 2000:
        if published < 2000:
            count = min(rng.randrange(1, 200), 2000 - published)
            values = [b"%d" % n for n in range(published, published + count)]
            ps.publish_batch("jobs", values, keys=[rng.choice("aaaaabc") for _ in values])
            published += count
        for message in ps.receive("jobs", "g", max_messages=rng.randrange(1, 100)):
            if rng.random() < 0.1:
                message.nack()
            else:
                message.ack()
                seen[message.value] += 1
        if rng.random() < 0.05:
            ps = sync.kill()
    assert set(seen.values()) == {1}
    assert ps.receive("jobs", "g") == []


@pytest.mark.parametrize("fair_by", ["tenant", "header:", "", "KEY"])
def test_what_is_no_tenant_is_refused(sync: World, fair_by: str) -> None:
    with pytest.raises(InvalidInput, match="fair_by"):
        sync.ps.create_topic("jobs", fair_by=fair_by)


def test_order_by_key_and_turns_do_not_go_together(sync: World) -> None:
    with pytest.raises(InvalidInput, match="ordered_by_key"):
        sync.ps.create_topic("jobs", fair_by="key", ordered_by_key=True)
