"""The page of a roll-up: what its panels hold, and that names cannot break out of it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.spark.chart import page

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
NOON_S = int(NOON.timestamp())


def row(minute: int, messages: int, priority: int = 2, topic: str = "orders") -> dict[str, Any]:
    when = NOON + timedelta(minutes=minute)
    return {
        "topic": topic,
        "priority": priority,
        "minute": when,
        "messages": messages,
        "bytes": messages * 1000,
    }


def panels(html: str) -> list[dict[str, Any]]:
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', html)
    found: list[dict[str, Any]] = json.loads(data)["panels"]
    for panel in found:
        assert all(len(each["values"]) == len(panel["times"]) for each in panel["series"])
    return found


def named(panel: dict[str, Any]) -> dict[str, list[Any]]:
    return {each["name"]: each["values"] for each in panel["series"]}


def test_bars_stand_where_their_minute_is_and_are_stacked_from_the_least_urgent() -> None:
    rows = [row(0, 10), row(1, 5), row(9, 10), row(9, 4, priority=0), row(9, 6, priority=3)]
    (panel,) = panels(page(rows, []))
    assert panel["times"] == [NOON_S, NOON_S + 60, NOON_S + 540]
    assert list(named(panel)) == ["low", "normal", "critical"]
    assert named(panel) == {"low": [0, 0, 6], "normal": [10, 5, 10], "critical": [0, 0, 4]}


def test_a_long_time_is_drawn_whole_with_wider_bars() -> None:
    html = page([row(minute, 1) for minute in range(0, 3000, 10)], [])
    (panel,) = panels(html)
    assert len(panel["times"]) <= 180
    assert "A bar is 30 minutes" in html
    assert sum(named(panel)["normal"]) == 300


def group(minute: int, lag: int, age_s: float | None = None, name: str = "g&h") -> dict[str, Any]:
    when = NOON + timedelta(minutes=minute)
    return {
        "topic": "<b>",
        "group": name,
        "mode": "queue",
        "taken_at": when,
        "lag": lag,
        "oldest_age_s": age_s,
    }


def test_names_are_escaped_and_groups_say_how_long_the_oldest_has_waited() -> None:
    html = page([row(0, 1, topic="</script><script>")], [group(0, 1234, 7200.0)])
    assert "</script><script>alert" not in html
    assert html.count("<script") == 3  # the numbers, the library, what draws
    assert "&lt;b&gt;" in html
    assert "g&amp;h" in html
    assert "1,234" in html
    assert "2.0 h" in html


def test_what_groups_had_to_do_is_a_line_from_run_to_run() -> None:
    html = page([], [group(10, 0), group(0, 50), group(5, 100, 3.0), group(5, 7, name="late")])
    (panel,) = panels(html)
    assert panel["times"] == [NOON_S, NOON_S + 300, NOON_S + 600]
    assert named(panel) == {"g&h (queue)": [50, 100, 0], "late (queue)": [None, 7, None]}


def latency(minute: int, kind: str, p50_s: float, p95_s: float, **more: Any) -> dict[str, Any]:
    when = NOON + timedelta(minutes=minute)
    named = {"topic": "orders", "group": "g&h", "priority": None, "p99_s": p95_s * 2}
    return {**named, "minute": when, "kind": kind, "p50_s": p50_s, "p95_s": p95_s, **more}


def test_latencies_are_percentiles_with_gaps_where_nothing_was_counted() -> None:
    rows = [
        latency(0, "waited", 0.1, 10.0),
        latency(3, "waited", 0.0, 20.0),
        latency(3, "waited", 0.001, 99.0, priority=0),  # one of those above, seen alone
    ]
    html = page([], [], rows)
    (panel,) = panels(html)
    assert named(panel) == {
        "waited p50": [0.1, None, None, 1e-6],
        "waited p95": [10.0, None, None, 20.0],
        "waited p99": [20.0, None, None, 40.0],
    }
    assert "How long messages take: g&amp;h" in html
    assert "<b>40.0 s</b><span>longest wait of 99 in 100" in html


def test_a_long_time_shows_the_worst_of_its_minutes() -> None:
    rows = [latency(n, "waited", 0.5, 60.0 if n == 1000 else 1.0) for n in range(3000)]
    html = page([], [], rows)
    assert "A point is the worst of 30 minutes" in html
    (panel,) = panels(html)
    worst = named(panel)["waited p95"]
    assert (len(worst), worst.count(60.0)) == (100, 1)


def test_dead_letters_are_counted_by_run_and_by_cause() -> None:
    def letters(minute: int, error: str, count: int) -> dict[str, Any]:
        when = {"taken_at": NOON + timedelta(minutes=minute), "topic": "orders", "group": "g"}
        return {**when, "reason": "rejected", "error": error, "count": count}

    rows = [letters(0, "<old>", 9), letters(5, "no such", 2), letters(5, "time & again", 1)]
    html = page([row(0, 1)], [], [], rows)
    assert named(panels(html)[1]) == {"dead letters": [9, 3]}
    assert '<div class="card bad"><b>3</b><span>dead letters' in html
    assert "time &amp; again" in html
    assert "old" not in html.split("<h2>Dead letters</h2>")[1].split("<script")[0]
    assert "Dead letters</h2>" not in page([row(0, 1)], [], [], [letters(0, "", 0)])
