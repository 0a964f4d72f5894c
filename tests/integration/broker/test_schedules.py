"""Recurring schedules through every door: when they fire, what is made up for, and what is not."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker import schedule_journal
from penstock.errors import DiskFull, InvalidInput, ScheduleNotFound, TopicNotFound
from tests.integration.broker.world import QuickFiles, World, take

HOUR = 3600
DAY = 24 * HOUR


@pytest.fixture
def ps(world: World) -> Any:
    world.ps.create_topic("jobs")
    return world.ps


@pytest.fixture
def jobs(sync: World) -> Any:
    sync.ps.create_topic("jobs")
    return sync.ps


def now(world: World) -> datetime:
    return datetime.fromtimestamp(world.clock.wall_ns() / 1e9, UTC)


def scheduled_for(ps: Any, topic: str = "jobs", group: str = "look") -> list[str]:
    """The moments of the fires whose messages a group has not seen yet: minutes and seconds."""
    messages = ps.receive(topic, group, max_messages=1000)
    for message in messages:
        message.ack()
    return [message.headers["penstock-scheduled-for"].decode()[11:19] for message in messages]


# The manual clock begins at 2023-11-14 22:13:20 UTC.


def test_a_schedule_publishes_its_message_at_each_fire(ps: Any, world: World) -> None:
    made = ps.schedule(
        "nightly",
        topic="jobs",
        value={"report": "sales"},
        key="k",
        headers={"h": "1"},
        priority="high",
        cron="30 2 * * *",
        timezone="Europe/Berlin",
    )
    assert (made.name, made.fired, len(made.next_us), made.last) == ("nightly", 0, 10, [])
    world.pass_(3 * HOUR)
    assert take(ps, "jobs") == []
    world.pass_(1 * HOUR + 1000)  # it is 02:30 in Berlin
    (message,) = ps.receive("jobs", "g")
    assert (message.value, message.key, int(message.priority)) == (b'{"report":"sales"}', b"k", 1)
    assert message.headers == {
        "h": b"1",
        "content-type": b"application/json",
        "penstock-schedule": b"nightly",
        "penstock-scheduled-for": b"2023-11-15T01:30:00Z",
    }
    described = ps.describe_schedule("nightly")
    (fire,) = described.last
    assert (fire.number, fire.kind, fire.id, fire.offset) == (1, "scheduled", message.id, 0)
    assert described.next_us[0] == fire.scheduled_for_us + DAY * 10**6
    assert (described.value_bytes(), described.key_bytes()) == (message.value, b"k")


def test_an_interval_goes_on_without_drift_over_a_restart(ps: Any, world: World) -> None:
    ps.schedule("tick", topic="jobs", every="15m", catch_up_policy="all")
    for _ in range(4):
        world.pass_(600)
    assert scheduled_for(ps) == ["22:28:20", "22:43:20"]
    ps = world.restart(down_s=1200)
    world.pass_(0)
    assert scheduled_for(ps) == ["22:58:20", "23:13:20"]
    ps = world.kill(down_s=900)
    world.pass_(0)
    assert scheduled_for(ps) == ["23:28:20"]


def test_a_single_moment_fires_once_and_is_over(ps: Any, world: World) -> None:
    ps.schedule("once", topic="jobs", value="x", at=now(world) + timedelta(hours=1))
    world.pass_(2 * HOUR)
    assert take(ps, "jobs") == [b"x"]
    described = ps.describe_schedule("once")
    assert (described.fired, described.next_us) == (1, [])
    with pytest.raises(InvalidInput, match="never fire"):
        ps.schedule("late", topic="jobs", at=now(world) - timedelta(hours=1))


@pytest.mark.parametrize(
    ("policy", "made"),
    [("last", ["05:13:20"]), ("all", [f"0{h}:13:20" for h in range(6)]), ("none", [])],
)
def test_fires_that_are_missed_while_the_broker_is_down(
    policy: str, made: list[str], jobs: Any, sync: World
) -> None:
    jobs.schedule("tick", topic="jobs", every="1h", catch_up="6h", catch_up_policy=policy)
    sync.pass_(HOUR)
    assert scheduled_for(jobs) == ["23:13:20"]
    ps = sync.restart(down_s=6 * HOUR + 600)
    sync.pass_(0)
    assert scheduled_for(ps) == made
    sync.pass_(3000)
    assert scheduled_for(ps) == ["06:13:20"]


@pytest.mark.parametrize("policy", ["last", "all", "none"])
def test_a_clock_that_is_set_back_repeats_no_fire(policy: str, jobs: Any, sync: World) -> None:
    jobs.schedule("tick", topic="jobs", every="1m", catch_up_policy=policy)
    sync.pass_(60)
    sync.pass_(60)
    assert scheduled_for(jobs) == ["22:14:20", "22:15:20"]
    sync.clock.jump_wall(-HOUR)
    for _ in range(60):
        sync.pass_(60)
    assert scheduled_for(jobs) == []
    sync.pass_(60)
    assert scheduled_for(jobs) == ["22:16:20"]


def test_a_clock_that_is_set_forward_misses_fires(jobs: Any, sync: World) -> None:
    jobs.schedule("tick", topic="jobs", every="1m", catch_up_policy="last")
    jobs.schedule("all", topic="jobs", every="1m", catch_up_policy="all")
    sync.clock.jump_wall(600)
    sync.pass_(1)  # a clock that was set is noticed within a second
    found = scheduled_for(jobs)
    assert len(found) == 1 + 10
    assert found.count("22:23:20") == 2


def test_a_schedule_is_paused_and_goes_on_after_now(ps: Any, world: World) -> None:
    ps.schedule("tick", topic="jobs", every="1m", catch_up_policy="all")
    world.pass_(60)
    assert ps.pause_schedule("tick").paused
    world.pass_(600)
    assert ps.describe_schedule("tick").next_us == []
    assert scheduled_for(ps) == ["22:14:20"]
    ps = world.restart()
    assert not ps.resume_schedule("tick").paused
    world.pass_(60)
    assert scheduled_for(ps) == ["22:25:20"]


def test_a_trigger_fires_at_once_and_moves_nothing(ps: Any, world: World) -> None:
    ps.schedule("nightly", topic="jobs", value="x", cron="@daily", paused=True)
    fire = ps.trigger_schedule("nightly")
    (message,) = ps.receive("jobs", "g")
    assert (fire.kind, fire.number, fire.id) == ("triggered", 1, message.id)
    ps.resume_schedule("nightly")
    world.pass_(DAY)
    assert ps.describe_schedule("nightly").fired == 2


def test_a_backfill_makes_the_fires_of_a_time_that_is_over(ps: Any, world: World) -> None:
    ps.schedule("hourly", topic="jobs", cron="@hourly")
    began = now(world)
    assert ps.backfill_schedule("hourly", began - timedelta(hours=3), began) == 3
    assert scheduled_for(ps) == ["20:00:00", "21:00:00", "22:00:00"]
    assert ps.describe_schedule("hourly").last[0].kind == "backfilled"
    assert ps.backfill_schedule("hourly", began, began) == 0
    with pytest.raises(InvalidInput, match="future"):
        ps.backfill_schedule("hourly", began, began + timedelta(hours=1))
    assert ps.backfill_schedule("hourly", began - timedelta(hours=1000), began) == 1000
    with pytest.raises(InvalidInput, match="1,000"):
        ps.backfill_schedule("hourly", began - timedelta(hours=1001), began)


def test_putting_a_schedule_again_changes_it_and_keeps_its_count(ps: Any, world: World) -> None:
    ps.schedule("tick", topic="jobs", value="one", every="1m")
    world.pass_(60)
    ps.pause_schedule("tick")
    again = ps.schedule("tick", topic="jobs", value="two", every="1m")
    assert (again.fired, again.paused) == (1, True)  # who deploys does not resume
    ps.schedule("tick", topic="jobs", value="two", every="1m", paused=False)
    world.pass_(60)
    assert take(ps, "jobs") == [b"one", b"two"]
    changed = ps.schedule("tick", topic="jobs", value="two", every="1h")
    assert changed.next_us[0] == world.clock.wall_ns() // 1000 + HOUR * 10**6


def test_the_same_schedule_put_again_does_not_forget_what_was_missed(
    jobs: Any, sync: World
) -> None:
    jobs.schedule("tick", topic="jobs", every="1h", catch_up_policy="all")
    ps = sync.restart(down_s=3 * HOUR)
    ps.schedule("tick", topic="jobs", every="1h", catch_up_policy="all")
    sync.pass_(0)
    assert scheduled_for(ps) == ["23:13:20", "00:13:20", "01:13:20"]


def test_schedules_are_listed_by_name_in_their_namespace(ps: Any, world: World) -> None:
    for name in ("b", "a", "c"):
        ps.schedule(name, topic="jobs", every="1h")
    world.client("other").create_topic("jobs")
    world.client("other").schedule("elsewhere", topic="jobs", every="1h")
    world.pass_(HOUR)
    found = list(ps.schedules())
    assert [each.name for each in found] == ["a", "b", "c"]
    assert [(len(each.next_us), len(each.last)) for each in found] == [(1, 1)] * 3
    assert ps.delete_schedule("b")
    assert not ps.delete_schedule("b")
    assert [each.name for each in ps.schedules()] == ["a", "c"]
    ps = world.restart()
    assert [each.name for each in ps.schedules()] == ["a", "c"]
    with pytest.raises(ScheduleNotFound, match="'b'"):
        ps.describe_schedule("b")


def test_the_last_twenty_fires_are_remembered(jobs: Any, sync: World) -> None:
    jobs.schedule("tick", topic="jobs", every="1m")
    for _ in range(30):
        sync.pass_(60)
    ps = sync.restart()
    last = ps.describe_schedule("tick").last
    assert [fire.number for fire in last] == list(range(30, 10, -1))
    assert [fire.offset for fire in last] == list(range(29, 9, -1))


# Overlap.


def test_skip_leaves_a_fire_out_while_the_last_one_is_at_work(ps: Any, world: World) -> None:
    ps.schedule("tick", topic="jobs", every="1m", overlap="skip", group="workers")
    world.pass_(60)
    world.pass_(60)
    assert ps.describe_schedule("tick").fired == 1  # nobody has received it yet
    (message,) = ps.receive("jobs", "workers", visibility="1h")
    world.pass_(60)
    described = ps.describe_schedule("tick")
    assert (described.fired, described.skipped) == (1, 2)
    message.ack()
    world.pass_(60)
    assert ps.describe_schedule("tick").fired == 2


def test_buffer_one_makes_one_fire_as_soon_as_the_last_one_is_settled(
    ps: Any, world: World
) -> None:
    ps.schedule("tick", topic="jobs", every="1m", overlap="buffer_one", group="workers")
    world.pass_(60)
    (message,) = ps.receive("jobs", "workers", visibility="1h")
    for _ in range(3):
        world.pass_(60)
    described = ps.describe_schedule("tick")
    assert (described.fired, described.skipped) == (1, 2)
    assert described.buffered_us == described.last[0].scheduled_for_us + 60 * 10**6
    message.ack()
    world.pass_(0)
    assert ps.describe_schedule("tick").fired == 2
    (message,) = ps.receive("jobs", "workers")
    assert message.headers["penstock-scheduled-for"].endswith(b"22:15:20Z")


def test_a_buffered_fire_survives_a_restart(jobs: Any, sync: World) -> None:
    jobs.schedule("tick", topic="jobs", every="1h", overlap="buffer_one", group="workers")
    sync.pass_(HOUR)
    (message,) = jobs.receive("jobs", "workers", visibility="12h")
    sync.pass_(HOUR)
    ps = sync.restart()
    sync.pass_(1)
    assert ps.describe_schedule("tick").fired == 1
    ps.ack("workers", [message.receipt])
    sync.pass_(1)
    assert ps.describe_schedule("tick").fired == 2


def test_a_message_that_is_given_up_or_purged_is_settled(jobs: Any, sync: World) -> None:
    jobs.schedule("tick", topic="jobs", every="1m", overlap="skip", group="workers")
    sync.pass_(60)
    (message,) = jobs.receive("jobs", "workers")
    message.reject("no")
    sync.pass_(60)
    assert jobs.describe_schedule("tick").fired == 2
    jobs.purge("jobs")
    sync.pass_(60)
    assert jobs.describe_schedule("tick").fired == 3


# What stands in the way.


def test_a_topic_that_is_deleted_shows_and_the_schedule_goes_on(ps: Any, world: World) -> None:
    ps.schedule("tick", topic="jobs", every="1m")
    world.pass_(60)
    ps.delete_topic("jobs")
    world.pass_(60)
    described = ps.describe_schedule("tick")
    assert "no topic 'jobs'" in described.error
    assert (described.fired, described.last[0].id) == (2, "")
    with pytest.raises(TopicNotFound):
        ps.trigger_schedule("tick")
    ps.create_topic("jobs")
    world.pass_(60)
    assert scheduled_for(ps) == ["22:16:20"]
    assert ps.describe_schedule("tick").error == ""


@pytest.mark.parametrize("is_open", [True, False])
def test_a_full_disk_delays_a_fire_and_loses_none(is_open: bool, tmp_path: Path) -> None:
    files = QuickFiles()
    world = World(tmp_path / "data", files=files)
    world.ps.create_topic("jobs")
    if is_open:
        world.ps.receive("jobs", "look")
    world.ps.schedule("tick", topic="jobs", every="1h")

    def full(path: str) -> None:
        if "/topics/" in path:
            raise OSError(28, "No space left on device")

    world.pass_(1800)
    files.before_append = full
    world.pass_(1800)
    described = world.ps.describe_schedule("tick")
    assert "no room" in described.error
    assert [fire.id for fire in described.last] == [""] * is_open  # committed, if it could be
    files.before_append = None
    world.pass_(1)
    assert scheduled_for(world.ps) == ["23:13:20"]
    assert world.ps.describe_schedule("tick").error == ""
    world.close_all()


def test_no_fire_is_published_before_an_earlier_one_that_failed(tmp_path: Path) -> None:
    files = QuickFiles()
    world = World(tmp_path / "data", files=files)
    world.ps.create_topic("jobs", partitions=1)
    world.ps.receive("jobs", "look")
    world.ps.schedule("tick", topic="jobs", every="1h", catch_up="1d", catch_up_policy="all")
    failures = iter(range(1))

    def full(path: str) -> None:
        if "/jobs/00000/log/" in path and next(failures, None) is not None:
            raise OSError(28, "No space left on device")

    files.before_append = full
    world.pass_(3 * HOUR)
    world.pass_(1)
    assert scheduled_for(world.ps) == ["23:13:20", "00:13:20", "01:13:20"]
    world.close_all()


def test_what_failed_is_tried_again_although_the_clock_was_set_back(tmp_path: Path) -> None:
    files = QuickFiles()
    world = World(tmp_path / "data", files=files)
    world.ps.create_topic("jobs")
    world.ps.receive("jobs", "look")
    world.ps.schedule("tick", topic="jobs", every="1h")

    def full(path: str) -> None:
        if "/topics/" in path:
            raise OSError(28, "No space left on device")

    files.before_append = full
    world.pass_(HOUR)
    files.before_append = None
    world.clock.jump_wall(-1800)
    world.pass_(1)
    world.pass_(1)
    assert scheduled_for(world.ps) == ["23:13:20"]
    world.pass_(HOUR)
    assert scheduled_for(world.ps) == []
    world.close_all()


def test_a_journal_that_has_no_room_delays_a_fire_and_loses_none(tmp_path: Path) -> None:
    files = QuickFiles()
    world = World(tmp_path / "data", files=files)
    world.ps.create_topic("jobs")
    world.ps.schedule("tick", topic="jobs", every="1h")

    def full(path: str) -> None:
        if "/schedules/" in path:
            raise OSError(28, "No space left on device")

    files.before_append = full
    world.pass_(HOUR)
    assert "no room" in world.ps.describe_schedule("tick").error
    assert take(world.ps, "jobs") == []
    with pytest.raises(DiskFull):
        world.ps.schedule("more", topic="jobs", every="1h")
    files.before_append = None
    world.pass_(1)
    assert scheduled_for(world.ps) == ["23:13:20"]
    world.close_all()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, "one of cron, every and at"),
        ({"every": "1h", "overlap": "skip"}, "name the group"),
        ({"every": "1h", "value": "x" * 300_000}, "bytes"),
        ({"every": "1h", "headers": {"penstock-schedule": "x"}}, "by the fire itself"),
        ({"every": "1h", "catch_up": "1000d"}, "366 days"),
        ({"cron": "* *"}, "such as"),
        ({"cron": 5}, "cron"),
        ({"every": "1h", "timezone": 5}, "timezone"),
        ({"every": "1h", "topic": "No Topic"}, "not allowed"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(
    how: dict[str, Any], said: str, jobs: Any, sync: World
) -> None:
    with pytest.raises(InvalidInput, match=said):
        jobs.schedule("bad", **{"topic": "jobs"} | how)
    assert list(jobs.schedules()) == []


def test_a_schedule_for_no_topic_or_under_no_name_is_refused(ps: Any) -> None:
    with pytest.raises(TopicNotFound):
        ps.schedule("tick", topic="nowhere", every="1h")
    with pytest.raises(InvalidInput, match="schedule name"):
        ps.schedule("no name", topic="jobs", every="1h")


# Many.


def test_idle_schedules_open_no_topic_and_wake_nobody_but_each_second(
    jobs: Any, sync: World
) -> None:
    for number in range(300):
        jobs.create_topic(f"t{number}")
        jobs.schedule(f"s{number}", topic=f"t{number}", cron="0 0 1 1 *")
    sync.restart()
    sync.pass_(10)
    assert sync.broker.open_topics() == []
    ran = sum(sync.pass_(0.1) or 0 for _ in range(20))
    assert ran == 0
    deadline_ns = sync.broker.next_deadline()
    assert deadline_ns is not None
    assert 0 <= deadline_ns - sync.clock.monotonic_ns() <= 10**9
    assert sync.broker.housekeep() <= 1


def test_many_schedules_that_are_due_together_fire_each_once(jobs: Any, sync: World) -> None:
    for number in range(700):
        jobs.schedule(f"s{number}", topic="jobs", value=str(number), cron="0 23 * * *")
    sync.pass_(2801)
    got = [int(value) for _ in range(3) for value in take(jobs, "jobs")]
    assert sorted(got) == list(range(700))


def test_the_journal_stays_small_however_often_schedules_fire(
    jobs: Any, sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_journal, "_CHECKPOINT_BYTES", 32 << 10)
    jobs.schedule("tick", topic="jobs", value="x" * 100, every="10ms", catch_up_policy="all")
    largest = 0
    for _ in range(40):
        sync.pass_(0.5)
        journal = sync.folder / "schedules"
        largest = max(largest, sum(path.stat().st_size for path in journal.rglob("*.log")))
    assert jobs.describe_schedule("tick").fired == 40 * 50
    assert 0 < largest < 100 << 10
    ps = sync.kill()
    sync.pass_(0)
    assert ps.describe_schedule("tick").fired == 40 * 50
    assert ps.stats("jobs").messages == 40 * 50


_ANOTHER_PROCESS = """
import sys, penstock
with penstock.connect(sys.argv[1]) as ps:
    fired = set()
    while len(fired) < 2:
        for message in ps.receive("jobs", "g", wait="20s"):
            fired.add(message.headers["penstock-schedule"])
            message.ack()
    print("pandas" in sys.modules)
"""


def test_the_first_fire_of_a_process_waits_for_no_import(tmp_path: Path) -> None:
    """Of pandas, which Arrow imports on the quiet: the fire was late by as much as that took."""
    pytest.importorskip("pandas")
    folder = str(tmp_path / "data")
    with penstock.connect(folder) as ps:
        ps.create_topic("jobs", trace_sample=0)  # events are stored by a thread of their own
        ps.schedule("plain", topic="jobs", value=b"x", every="10ms")
        headers = {"a": b"1", "b": None}
        more: dict[str, Any] = {"key": b"k", "headers": headers, "ttl": "1h", "priority": "high"}
        ps.schedule("more", topic="jobs", value=b"x", every="10ms", **more)
    command = [sys.executable, "-c", _ANOTHER_PROCESS, folder]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"False\n"
