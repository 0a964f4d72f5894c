"""A roll-up as one HTML page that needs nothing but a browser: figures, charts, tables.

The charts are drawn by uPlot, which is in the page, from the numbers in `#data`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec

from penstock.record.schema import Priority

_COLOURS = {0: "#d92d20", 1: "#f79009", 2: "#2e7dd1", 3: "#667085", 4: "#b3bac5"}
_LINES = {"waited": "#2e7dd1", "handled": "#f79009"}
_GROUP_COLOURS = ("#2e7dd1", "#12b76a", "#9b5de5", "#f79009", "#06aed4", "#d92d20")
_PARTS = {"p50_s": ([2, 4], 1.25), "p95_s": (None, 2.0), "p99_s": ([6, 3], 1.25)}
"""Percentiles, with the dashes and the width of their lines."""
_BARS_MAX = 180
_STEPS_MIN = (1, 2, 5, 10, 15, 30, 60, 120, 240, 720, 1440)
"""How many minutes one bar may stand for; and multiples of the last."""

Row: TypeAlias = dict[str, Any]


def page(
    per_minute: Sequence[Row],
    groups: Sequence[Row],
    latencies: Sequence[Row] = (),
    dead_letters: Sequence[Row] = (),
) -> str:
    """Rows of the tables of a roll-up, those of groups and dead letters of many runs; times know
    their zone."""
    made = _Page()
    topics = sorted({r["topic"] for rows in (per_minute, groups, latencies) for r in rows})
    body = [_head(per_minute), _cards(per_minute, groups, latencies, dead_letters)]
    for topic in topics:
        body.append(f"<h2>{escape(topic)}</h2>")
        body.append(
            made.panels_of(
                [row for row in per_minute if row["topic"] == topic],
                [row for row in groups if row["topic"] == topic],
                [r for r in latencies if r["topic"] == topic and r["priority"] is None],
                [row for row in dead_letters if row["topic"] == topic],
            )
        )
    body += [_groups(groups), _letters(dead_letters)]
    # A script ends at the first "</", whatever it stands in.
    data = msgspec.json.encode({"panels": made.panels}).decode().replace("<", "\\u003c")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Penstock roll-up</title>'
        f"<style>{_asset('uplot.css')}{_asset('page.css')}</style></head><body>{''.join(body)}"
        f'<script id="data" type="application/json">{data}</script>'
        f"<script>{_asset('uplot.js')}</script><script>{_asset('page.js')}</script></body></html>\n"
    )


class _Page:
    """The panels of a page, which say where their numbers are."""

    def __init__(self) -> None:
        self.panels: list[Row] = []

    def panels_of(
        self,
        per_minute: Sequence[Row],
        groups: Sequence[Row],
        latencies: Sequence[Row],
        letters: Sequence[Row],
    ) -> str:
        """Those of one topic."""
        made = [self._messages(per_minute)] if per_minute else []
        by_group: defaultdict[str, list[Row]] = defaultdict(list)
        for row in latencies:
            by_group[row["group"]].append(row)
        made += [self._latencies(name, rows) for name, rows in sorted(by_group.items())]
        made += [self._lag(groups)] if groups else []
        made += [self._dead(letters)] if any(row["count"] for row in letters) else []
        return f'<div class="panels">{"".join(made)}</div>'

    def _messages(self, rows: Sequence[Row]) -> str:
        """Stacked bars where they belong in time: a minute in which nothing came is a gap."""
        minutes = [_minute(row["minute"]) for row in rows]
        step = _step(max(minutes) - min(minutes) + 1)
        stacks: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for row, minute in zip(rows, minutes, strict=True):
            stacks[minute // step][row["priority"]] += row["messages"]
        places = sorted(stacks)
        priorities = sorted({each for stack in stacks.values() for each in stack}, reverse=True)
        series = [
            {
                "name": _name(priority),
                "colour": _COLOURS.get(priority, "#333333"),
                "values": [stacks[place][priority] for place in places],
            }
            for priority in priorities
        ]
        total, size = sum(r["messages"] for r in rows), sum(r["bytes"] for r in rows)
        each = "a minute" if step == 1 else f"{step:,} minutes"
        said = f"{total:,} messages, {_size(size)}. A bar is {each}."
        times = [place * step * 60 for place in places]
        panel = {"kind": "bars", "times": times, "series": series, "step_s": step * 60}
        return self._panel("Messages by priority", said, {**panel, "wide": True})

    def _latencies(self, group: str, rows: Sequence[Row]) -> str:
        """Percentiles over time; where nothing was counted is a gap."""
        minutes = [_minute(row["minute"]) for row in rows]
        step = _step(max(minutes) - min(minutes) + 1)
        worst: defaultdict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        for row, minute in zip(rows, minutes, strict=True):
            for part in _PARTS:
                if part in row:
                    points = worst[row["kind"], part]
                    points[minute // step] = max(points.get(minute // step, 0.0), row[part])
        there = [place for points in worst.values() for place in points]
        places = range(min(there), max(there) + 1)
        series = [
            {
                "name": f"{kind} {part[:3]}",
                "colour": _LINES[kind],
                "dash": _PARTS[part][0],
                "width": _PARTS[part][1],
                # Nothing is no place on a scale of powers of ten.
                "values": [
                    max(took, 1e-6) if (took := points.get(p)) is not None else None for p in places
                ],
            }
            for (kind, part), points in sorted(worst.items(), reverse=True)
        ]
        each = "a minute" if step == 1 else f"the worst of {step:,} minutes"
        said = f"Waited until handed out, then handled until acked. A point is {each}."
        times = [place * step * 60 for place in places]
        panel = {"kind": "lines", "unit": "s", "times": times, "series": series}
        return self._panel(f"How long messages take: {group}", said, panel)

    def _lag(self, rows: Sequence[Row]) -> str:
        """What each group had to do when it was looked at."""
        times = sorted({_second(row["taken_at"]) for row in rows})
        known: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for row in rows:
            known[f"{row['group']} ({row['mode']})"][_second(row["taken_at"])] = row["lag"]
        series = [
            {
                "name": name,
                "colour": _GROUP_COLOURS[number % len(_GROUP_COLOURS)],
                "values": [points.get(time) for time in times],
            }
            for number, (name, points) in enumerate(sorted(known.items()))
        ]
        said = "Messages that a group has not done, at each run of the roll-up."
        return self._panel("Lag", said, {"kind": "lines", "times": times, "series": series})

    def _dead(self, rows: Sequence[Row]) -> str:
        counts: Counter[int] = Counter()
        for row in rows:
            counts[_second(row["taken_at"])] += row["count"]
        times = sorted(counts)
        values = [counts[time] for time in times]
        series = [{"name": "dead letters", "colour": "#d92d20", "fill": True, "values": values}]
        said = f"{values[-1]:,} wait to be redriven or purged."
        return self._panel(
            "Dead letters", said, {"kind": "lines", "times": times, "series": series}
        )

    def _panel(self, title: str, said: str, panel: Row) -> str:
        self.panels.append(panel)
        wide = " wide" if panel.get("wide") else ""
        return (
            f'<section class="panel{wide}"><h3>{escape(title)}</h3><p class="said">{escape(said)}'
            f'</p><div data-panel="{len(self.panels) - 1}"></div></section>'
        )


def _head(per_minute: Sequence[Row]) -> str:
    times = [row["minute"] for row in per_minute]
    said = f"{min(times):%Y-%m-%d %H:%M} to {max(times):%Y-%m-%d %H:%M} UTC" if times else ""
    return f'<header><h1>Penstock roll-up</h1><p class="said">{said}</p></header>'


def _cards(
    per_minute: Sequence[Row],
    groups: Sequence[Row],
    latencies: Sequence[Row],
    dead_letters: Sequence[Row],
) -> str:
    """What somebody wants to know first."""
    minutes: Counter[Any] = Counter()
    for row in per_minute:
        minutes[row["minute"]] += row["messages"]
    size = _size(sum(row["bytes"] for row in per_minute))
    now = _latest(groups, ("topic", "group", "mode"))
    letters = sum(row["count"] for row in _of_last_run(dead_letters))
    slowest = max(
        (
            r["p99_s"]
            for r in latencies
            if r["priority"] is None and r["kind"] == "waited" and "p99_s" in r
        ),
        default=None,
    )
    oldest = max((r["oldest_age_s"] for r in now if r["oldest_age_s"] is not None), default=None)
    cards = [
        (f"messages, {size} of values", f"{minutes.total():,}", False),
        ("messages in the busiest minute", f"{max(minutes.values(), default=0):,}", False),
        ("longest wait of 99 in 100", "-" if slowest is None else _age(slowest), False),
        ("largest lag of a group", f"{max((row['lag'] for row in now), default=0):,}", False),
        ("oldest message not done", "-" if oldest is None else _age(oldest), False),
        ("dead letters", f"{letters:,}", letters > 0),
    ]
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card{" bad" if is_bad else ""}"><b>{value}</b><span>{name}</span></div>'
            for name, value, is_bad in cards
        )
        + "</div>"
    )


def _groups(groups: Sequence[Row]) -> str:
    """A line for each group: how far it was when it was last looked at."""
    rows = "".join(
        f"<tr><td>{escape(row['topic'])}</td><td>{escape(row['group'])}</td><td>{row['mode']}</td>"
        f'<td class="n">{row["lag"]:,}</td><td class="n">{_age(row["oldest_age_s"])}</td></tr>'
        for row in _latest(groups, ("topic", "group", "mode"))
    )
    return rows and (
        '<h2>Groups</h2><div class="panel scroll"><table><tr><th>topic</th><th>group</th>'
        '<th>mode</th><th class="n">to do</th><th class="n">oldest of these has waited</th></tr>'
        f"{rows}</table></div>"
    )


def _letters(dead_letters: Sequence[Row]) -> str:
    """What messages died of, as far as the last run has seen."""
    found = sorted(_of_last_run(dead_letters), key=lambda row: -row["count"])
    rows = "".join(
        f"<tr><td>{escape(row['topic'])}</td><td>{escape(row['group'])}</td>"
        f"<td>{escape(row['reason'])}</td><td>{escape(row['error'])}</td>"
        f'<td class="n">{row["count"]:,}</td></tr>'
        for row in found
        if row["count"]
    )
    return rows and (
        '<h2>Dead letters</h2><div class="panel scroll"><table><tr><th>topic</th><th>group</th>'
        '<th>reason</th><th>error</th><th class="n">letters</th></tr>'
        f"{rows}</table></div>"
    )


def _latest(rows: Sequence[Row], names: Iterable[str]) -> list[Row]:
    """The last row of each."""
    names = list(names)
    ordered = sorted(rows, key=lambda row: row["taken_at"])
    found = {tuple(row[name] for name in names): row for row in ordered}
    return [found[place] for place in sorted(found)]


def _of_last_run(rows: Sequence[Row]) -> list[Row]:
    last = max((row["taken_at"] for row in rows), default=None)
    return [row for row in rows if row["taken_at"] == last]


def _asset(name: str) -> str:
    return files("penstock.spark").joinpath("rollup_page", name).read_text("utf-8")


def _minute(time: datetime) -> int:
    return int(time.timestamp() // 60)


def _second(time: datetime) -> int:
    return int(time.astimezone(UTC).timestamp())


def _step(minutes: int) -> int:
    for step in _STEPS_MIN:
        if minutes <= step * _BARS_MAX:
            return step
    return _STEPS_MIN[-1] * -(-minutes // (_STEPS_MIN[-1] * _BARS_MAX))


def _name(priority: int) -> str:
    return Priority(priority).name.lower() if priority in _COLOURS else str(priority)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    if seconds < 0.9995:
        return f"{seconds * 1e3:,.3g} ms"
    return f"{seconds:,.1f} s"


def _size(count: int) -> str:
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= length:
            return f"{count / length:,.1f} {unit}"
    return f"{count:,} bytes"
