"""What nobody can have meant is refused, with a sentence that says why."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

from penstock.errors import InvalidInput, TopicExists
from tests.integration.broker.world import World, take, values


def test_a_topic_that_is_there_with_other_settings_is_no_success(ps: Any) -> None:
    ps.create_topic("orders", partitions=2, ttl="10s")
    assert ps.create_topic("orders", exist_ok=True).partitions == 2
    assert ps.create_topic("orders", exist_ok=True, partitions=2).ttl_ms == 10_000
    with pytest.raises(TopicExists, match="partitions is 2, not 3"):
        ps.create_topic("orders", exist_ok=True, partitions=3)
    with pytest.raises(TopicExists, match="ttl_ms is 10000, not 20000"):
        ps.create_topic("orders", exist_ok=True, ttl="20s")


def test_messages_that_nobody_would_get(ps: Any) -> None:
    ps.create_topic("orders")
    with pytest.raises(InvalidInput, match="ttl"):
        ps.publish("orders", b"x", ttl=0)
    with pytest.raises(InvalidInput, match="ttl"):
        ps.publish_batch("orders", [b"x"], ttl="0s")
    with pytest.raises(InvalidInput, match="ttl"):
        ps.create_topic("sales", ttl=0)
    assert ps.stats("orders").messages == 0


def test_a_truth_value_is_no_priority(ps: Any) -> None:
    ps.create_topic("orders")
    for wrong in (True, False):
        with pytest.raises(InvalidInput, match="priority"):
            ps.publish("orders", b"x", priority=wrong)


def test_times_that_are_too_long(ps: Any) -> None:
    ps.create_topic("orders")
    for delay in ("999999999d", "36500d", 1e11):
        with pytest.raises(InvalidInput, match="delay"):
            ps.publish("orders", b"x", delay=delay)
    for interval in ("999999d", "25h"):
        with pytest.raises(InvalidInput, match="fsync_interval"):
            ps.create_topic("sales", fsync_interval=interval)
    with pytest.raises(InvalidInput):
        ps.receive("orders", "g", visibility="999999999d")


def test_a_delayed_message_that_would_be_too_long_by_now_is_delivered(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", message_bytes_max=10_000)
    ps.publish("orders", b"x" * 9000, delay="10s")
    ps.publish("orders", b"short", delay="11s")
    ps.alter_topic("orders", message_bytes_max=100)
    world.pass_(20)
    assert take(ps) == [b"x" * 9000, b"short"]
    with pytest.raises(InvalidInput):
        ps.publish("orders", b"x" * 9000)


def test_the_name_of_a_consumer_has_a_limit(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    with pytest.raises(InvalidInput, match="256"):
        ps.receive("orders", "g", consumer="c" * 257)
    assert values(ps.receive("orders", "g", consumer="c" * 256)) == [b"x"]


def test_a_duplicate_has_the_id_of_the_message_that_is_there(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"0", b"1"])
    first = ps.publish("orders", b"x", dedup_id="one")
    again = ps.publish("orders", b"y", dedup_id="one")
    assert (again.id, again.offset, again.duplicate) == (first.id, first.offset, True)
    ps = world.restart()
    assert ps.publish("orders", b"z", dedup_id="one").id == first.id


def test_ids_are_in_the_order_of_the_messages_within_a_millisecond(sync: World) -> None:
    sync.ps.create_topic("orders")  # and time stands still
    ids = [sync.ps.publish("orders", b"x").id for _ in range(200)]
    assert ids == sorted(ids)
    assert len({*ids}) == 200


def test_ids_are_in_order_whichever_partition_each_message_went_to(sync: World) -> None:
    sync.ps.create_topic("orders", partitions=4)
    sync.ps.create_topic("invoices")
    ids = []
    for number in range(100):
        ids.append(sync.ps.publish("orders", b"x").id)
        ids += [each.id for each in sync.ps.publish_batch("invoices", [b"x", b"y"])]
        ids.append(sync.ps.publish("orders", b"x", key=f"k-{number}", headers={"a": "1"}).id)
        ids.append(sync.ps.publish("orders", b"x", delay="1s").id)
    assert ids == sorted(ids)
    assert len({*ids}) == 500


def test_only_their_owner_can_read_the_files(sync: World) -> None:
    before = os.umask(0)
    try:
        sync.ps.create_topic("orders", segment_bytes=4096)
        for n in range(100):
            sync.ps.publish("orders", b"%d" % n)
        take(sync.ps)
        sync.pass_(120)
        ps = sync.restart()
        ps.publish("orders", b"x", delay="1h")
    finally:
        os.umask(before)
    for folder, folders, files in os.walk(sync.folder):
        for name in folders:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o700, name
        for name in files:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600, name
