"""The page of a roll-up: bars stand where their minute is, and say what they count."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.spark.chart import page

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def row(minute: int, messages: int, priority: int = 2, topic: str = "orders") -> dict[str, Any]:
    when = NOON + timedelta(minutes=minute)
    return {
        "topic": topic,
        "priority": priority,
        "minute": when,
        "messages": messages,
        "bytes": messages * 1000,
    }


def bars(html: str) -> list[tuple[float, float, float, str]]:
    """x, y, height and title of each."""
    found = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)".*?<title>(.*?)</title>',
        html,
    )
    return [(float(x), float(y), float(height), title) for x, y, height, title in found]


def test_a_minute_without_messages_is_a_gap() -> None:
    drawn = bars(page([row(0, 10), row(1, 5), row(9, 10)], []))
    first, second, last = (x for x, *_ in drawn)
    assert round(last - first, 1) == round(9 * (second - first), 1)
    assert [height for _, _, height, _ in drawn] == [180.0, 90.0, 180.0]
    assert drawn[1][3] == "2026-11-15 12:01: 5 normal"


def test_priorities_are_stacked_with_the_most_urgent_on_top() -> None:
    low, critical = bars(page([row(0, 4, priority=0), row(0, 6, priority=3)], []))
    assert (low[3], critical[3]) == ("2026-11-15 12:00: 6 low", "2026-11-15 12:00: 4 critical")
    assert round(critical[1] + critical[2], 1) == low[1]


def test_a_long_time_is_drawn_whole_with_wider_bars() -> None:
    html = page([row(minute, 1) for minute in range(0, 3000, 10)], [])
    drawn = bars(html)
    assert len(drawn) <= 180
    assert "A bar is 30 minutes" in html
    assert sum(int(re.search(r": (\d+) ", title)[1]) for *_, title in drawn) == 300  # type: ignore[index]


def group(minute: int, lag: int, age_s: float | None = None) -> dict[str, Any]:
    when = NOON + timedelta(minutes=minute)
    named = {"topic": "<b>", "group": "g&h", "mode": "queue"}
    return {**named, "taken_at": when, "lag": lag, "oldest_age_s": age_s}


def test_names_are_escaped_and_groups_say_how_long_the_oldest_has_waited() -> None:
    html = page([row(0, 1, topic="<script>")], [group(0, 1234, 7200.0)])
    assert "<script>" not in html
    assert "&lt;b&gt;" in html
    assert "g&amp;h" in html
    assert "1,234" in html
    assert "2.0 h" in html
    assert "polyline" not in html  # nothing to compare with yet


def test_what_a_group_had_to_do_is_a_line_from_run_to_run() -> None:
    html = page([], [group(10, 0), group(0, 50), group(5, 100, 3.0)])
    assert html.count("g&amp;h") == 1
    assert 'points="2.0,16.0 100.0,2.0 198.0,30.0"' in html
    assert "at most 100" in html


def latency(minute: int, kind: str, p50_s: float, p95_s: float, **more: Any) -> dict[str, Any]:
    when = NOON + timedelta(minutes=minute)
    named = {"topic": "orders", "group": "g&h", "priority": None}
    return {**named, "minute": when, "kind": kind, "p50_s": p50_s, "p95_s": p95_s, **more}


def points(html: str) -> dict[str, tuple[float, float]]:
    """Where each point stands, by what it says."""
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)".*?<title>(.*?)</title>', html)
    return {said: (float(x), float(y)) for x, y, said in found}


def test_latencies_are_lines_on_a_scale_of_powers_of_ten() -> None:
    rows = [
        latency(0, "waited", 0.1, 10.0),
        latency(1, "waited", 1.0, 10.0),
        latency(2, "waited", 10.0, 10.0),
        latency(2, "waited", 0.001, 99.0, priority=0),  # one of those above, seen alone
    ]
    html = page([], [], rows)
    assert "orders, g&amp;h: how long messages take" in html
    for label in (">100 ms<", ">1 s<", ">10 s<"):
        assert label in html
    assert "99" not in html
    drawn = points(html)
    assert len(drawn) == 6
    heights = [
        drawn[f"2026-11-15 12:0{n}: waited {v} (p50)"][1]
        for n, v in enumerate(["100 ms", "1 s", "10 s"])
    ]
    assert heights == [192.0, 102.0, 12.0]
    assert html.count("<polyline") == 2


def test_a_minute_in_which_nothing_was_counted_breaks_the_line() -> None:
    rows = [latency(n, "handled", 0.0, 2e-5) for n in (0, 1, 5, 6, 7)]
    html = page([], [], rows)
    assert html.count("<polyline") == 4
    assert "handled 20 us (p95)" in html
    assert "handled 0 us (p50)" in html


def test_a_long_time_shows_the_worst_of_its_minutes() -> None:
    rows = [latency(n, "waited", 0.5, 60.0 if n == 1000 else 1.0) for n in range(3000)]
    html = page([], [], rows)
    assert "A point is the worst of 30 minutes" in html
    drawn = points(html)
    assert len(drawn) == 2 * 100
    assert [said for said in drawn if "60 s" in said] == ["2026-11-16 04:30: waited 60 s (p95)"]
