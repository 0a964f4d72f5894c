"""A roll-up as one HTML page: bars and lines along the time, a table of groups. No scripts, no
fonts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, floor, log10
from typing import Any

from penstock.record.schema import Priority

_COLOURS = {0: "#c0392b", 1: "#e67e22", 2: "#2980b9", 3: "#7f8c8d", 4: "#bdc3c7"}
_LINES = {"waited": "#2980b9", "handled": "#e67e22"}
_SHORTEST_S = 1e-6
_LEFT, _WIDTH, _TOP, _HEIGHT = 64, 880, 12, 180
_BARS_MAX = 180
_STEPS_MIN = (1, 2, 5, 10, 15, 30, 60, 120, 240, 720, 1440)
"""How many minutes one bar may stand for; and multiples of the last."""

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --faint: #8886; --paper: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #1b1b1b } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  color: var(--ink); background: var(--paper) }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 1.8rem 0 .2rem }
svg { width: 100%; height: auto } svg text { font-size: 11px; fill: var(--ink) }
svg line { stroke: var(--faint) }
table { border-collapse: collapse }
td, th { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--faint); text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }
.said { color: #888; margin: 0 }
"""


def page(
    per_minute: Sequence[dict[str, Any]],
    groups: Sequence[dict[str, Any]],
    latencies: Sequence[dict[str, Any]] = (),
) -> str:
    """Rows of the tables of a roll-up, those of groups of many runs; times know their zone."""
    topics: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in per_minute:
        topics[row["topic"]].append(row)
    key = "".join(
        f'<span style="background:{_COLOURS[p]}"></span>{p.name.lower()}' for p in Priority
    )
    parts = [f'<p class="key">Messages by priority:{key}</p>']
    for topic, rows in sorted(topics.items()):
        total = sum(row["messages"] for row in rows)
        size = sum(row["bytes"] for row in rows)
        parts.append(f"<h2>{escape(topic)}: {total:,} messages, {_size(size)}</h2>{_bars(rows)}")
    parts.append(_latencies(latencies))
    parts.append(_groups(groups))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Penstock roll-up</title>'
        f"<style>{_STYLE}</style></head><body><h1>Penstock roll-up</h1>{''.join(parts)}"
        "</body></html>\n"
    )


def _bars(rows: Sequence[dict[str, Any]]) -> str:
    """Stacked bars where they belong in time: a minute in which nothing came is a gap."""
    minutes = [int(row["minute"].timestamp() // 60) for row in rows]
    step = _step(max(minutes) - min(minutes) + 1)
    first, last = min(minutes) // step, max(minutes) // step
    stacks: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row, minute in zip(rows, minutes, strict=True):
        stacks[minute // step][row["priority"]] += row["messages"]
    top = _round_up(max(stack.total() for stack in stacks.values()))
    width = min(36.0, _WIDTH / (last - first + 1))
    drawn = [_grid(top)]
    for number, stack in sorted(stacks.items()):
        x, y = _LEFT + (number - first) * width, float(_TOP + _HEIGHT)
        when = _when(number * step)
        for priority, count in sorted(stack.items(), reverse=True):
            height = count / top * _HEIGHT
            y -= height
            drawn.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(1.0, width * 0.86):.1f}" '
                f'height="{height:.1f}" fill="{_COLOURS.get(priority, "#333")}">'
                f"<title>{when}: {count:,} {_name(priority)}</title></rect>"
            )
    drawn += _times(first, last, step, width)
    each = "a minute" if step == 1 else f"{step:,} minutes"
    return (
        f'<p class="said">A bar is {each}; times are UTC.</p>'
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 10} {_TOP + _HEIGHT + 24}" role="img" '
        f'aria-label="messages over time">{"".join(drawn)}</svg>'
    )


def _grid(top: int) -> str:
    """Lines and numbers at nothing, a half, and all of the height."""
    return "".join(_level(part, f"{top * part:,.0f}") for part in (0.0, 0.5, 1.0))


def _level(part: float, label: str) -> str:
    """A line across, at a part of the height."""
    y = _TOP + _HEIGHT * (1 - part)
    return (
        f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _latencies(latencies: Sequence[dict[str, Any]]) -> str:
    """A panel for each group of each topic: how long its messages waited and were worked on."""
    panels: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in latencies:
        if row["priority"] is None:
            panels[row["topic"], row["group"]].append(row)
    if not panels:
        return ""
    key = "".join(
        f'<span style="background:{_LINES[kind]}"></span>{kind}' for kind in ("waited", "handled")
    )
    return (
        f'<p class="key">From timestamp to hand-out, and from there to the ack:{key}; '
        "95 of 100 messages took no longer than the thick line says, half of them than the thin "
        "one.</p>"
    ) + "".join(
        f"<h2>{escape(topic)}, {escape(group)}: how long messages take</h2>{_lines(rows)}"
        for (topic, group), rows in sorted(panels.items())
    )


def _lines(rows: Sequence[dict[str, Any]]) -> str:
    """Percentiles over time, on a scale of powers of ten; where nothing was counted is a gap."""
    minutes = [int(row["minute"].timestamp() // 60) for row in rows]
    step = _step(max(minutes) - min(minutes) + 1)
    first, last = min(minutes) // step, max(minutes) // step
    width = min(36.0, _WIDTH / (last - first + 1))
    worst: defaultdict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row, minute in zip(rows, minutes, strict=True):
        for part in ("p50_s", "p95_s"):
            points = worst[row["kind"], part]
            points[minute // step] = max(points.get(minute // step, 0.0), row[part])
    every = [took_s for points in worst.values() for took_s in points.values()]
    low = floor(log10(max(min(every), _SHORTEST_S)))
    high = max(ceil(log10(max(*every, _SHORTEST_S))), low + 1)
    drawn = [
        _level((power - low) / (high - low), _took(10.0**power)) for power in range(low, high + 1)
    ]
    for (kind, part), points in sorted(worst.items()):
        style = f'stroke="{_LINES[kind]}" stroke-width="{2.4 if part == "p95_s" else 1}"'
        places = {
            number: (
                _LEFT + (number - first + 0.43) * width,
                _TOP + _HEIGHT * (1 - (log10(max(took_s, 10.0**low)) - low) / (high - low)),
            )
            for number, took_s in sorted(points.items())
        }
        drawn += [f'<polyline points="{run}" fill="none" {style}/>' for run in _runs(places)]
        drawn += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{_LINES[kind]}"><title>'
            f"{_when(number * step)}: {kind} {_took(points[number])} ({part[:3]})</title></circle>"
            for number, (x, y) in places.items()
        ]
    drawn += _times(first, last, step, width)
    each = "a minute" if step == 1 else f"the worst of {step:,} minutes"
    return (
        f'<p class="said">A point is {each}; times are UTC.</p>'
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 10} {_TOP + _HEIGHT + 24}" role="img" '
        f'aria-label="latencies over time">{"".join(drawn)}</svg>'
    )


def _runs(places: dict[int, tuple[float, float]]) -> Iterator[str]:
    """The points of neighbours, for a line through them."""
    run: list[str] = []
    for number, (x, y) in places.items():
        if number - 1 not in places and run:
            yield " ".join(run)
            run = []
        run.append(f"{x:.1f},{y:.1f}")
    yield " ".join(run)


def _times(first: int, last: int, step: int, width: float) -> list[str]:
    """The time below the first bar and, where there is room, at the middle and the last."""
    y = _TOP + _HEIGHT + 16
    places = {first: "start"}
    if (last - first) * width > 240:
        places[last] = "end"
    if (last - first) * width > 480:
        places[(first + last) // 2] = "middle"
    return [
        f'<text x="{_LEFT + (at - first + (at == last != first)) * width:.1f}" y="{y}" '
        f'text-anchor="{anchor}">{_when(at * step)}</text>'
        for at, anchor in places.items()
    ]


def _step(minutes: int) -> int:
    for step in _STEPS_MIN:
        if minutes <= step * _BARS_MAX:
            return step
    return _STEPS_MIN[-1] * -(-minutes // (_STEPS_MIN[-1] * _BARS_MAX))


def _round_up(count: int) -> int:
    """To a number whose half is easy to read too: 10, 12, 16, 20, 40, 60, 80, 100, 120 ..."""
    count, power = max(2, count), 10
    while count > power:
        power *= 10
    return next(
        power * each // 100 for each in (12, 16, 20, 40, 60, 80, 100) if count * 100 <= power * each
    )


def _when(minute: int) -> str:
    return f"{datetime.fromtimestamp(minute * 60, UTC):%Y-%m-%d %H:%M}"


def _name(priority: int) -> str:
    return Priority(priority).name.lower() if priority in _COLOURS else str(priority)


def _groups(groups: Sequence[dict[str, Any]]) -> str:
    """A line for each group: how far it is now, and what it had to do when it was looked at."""
    if not groups:
        return ""
    each: defaultdict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(groups, key=lambda row: row["taken_at"]):
        each[row["topic"], row["group"], row["mode"]].append(row)
    rows = "".join(
        f"<tr><td>{escape(topic)}</td><td>{escape(group)}</td><td>{mode}</td>"
        f'<td class="n">{known[-1]["lag"]:,}</td>'
        f'<td class="n">{_age(known[-1]["oldest_age_s"])}</td><td>{_line(known)}</td></tr>'
        for (topic, group, mode), known in sorted(each.items())
    )
    return (
        "<h2>Groups</h2><table><tr><th>topic</th><th>group</th><th>mode</th>"
        '<th class="n">to do</th><th class="n">oldest of these has waited</th>'
        f"<th>to do, over time</th></tr>{rows}</table>"
    )


def _line(known: Sequence[dict[str, Any]]) -> str:
    """What a group had to do, from run to run."""
    if len(known) < 2:
        return ""
    times = [row["taken_at"].timestamp() for row in known]
    length, top = times[-1] - times[0] or 1.0, max(1, *(row["lag"] for row in known))
    points = " ".join(
        f"{(time - times[0]) / length * 196 + 2:.1f},{30 - row['lag'] / top * 28:.1f}"
        for time, row in zip(times, known, strict=True)
    )
    said = f"{_when(int(times[0] // 60))} to {_when(int(times[-1] // 60))}, at most {top:,}"
    return (
        f'<svg viewBox="0 0 200 32" style="width:200px"><title>{said}</title>'
        f'<polyline points="{points}" fill="none" stroke="#2980b9" stroke-width="1.5"/></svg>'
    )


def _took(seconds: float) -> str:
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= length * 0.9995:
            return f"{seconds / length:,.3g} {unit}" if seconds < 999.5 else f"{seconds:,.0f} s"
    return f"{seconds * 1e6:,.3g} us"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def _size(count: int) -> str:
    for unit, length in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= length:
            return f"{count / length:,.1f} {unit}"
    return f"{count:,} bytes"
