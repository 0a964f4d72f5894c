"""Topics are opened when they are used, or when something in them falls due."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import DiskFull
from penstock.model.names import TopicName, topic_name
from tests.integration.broker.world import World, values


def opened(world: World) -> set[str]:
    return {topic.name.topic for topic in world.broker.open_topics()}


def test_a_topic_is_opened_by_its_first_use(sync: World) -> None:
    for name in ("a", "b", "c"):
        sync.ps.create_topic(name)
    assert opened(sync) == set()
    sync.ps.publish("a", b"x")
    sync.ps.receive("b", "g")
    assert opened(sync) == {"a", "b"}
    ps = sync.restart()
    sync.pass_(0)
    assert opened(sync) == set()
    assert values(ps.receive("a", "g")) == [b"x"]
    assert opened(sync) == {"a"}


def test_after_a_kill_those_that_were_open_are_opened_by_themselves(sync: World) -> None:
    for name in ("a", "b", "c"):
        sync.ps.create_topic(name)
    sync.ps.publish("a", b"x")
    sync.restart()
    sync.ps.publish("b", b"x")
    sync.kill()
    assert opened(sync) == set()
    sync.pass_(0)
    assert opened(sync) == {"b"}


def test_one_with_messages_in_hand_is_opened_by_itself_and_gives_them_up_in_time(
    sync: World,
) -> None:
    sync.ps.create_topic("a", max_retries=0)
    sync.ps.publish("a", b"x")
    assert sync.ps.receive("a", "g", visibility="1m")
    sync.restart()
    sync.pass_(61)
    assert opened(sync) == {"a", "a.dlq"}
    assert sync.ps.dead_letters("a").count() == 1


def test_a_delayed_message_opens_its_topic_when_it_falls_due(sync: World) -> None:
    sync.ps.create_topic("a")
    sync.ps.publish("a", b"later", delay="1h")
    sync.restart()
    sync.pass_(3599)
    assert opened(sync) == set()
    sync.pass_(1)
    assert opened(sync) == {"a"}
    assert values(sync.ps.receive("a", "g")) == [b"later"]


def test_a_topic_is_opened_when_messages_grow_too_old(sync: World) -> None:
    sync.ps.create_topic("a", retention="1d")
    sync.ps.publish("a", b"old")
    sync.ps.receive("a", "g")[0].ack()  # or somebody would be told before that nobody has read it
    sync.restart()
    sync.pass_(86_390)
    assert opened(sync) == set()
    sync.pass_(60)
    assert opened(sync) == {"a"}
    sync.pass_(60)
    assert sync.ps.stats("a").messages == 0


def test_statistics_do_not_keep_a_topic_open(sync: World) -> None:
    sync.ps.create_topic("a", partitions=2)
    sync.ps.create_topic("empty", partitions=3)
    sync.ps.publish_batch("a", [b"1", b"2"], partition=1)
    sync.ps.receive_batch("a", "g", max_messages=1).ack()
    before = sync.ps.stats("a")
    sync.restart()
    after = sync.ps.stats("a")
    assert (after.messages, after.depth) == (before.messages, before.depth) == (2, 1)
    assert [p.end for p in after.partitions] == [0, 2]
    assert [g.group for g in after.groups] == ["g"]
    empty = sync.ps.stats("empty")
    assert (empty.messages, len(empty.partitions)) == (0, 3)
    assert opened(sync) == set()
    assert not (sync.folder / "topics" / "default" / "empty").exists()


def test_statistics_of_a_topic_at_rest_open_it_once(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync.ps.create_topic("a", lag_alarm="1h")
    sync.ps.publish_batch("a", [b"1", b"2", b"3"])
    acked, rejected, _ = sync.ps.receive("a", "g", 3)
    acked.ack()
    rejected.reject("no")
    sync.pass_(60)
    sync.restart()
    store = sync.broker._store
    files: list[str] = []
    open_topic = store.open_topic

    def noted(name: TopicName, *rest: object) -> object:
        files.append(name.topic)
        return open_topic(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "open_topic", noted)
    first = sync.ps.stats("a")
    assert (first.dead, first.depth, first.groups[0].oldest_age_us) == (1, 1, 60_000_000)
    assert sorted(files) == ["a", "a.dlq"]
    assert opened(sync) == set()
    sync.clock.advance(30)
    again = sync.ps.stats("a")
    assert sorted(files) == ["a", "a.dlq"]
    assert (again.dead, again.depth, again.groups[0].oldest_age_us) == (1, 1, 90_000_000)
    assert again.groups[0].in_flight == 0

    sync.ps.dead_letters("a").purge()
    assert sync.ps.stats("a").dead == 0
    sync.ps.publish("a", b"4")
    assert sync.ps.stats("a").depth == 2


def test_a_topic_that_was_deleted_at_rest_leaves_no_statistics(sync: World) -> None:
    sync.ps.create_topic("a")
    sync.ps.publish("a", b"x")
    sync.restart()
    assert sync.ps.stats("a").messages == 1
    sync.ps.delete_topic("a")
    sync.ps.create_topic("a")
    assert sync.ps.stats("a").messages == 0


@pytest.mark.parametrize("first", ["stats", "publish"])
def test_progress_on_other_topics_at_rest_is_taken_in_while_one_is_looked_at(
    first: str, sync: World
) -> None:
    for name in ("a", "b"):
        sync.ps.create_topic(name, retention="1h", retention_waits_for=["archive"])
        sync.ps.publish_batch(name, [b"1", b"2"])
    sync.pass_(3500)  # an alarm of a message that nobody has read is near
    sync.close()
    left = sync.folder / "progress" / f"archive.{1:020d}.json"
    left.parent.mkdir(exist_ok=True)
    left.write_text('{"group": "archive", "offsets": {"b": {"0": 1}, "a": {"0": 2}}}')
    sync.restart()
    if first == "stats":
        sync.ps.stats("a")
    else:
        sync.ps.publish("a", b"3")
        sync.broker.housekeep()
    sync.ps.stats("b")
    assert sync.broker.streams.positions(topic_name("a", "default")) == {"archive": {0: 2}}
    assert sync.broker.streams.positions(topic_name("b", "default")) == {"archive": {0: 1}}
    assert not left.exists()


def test_a_broker_that_is_closed_leaves_the_progress_of_others_to_the_next(sync: World) -> None:
    sync.ps.create_topic("a")
    sync.ps.publish_batch("a", [b"x"] * 3)
    broker = sync.broker
    sync.close()
    left = sync.folder / "progress" / f"archive.{1:020d}.json"
    left.parent.mkdir(exist_ok=True)
    left.write_text('{"group": "archive", "offsets": {"a": {"0": 2}}}')
    broker.streams.take_in()
    assert left.exists()
    sync.restart()
    assert [*sync.ps.describe_stream_group("archive").committed.values()] == [2]


def test_the_lag_of_a_stream_group_opens_no_topic(sync: World) -> None:
    sync.ps.create_topic("a", partitions=2)
    sync.ps.publish_batch("a", [b"1", b"2", b"3"], partition=1)
    sync.ps.reset_stream_group("audit", "a", 1, partition=1)
    sync.restart()
    group = sync.ps.describe_stream_group("audit")
    assert {place.partition: lag for place, lag in group.lag.items()} == {0: 0, 1: 2}
    assert opened(sync) == set()
    sync.ps.publish("a", b"4", partition=1)
    assert sum(sync.ps.describe_stream_group("audit").lag.values()) == 3


def test_a_topic_that_was_deleted_and_made_again_is_not_opened_by_what_it_was(
    sync: World,
) -> None:
    sync.ps.create_topic("a")
    sync.ps.publish("a", b"x", delay="1m")
    sync.ps.delete_topic("a")
    sync.ps.create_topic("a")
    sync.kill()
    sync.pass_(3600)
    assert opened(sync) == set()


def test_a_topic_that_cannot_be_opened_whole_leaves_nothing_open(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync.ps.create_topic("wide", partitions=10)
    store = sync.broker._store
    open_partition = store.open_partition

    def few(name: object, number: int, *rest: object) -> object:
        if number == 7:
            raise DiskFull("no room")
        return open_partition(name, number, *rest)  # type: ignore[arg-type]

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(store, "open_partition", few)
        with pytest.raises(DiskFull):
            sync.ps.publish("wide", b"x")
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # those of the journal of activity
    assert sync.broker.topics() == [topic_name("wide")]
    sync.ps.publish("wide", b"x", partition=7)


WIDE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import penstock
with penstock.connect(sys.argv[1]) as ps:
    ps.create_topic("wide", partitions=60)
    for number in range(60):
        ps.publish("wide", b"%d" % number, partition=number)
    for number in range(60):
        ps.create_topic(f"narrow-{number}")
        ps.publish(f"narrow-{number}", b"x", delay=0)
    found = [m.value for m in ps.receive("wide", "g", max_messages=100, wait="10s")]
    assert sorted(map(int, found)) == list(range(60)), found
    for number in range(60):
        assert len(ps.receive(f"narrow-{number}", "g", wait="10s")) == 1
"""


def test_more_logs_than_descriptors(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WIDE, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
