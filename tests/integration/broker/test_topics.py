"""Topics and namespaces: made, listed, described, altered, deleted; and still so after a crash."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    DiskFull,
    InvalidInput,
    PartitionNotFound,
    PenstockError,
    TopicExists,
    TopicNotFound,
)
from penstock.log.files import DiskFiles
from tests.integration.broker.world import EVENT_S_MAX, Background, World, until, values


def test_a_topic_has_the_settings_it_was_given_and_defaults_for_the_rest(ps: Any) -> None:
    ps.create_topic(
        "orders",
        partitions=4,
        visibility="45s",
        max_retries=5,
        backoff=("2s", 3.0, "1m"),
        retention="3d",
        fsync="batch",
    )
    settings = ps.describe_topic("orders")
    assert settings.partitions == 4
    assert settings.visibility_ms == 45_000
    assert settings.max_retries == 5
    assert settings.backoff == (2_000, 3.0, 60_000)
    assert settings.retention_ms == 3 * 86_400_000
    assert settings.fsync == "batch"
    assert settings.dedup_window_ms == 300_000
    assert settings.message_bytes_max == 10 << 20


def test_the_defaults_are_those_of_the_manual(ps: Any) -> None:
    settings = ps.create_topic("orders")
    assert (settings.partitions, settings.visibility_ms, settings.max_retries) == (1, 30_000, 3)
    assert settings.backoff == (1_000, 2.0, 60_000)
    assert settings.retention_ms == 7 * 86_400_000
    assert (settings.fsync, settings.fsync_interval_ms) == ("interval", 1000)
    assert settings.weights == (50, 25, 15, 7, 3)
    assert settings.boost_after_ms == 30_000


def test_topics_are_listed_by_namespace(world: World) -> None:
    ps = world.ps
    ps.create_topic("b")
    ps.create_topic("a")
    other = world.client("team-a")
    other.create_topic("c")
    assert ps.topics() == ["a", "b"]
    assert other.topics() == ["c"]
    assert ps.namespaces() == ["default", "team-a"]


def test_the_stats_of_all_topics_are_those_of_each(world: World) -> None:
    ps = world.ps
    assert ps.all_stats() == []
    for name in ("orders", "payments"):
        ps.create_topic(name, partitions=2)
        ps.publish_batch(name, [b"x"] * 5)
        ps.receive(name, "g", 2)
    elsewhere = world.client("shop")
    elsewhere.create_topic("orders")
    assert ps.all_stats() == [ps.stats("orders"), ps.stats("payments")]
    assert elsewhere.all_stats() == [elsewhere.stats("orders")]


def test_the_same_name_in_two_namespaces_is_two_topics(world: World) -> None:
    ps = world.ps
    other = ps.in_namespace("team-a")
    ps.create_topic("orders")
    other.create_topic("orders", partitions=2)
    ps.publish("orders", b"mine")
    other.publish("orders", b"theirs", partition=1)
    assert values(ps.receive("orders", "g")) == [b"mine"]
    (message,) = other.receive("orders", "g")
    assert (message.value, message.partition) == (b"theirs", 1)
    assert other.ack("g", [message.receipt]) == {}
    assert other.receive("orders", "g", visibility="1s") == []
    assert ps.stats("orders").in_flight == 1


def test_a_topic_that_exists_is_not_made_again(ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    with pytest.raises(TopicExists, match="'orders' exists already"):
        ps.create_topic("orders")
    assert ps.create_topic("orders", exist_ok=True).partitions == 2
    with pytest.raises(InvalidInput, match="unknown topic setting"):
        ps.create_topic("orders", exist_ok=True, partitons=3)


def test_a_topic_that_is_not_there_says_how_to_make_it(ps: Any) -> None:
    for ask in (
        lambda: ps.publish("nope", b"x"),
        lambda: ps.publish("nope", b"x", delay="1s"),
        lambda: ps.receive("nope", "g"),
        lambda: ps.stats("nope"),
        lambda: ps.describe_topic("nope"),
        lambda: ps.alter_topic("nope", partitions=2),
        lambda: ps.delete_topic("nope"),
        lambda: ps.purge("nope"),
        lambda: ps.stream("nope", "g"),
        lambda: ps.producer("nope"),
        lambda: ps.peek("nope"),
        lambda: ps.seek("nope", "g", "latest"),
    ):
        with pytest.raises(TopicNotFound, match="there is no topic 'nope'; create it first"):
            ask()
    assert ps.topics() == []


def test_a_misspelt_topic_says_which_one_was_meant(world: World) -> None:
    ps, shop = world.ps, world.client("shop")
    for topic in ("orders", "payments", "invoices.dlq"):
        ps.create_topic(topic)
    shop.create_topic("refunds")
    for ask in (
        lambda: ps.publish("ordrs", b"x"),
        lambda: ps.stats("ordrs"),
        lambda: ps.delete_topic("ordrs"),
        lambda: ps.stream("ordrs", "g"),
    ):
        with pytest.raises(TopicNotFound) as caught:
            ask()
        assert str(caught.value) == "there is no topic 'ordrs'; did you mean 'orders'?"
        assert (caught.value.topic, caught.value.nearest) == ("ordrs", "orders")
    for far in ("refund", "invoice", "invoices", "orders.dlq", "x"):
        # Another namespace, dead letters, and what is like nothing.
        with pytest.raises(TopicNotFound, match="create it first"):
            ps.stats(far)
    ps.delete_topic("orders")  # what was found before is looked for anew
    ps.create_topic("orders2")
    with pytest.raises(TopicNotFound, match=r"did you mean 'orders2'\?"):
        ps.stats("ordrs")
    with pytest.raises(TopicNotFound, match=r"'shop/refund'; did you mean 'shop/refunds'\?"):
        shop.stats("refund")
    with pytest.raises(TopicNotFound, match="create it first"):
        shop.stats("ordrs")


def test_the_one_that_was_meant_is_found_among_many_that_are_like_it(sync: World) -> None:
    for number in range(300):
        sync.ps.create_topic(f"production-europe-orders-{number * 7:04}")
    with pytest.raises(TopicNotFound, match="did you mean 'production-europe-orders-0700'"):
        sync.ps.stats("production-europe-oders-0700")


def test_with_auto_create_a_topic_is_made_when_it_is_first_used(world: World) -> None:
    ps = world.restart(auto_create=True)
    ps.publish("orders", b"x")
    assert ps.receive("payments", "g") == []
    assert ps.topics() == ["orders", "payments"]
    with pytest.raises(InvalidInput, match="topic name"):
        ps.publish("Orders!", b"x")
    with pytest.raises(TopicNotFound):  # looking at one is not using it
        ps.stats("refunds")
    world.restart()
    with pytest.raises(TopicNotFound):
        world.ps.publish("refunds", b"x")


@pytest.mark.parametrize(
    "name", ["", "-orders", ".orders", "or ders", "a/b", "a" * 250, "ö", "..", 7, None, "~x"]
)
def test_a_wrong_topic_name_is_refused_with_the_rule(name: Any, ps: Any) -> None:
    with pytest.raises(InvalidInput, match=r"topic name .* letters, digits, '\.', '_', '-'; 249"):
        ps.create_topic(name)


def test_names_that_differ_in_capitals_are_two_topics(world: World) -> None:
    for name in ("Orders", "orders", "_" + "X" * 248):
        world.ps.create_topic(name)
        world.ps.publish(name, name.encode())
    world.restart()
    for name in ("Orders", "orders", "_" + "X" * 248):
        [message] = world.ps.receive(name, "g")
        assert message.value == name.encode()
        message.reject("no")
        assert world.ps.dead_letters(name).count() == 1
    world.ps.delete_topic("Orders")
    world.restart()
    assert "orders" in world.ps.topics()
    assert "Orders" not in world.ps.topics()


@pytest.mark.parametrize("name", ["", "Team", "a.b", "-a", "a" * 65, "a/b"])
def test_a_wrong_namespace_is_refused_with_the_rule(name: str, sync: World) -> None:
    with pytest.raises(InvalidInput, match=r"namespace name .* a-z, 0-9, '-'; 64 at most"):
        sync.ps.in_namespace(name)


@pytest.mark.parametrize("name", ["", "~letters", "a b", "a:b", "a" * 129, 3])
def test_a_wrong_group_name_is_refused_with_the_rule(name: Any, ps: Any) -> None:
    ps.create_topic("orders")
    for ask in (
        lambda: ps.receive("orders", name),
        lambda: ps.stream("orders", name),
        lambda: ps.seek("orders", name, "latest"),
        lambda: ps.purge("orders", group=name),
    ):
        with pytest.raises(InvalidInput, match=r"group name .* letters, digits"):
            ask()
    assert ps.groups("orders") == []


def test_the_longest_names_work(world: World) -> None:
    topic, namespace, group = "t" * 64, "n" * 64, "G" * 128
    ps = world.ps.in_namespace(namespace)
    ps.create_topic(topic, max_retries=0)
    ps.publish(topic, b"x")
    (message,) = ps.receive(topic, group)
    message.reject("why")
    assert [letter.reason for letter in ps.dead_letters(topic).list()] == ["rejected"]
    world.restart()
    assert world.ps.in_namespace(namespace).topics() == [topic, f"{topic}.dlq"]


def test_settings_can_be_altered_while_a_topic_is_in_use(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0, visibility="30s")
    ps.publish("orders", b"x")
    (message,) = ps.receive("orders", "g")
    ps.alter_topic(
        "orders", max_retries=1, visibility="10s", fsync="always", codec="lz4", dedup_window="1h"
    )
    assert ps.describe_topic("orders").fsync == "always"
    ps.publish("orders", b"y")
    message.nack(delay=0)  # would be a dead letter by the old settings
    again = sorted(ps.receive("orders", "g"), key=lambda m: m.offset)
    assert [(m.value, m.delivery_count) for m in again] == [(b"x", 2), (b"y", 1)]
    world.pass_(10)
    assert ps.stats("orders").in_flight == 0
    world.restart()
    assert world.ps.describe_topic("orders").visibility_ms == 10_000


def test_partitions_are_never_taken_away(ps: Any) -> None:
    ps.create_topic("orders", partitions=3)
    with pytest.raises(InvalidInput, match="can be added, not taken away"):
        ps.alter_topic("orders", partitions=2)
    assert ps.describe_topic("orders").partitions == 3


def test_a_wrong_setting_changes_nothing(ps: Any) -> None:
    ps.create_topic("orders")
    before = ps.describe_topic("orders")
    with pytest.raises(InvalidInput, match="did you mean 'visibility'"):
        ps.alter_topic("orders", partitions=2, visiblity="1s")
    assert ps.describe_topic("orders") == before
    assert len(ps.stats("orders").partitions) == 1


def test_partitions_are_added_while_others_publish_and_consume(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders")
    stop = False
    sent: list[bytes] = []
    got: list[bytes] = []

    def publish() -> None:
        with ps.producer("orders", messages_max=5, linger="1ms") as out:
            while not stop or len(sent) < 400:
                value = b"%d" % len(sent)
                if len(sent) % 2:
                    out.send(value, key=value)
                else:
                    ps.publish("orders", value, key=value)
                sent.append(value)

    def consume() -> None:
        while not publishing.done or len(got) < len(sent):
            for message in ps.receive("orders", "g", 20, wait="50ms"):
                message.ack()
                got.append(message.value)

    publishing = Background(publish)
    workers = [publishing, Background(consume)]
    for partitions in (2, 5):
        until(lambda: len(got) > 50 * partitions)  # noqa: B023 - it is called at once
        assert ps.alter_topic("orders", partitions=partitions).partitions == partitions
    until(lambda: all(p.end > p.start for p in ps.stats("orders").partitions))
    stop = True
    for worker in workers:
        worker.result()
    assert sorted(got) == sorted(sent)
    assert len(ps.stats("orders").partitions) == 5


def test_an_added_partition_takes_its_share_at_once(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    with pytest.raises(PartitionNotFound, match="has partitions 0 to 0, not 1"):
        ps.publish("orders", b"x", partition=1)
    ps.alter_topic("orders", partitions=3)
    assert {ps.publish("orders", b"x").partition for _ in range(6)} == {0, 1, 2}
    world.kill()
    assert len(world.ps.stats("orders").partitions) == 3
    assert len(world.ps.receive("orders", "g", 10)) == 6


def test_a_deleted_topic_takes_everything_with_it(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0)
    ps.publish_batch("orders", [b"a", b"b"])
    ps.publish("orders", b"later", delay="1h")
    ps.receive("orders", "g")[0].nack(error="broken")
    with ps.stream("orders", "s", commit_every=None) as stream:
        stream.next(0)
        stream.commit()
    folder = world.folder / "topics" / "default" / "orders"
    assert folder.exists()

    ps.delete_topic("orders")
    assert ps.topics() == ["orders.dlq"]  # what was given up is not forgotten
    assert not folder.exists()
    assert ps.describe_stream_group("s").committed == {}
    world.pass_(3600)

    ps.create_topic("orders")
    assert ps.receive("orders", "g") == []
    assert list(ps.delayed("orders")) == []
    ps.publish("orders", b"new")
    with ps.stream("orders", "s") as stream:
        assert stream.next(0).value == b"new"
    world.restart()
    assert values(world.ps.receive("orders", "g")) == [b"new"]


def test_whoever_waits_for_a_topic_that_is_deleted_is_told(world: World) -> None:
    world.ps.create_topic("orders")
    poll = Background(lambda: world.ps.receive("orders", "g", wait="20s"))
    world.polls("orders")
    world.ps.delete_topic("orders")
    with pytest.raises(TopicNotFound):
        poll.result()


def test_the_catalog_survives_a_restart_and_a_crash(world: World) -> None:
    world.ps.create_topic("orders", partitions=2, visibility="1m")
    world.ps.in_namespace("team-a").create_topic("orders", max_retries=7)
    world.ps.create_topic("gone")
    world.ps.delete_topic("gone")
    for go_on in (world.restart, world.kill):
        ps = go_on()
        assert ps.topics() == ["orders"]
        assert ps.describe_topic("orders").partitions == 2
        assert ps.describe_topic("orders").visibility_ms == 60_000
        assert ps.in_namespace("team-a").describe_topic("orders").max_retries == 7


class Crash(BaseException):
    """Nothing may catch it and carry on."""


@pytest.mark.parametrize("method", ["open_topic", "open_partition"])
def test_a_crash_between_the_catalog_and_the_folder_of_a_new_topic(
    method: str, sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*args: object, **kwargs: object) -> None:
        sync.kill()
        raise Crash

    former = sync.broker
    monkeypatch.setattr(former._store, method, crash)
    sync.ps.create_topic("orders", partitions=2)
    with pytest.raises(Crash):
        sync.ps.publish("orders", b"y")
    assert sync.broker is not former
    assert sync.ps.topics() == ["orders"]
    sync.ps.publish("orders", b"x")
    assert values(sync.ps.receive("orders", "g")) == [b"x"]


def test_a_crash_between_the_catalog_and_an_added_partition(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*args: object, **kwargs: object) -> None:
        sync.kill()
        raise Crash

    sync.ps.create_topic("orders")
    sync.ps.publish("orders", b"y")
    monkeypatch.setattr(sync.broker._store, "open_partition", crash)
    with pytest.raises(Crash):
        sync.ps.alter_topic("orders", partitions=3)
    assert sync.ps.publish("orders", b"x", partition=2).partition == 2


def test_a_crash_between_the_catalog_and_the_folder_of_a_deleted_topic(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*args: object, **kwargs: object) -> None:
        sync.kill()
        raise Crash

    sync.ps.create_topic("orders")
    sync.ps.publish("orders", b"x")
    former = sync.folder
    monkeypatch.setattr(sync.broker._store, "remove_topic", crash)
    with pytest.raises(Crash):
        sync.ps.delete_topic("orders")
    assert (former / "topics" / "default" / "orders").exists()
    assert sync.ps.topics() == []
    assert not (sync.folder / "topics" / "default" / "orders").exists()


def test_a_topic_without_room_for_its_files_can_be_used_later(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    sync.ps.create_topic("orders")
    with monkeypatch.context() as patch:
        patch.setattr(sync.broker._store, "open_topic", no_room)
        with pytest.raises(DiskFull, match="No space"):
            sync.ps.publish("orders", b"x")
    sync.ps.publish("orders", b"y")
    assert values(sync.ps.receive("orders", "g")) == [b"y"]


def test_strange_files_in_the_folder_do_no_harm(sync: World) -> None:
    sync.ps.create_topic("orders")
    sync.close()
    (sync.folder / "notes.txt").write_text("mine")
    os.makedirs(sync.folder / "topics" / "default" / "half-made" / "00000")
    sync.restart()
    assert sync.ps.topics() == ["orders"]
    assert Path(sync.folder / "notes.txt").exists()
    assert not (sync.folder / "topics" / "default" / "half-made").exists()


class MeetingFolders(DiskFiles):
    """The first fsync of a topic's folder returns when another one is under way."""

    def __init__(self) -> None:
        self.broken = ""
        self.have_met = False
        self._meeting = threading.Barrier(2)

    def make_folder(self, folder: str) -> None:
        if self.broken and self.broken in folder:
            raise OSError(errno.EIO, "broken", folder)
        super().make_folder(folder)

    def sync_folder(self, folder: str) -> None:
        if "orders" in folder and not self.have_met:
            with suppress(threading.BrokenBarrierError):
                self._meeting.wait(EVENT_S_MAX)
                self.have_met = True


def test_many_partitions_are_opened_side_by_side(tmp_path: Path) -> None:
    files = MeetingFolders()
    world = World(tmp_path / "data", files=files)
    world.ps.create_topic("orders", partitions=64)
    files.broken = "00017"
    with pytest.raises(PenstockError):
        world.ps.publish("orders", b"one", partition=63)
    assert world.broker.open_topics() == []

    files.broken = ""
    assert world.ps.publish("orders", b"one", partition=63).partition == 63
    (topic,) = world.broker.open_topics()
    assert [each.number for each in topic.partitions] == list(range(64))
    assert files.have_met
    world.close_all()
