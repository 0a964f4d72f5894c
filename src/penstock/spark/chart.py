"""A roll-up as one HTML page: bars for each minute, a table of groups. No scripts, no fonts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any

from penstock.record.schema import Priority

_COLOURS = {0: "#c0392b", 1: "#e67e22", 2: "#2980b9", 3: "#7f8c8d", 4: "#bdc3c7"}
_WIDTH, _HEIGHT = 960, 180
_BARS_MAX = 240

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; color: #222 }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem }
svg { width: 100%; height: auto; background: #fafafa; border: 1px solid #ddd }
table { border-collapse: collapse } td, th { padding: .2rem .8rem; border-bottom: 1px solid #ddd }
th { text-align: left } td.n { text-align: right; font-variant-numeric: tabular-nums }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }
"""


def page(per_minute: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> str:
    topics: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in per_minute:
        topics[row["topic"]].append(row)
    key = "".join(
        f'<span style="background:{_COLOURS[p]}"></span>{p.name.lower()}' for p in Priority
    )
    parts = [f'<p class="key">Messages a minute, by priority:{key}</p>']
    for topic, rows in sorted(topics.items()):
        total = sum(row["messages"] for row in rows)
        size = sum(row["bytes"] for row in rows)
        parts.append(f"<h2>{escape(topic)}: {total:,} messages, {size:,} bytes</h2>{_bars(rows)}")
    parts.append(_groups(groups))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Penstock roll-up</title>'
        f"<style>{_STYLE}</style></head><body><h1>Penstock roll-up</h1>{''.join(parts)}"
        "</body></html>\n"
    )


def _bars(rows: Sequence[dict[str, Any]]) -> str:
    """Stacked bars; the newest minutes if there are too many."""
    minutes = sorted({row["minute"] for row in rows})[-_BARS_MAX:]
    stacks: dict[Any, dict[int, int]] = {minute: {} for minute in minutes}
    for row in rows:
        if row["minute"] in stacks:
            stacks[row["minute"]][row["priority"]] = row["messages"]
    highest = max((sum(stack.values()) for stack in stacks.values()), default=1)
    width = min(40.0, (_WIDTH - 20) / max(1, len(minutes)))
    drawn = []
    for number, minute in enumerate(minutes):
        top = float(_HEIGHT - 20)
        for priority, count in sorted(stacks[minute].items()):
            height = count / highest * (_HEIGHT - 40)
            top -= height
            drawn.append(
                f'<rect x="{10 + number * width:.1f}" y="{top:.1f}" width="{width * 0.85:.1f}" '
                f'height="{height:.1f}" fill="{_COLOURS.get(priority, "#333")}">'
                f"<title>{minute:%Y-%m-%d %H:%M}: {count:,}</title></rect>"
            )
    ends = ""
    if minutes:
        ends = (
            f'<text x="10" y="{_HEIGHT - 4}" font-size="11">{minutes[0]:%Y-%m-%d %H:%M}</text>'
            f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 4}" font-size="11" text-anchor="end">'
            f"{minutes[-1]:%Y-%m-%d %H:%M}; highest {highest:,} a minute</text>"
        )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(drawn)}{ends}</svg>'


def _groups(groups: Sequence[dict[str, Any]]) -> str:
    if not groups:
        return ""
    rows = "".join(
        f"<tr><td>{escape(row['topic'])}</td><td>{escape(row['group'])}</td>"
        f'<td>{row["mode"]}</td><td class="n">{row["lag"]:,}</td>'
        f'<td class="n">{_age(row["oldest_age_s"])}</td></tr>'
        for row in groups
    )
    return (
        "<h2>Groups</h2><table><tr><th>topic</th><th>group</th><th>mode</th><th>to do</th>"
        f"<th>oldest, seconds</th></tr>{rows}</table>"
    )


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.1f}"
