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
