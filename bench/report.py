"""The report of a run: a table on the terminal; JSON, Markdown and a plot as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import plot
from bench.figures import Curve, Figure, Findings, Target
from bench.units import number, quantity

_COLOURS = {"met": "green", "missed": "red", "skipped": "yellow", "": ""}


def show(console: Console, findings: Sequence[Findings]) -> None:
    """One table of all figures, and below it the notes."""
    table = Table("figure", "result", "spread", "target", "verdict", "from", expand=True)
    for found in findings:
        table.add_section()
        table.add_row(f"[bold]{escape(found.suite)}[/bold]")
        for figure in found.figures:
            table.add_row(
                escape(figure.title),
                _value(figure),
                _spread(figure),
                _target(figure.target, figure.unit),
                figure.verdict,
                escape(figure.detail),
                style=_COLOURS[figure.verdict],
            )
    console.print(table)
    console.print(escape(summary(findings)), highlight=False)


def write(
    folder: Path, name: str, findings: Sequence[Findings], facts: dict[str, str]
) -> list[Path]:
    """Write `name`.json, .md and .png, replacing those of an earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{ending}" for ending in ("json", "md", "png")]
    paths[0].write_text(json.dumps(_as_json(findings, facts), indent=2) + "\n")
    paths[1].write_text(_as_markdown(findings, facts, paths[2].name))
    plot.draw(paths[2], findings)
    return paths


def summary(findings: Sequence[Findings]) -> str:
    verdicts = [figure.verdict for found in findings for figure in found.figures]
    parts = [f"{verdicts.count(verdict)} {verdict}" for verdict in ("met", "missed", "skipped")]
    return f"Targets: {', '.join(parts)}."


def _as_json(findings: Sequence[Findings], facts: dict[str, str]) -> dict[str, object]:
    suites = []
    for found in findings:
        figures = [{**asdict(figure), "verdict": figure.verdict} for figure in found.figures]
        suites.append({**asdict(found), "figures": figures})
    return {"machine": facts, "suites": suites}


def _as_markdown(findings: Sequence[Findings], facts: dict[str, str], picture: str) -> str:
    lines = [
        "# Penstock beside its peers",
        "",
        "Written by `python -m bench`. A result in `x` is a ratio: the median over rounds in which",
        "the contenders took turns, with the lowest and the highest round beside it. Absolute",
        "numbers are for information; they belong to this machine.",
        "",
        summary(findings),
        "",
        f"![plot]({picture})",
        "",
    ]
    for found in findings:
        lines += [f"## {found.suite}", ""]
        if found.figures:
            lines += [
                "| figure | result | spread | target | verdict | from |",
                "|---|---|---|---|---|---|",
            ]
            lines += [_markdown_row(figure) for figure in found.figures]
            lines.append("")
        for curve in found.curves:
            lines += [*_markdown_curve(curve), ""]
        if found.notes:
            lines += [*(f"- {note}" for note in found.notes), ""]
    lines += ["## The machine", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {fact} |" for name, fact in facts.items()]
    return "\n".join(lines) + "\n"


def _markdown_row(figure: Figure) -> str:
    cells = [
        figure.title,
        _value(figure),
        _spread(figure),
        _target(figure.target, figure.unit),
        figure.verdict,
        figure.detail,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _markdown_curve(curve: Curve) -> list[str]:
    xs = sorted({x for points in curve.lines.values() for x, _ in points})
    lines = [
        f"**{curve.title}** ({curve.y_label})",
        "",
        f"| {curve.x_label} | " + " | ".join(f"{x:,.10g}" for x in xs) + " |",
        "|---" * (len(xs) + 1) + "|",
    ]
    for name, points in curve.lines.items():
        at = dict(points)
        cells = [number(at[x]) if x in at else "" for x in xs]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _value(figure: Figure) -> str:
    return "-" if figure.value is None else quantity(figure.value.median, figure.unit)


def _spread(figure: Figure) -> str:
    value = figure.value
    if value is None or value.low == value.high:
        return ""
    return f"{number(value.low)} .. {number(value.high)}"


def _target(target: Target | None, unit: str) -> str:
    return "" if target is None else f"{target.kind} {quantity(target.limit, unit)}"
