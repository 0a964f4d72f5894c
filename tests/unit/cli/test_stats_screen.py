"""The live screen shows topics and their groups, as many as there is room for."""

from __future__ import annotations

import msgspec

from penstock.cli import tables
from penstock.cli.stats import LANE_HEAD, lane_rows, screen
from penstock.model.stats import Alarm, GroupStats, LaneStats, PriorityStats, TopicStats


def topic(name: str, groups: int, depth: int = 0) -> TopicStats:
    numbers = dict.fromkeys(("messages", "size_bytes", "in_flight", "delayed", "dead"), 0)
    rates = dict.fromkeys(("publish_rate", "deliver_rate", "ack_rate"), 0.0)
    members = [
        GroupStats(
            group=f"group-{n}",
            depth=depth,
            ready=0,
            in_flight=0,
            retrying=0,
            committed={},
            depth_by_partition={},
            ready_by_priority={},
            in_flight_by_priority={},
            retrying_by_priority={},
            oldest_age_us=None,
            deliver_rate=0.0,
            ack_rate=1.5,
        )
        for n in range(groups)
    ]
    return TopicStats(
        topic=name,
        depth=depth,
        next_due_us=None,
        partitions=[],
        groups=members,
        **numbers,
        **rates,
    )


def shown(found: list[TopicStats], width: int = 80, height: int = 24) -> list[str]:
    lines = [line for line, _ in screen("./data", found, width, height)]
    assert len(lines) <= height
    return lines


def test_the_groups_are_below_the_topics() -> None:
    lines = shown([topic("orders", 2, depth=7), topic("mails", 1)])
    text = "\n".join(lines)
    assert text.index("orders") < text.index("mails") < text.index("group-0")
    assert sum("group-" in line for line in lines) == 3
    assert max(map(len, lines)) <= 80


def test_long_names_hide_no_figures() -> None:
    name = "orders-of-a-long-name-in-production-{}"
    lines = shown([topic(name.format(n), 2, depth=7_654_321) for n in range(9)])
    assert max(map(len, lines)) <= 80
    first = next(n for n, line in enumerate(lines) if line == name.format(0))
    assert lines[first + 1].split()[-3:] == ["0.0", "0.0", "0.0"]
    assert any(line.startswith("and ") and "topics" in line for line in lines)


def test_what_finds_no_room_is_counted() -> None:
    lines = shown([topic(f"topic-{n:02}", 2) for n in range(30)])
    topics = sum(line.startswith("topic-") and "group-" not in line for line in lines)
    groups = sum("group-" in line for line in lines)
    assert topics > 4
    assert groups > 4
    assert f"and {30 - topics} more topics and {60 - groups} more groups" in lines


def test_without_groups_topics_have_all_the_room() -> None:
    lines = shown([topic(f"topic-{n:02}", 0) for n in range(15)])
    assert sum(line.startswith("topic-") for line in lines) == 15


def test_figures_by_priority_fit_a_terminal() -> None:
    lane = LaneStats(
        ready=12_345_678,
        in_flight=1_234,
        enqueue_rate=1_234.5,
        dequeue_rate=1_234.5,
        last_served_us=1_700_000_000_000_000,
    )
    found = PriorityStats(topic="t" * 60, lanes={"background": lane}, partitions=[])
    head, (row,) = tables.lines(LANE_HEAD, lane_rows([found]), 80, cut=("topic",))
    assert max(map(len, [*head, row])) <= 80
    assert "12,345,678" in row
    assert "2023-11-14 22:13:20" in row


def test_alarms_are_shown_and_no_more_than_there_is_room_for() -> None:
    alarm = Alarm(kind="lag", group="g" * 100, mode="queue", partition=0, age_us=720_000_000)
    unread = Alarm(kind="unread", partition=3, age_us=8 * 86_400_000_000)
    late = [msgspec.structs.replace(topic(f"t{n}", 1), alarms=[alarm, unread]) for n in range(9)]
    lines = shown(late)
    assert sum("queue group ggg" in line for line in lines) == 2
    assert "t0: nobody has read what is dropped soon on partition 3, 8.0 days old" in lines
    assert max(map(len, lines)) <= 80
