"""One picture of a run: each figure against its target, then each curve in a panel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no window, also where there is a display

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from bench.figures import Curve, Figure, Findings
from bench.units import number, quantity

_COLUMNS = 2
_COLOURS = {"met": "#2a7f62", "missed": "#b3423a"}


def draw(path: Path, findings: Sequence[Findings]) -> None:
    figures = [f for found in findings for f in found.figures if f.target and f.value]
    curves = [curve for found in findings for curve in found.curves]
    curve_rows = math.ceil(len(curves) / _COLUMNS)
    bars_height = 0.9 + 0.32 * len(figures)
    picture = pyplot.figure(figsize=(12, bars_height + 3.4 * curve_rows), layout="constrained")
    heights = [bars_height] * bool(figures) + [3.4] * curve_rows
    if heights:
        grid = picture.add_gridspec(len(heights), _COLUMNS, height_ratios=heights)
        if figures:
            _bars(picture.add_subplot(grid[0, :]), figures)
        for number_, curve in enumerate(curves):
            row, column = divmod(number_, _COLUMNS)
            _lines(picture.add_subplot(grid[row + bool(figures), column]), curve)
    picture.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(picture)


def _bars(axes: Axes, figures: Sequence[Figure]) -> None:
    """How far each figure is past its target, on one scale whatever its unit: right is better."""
    places = range(len(figures))
    margins = [_margins(figure) for figure in figures]
    medians = [median for _, median, _ in margins]
    axes.barh(places, medians, left=0, color=[_COLOURS[f.verdict] for f in figures], height=0.6)
    axes.errorbar(
        medians,
        places,
        xerr=[[m - low for low, m, _ in margins], [high - m for _, m, high in margins]],
        fmt="none",
        ecolor="black",
        elinewidth=1,
        capsize=2,
    )
    for place, figure, (_, _, high) in zip(places, figures, margins, strict=True):
        text = f"{quantity(figure.value.median, figure.unit)}"
        axes.text(high * 1.04, place, text, va="center", fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1, linestyle="--")
    axes.set_xlim(min(0.5, *(low for low, _, _ in margins)), 2 * max(h for _, _, h in margins))
    labels = [f"{f.title} ({f.target.kind} {quantity(f.target.limit, f.unit)})" for f in figures]
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    _plain_numbers(axes.xaxis)
    axes.set_xlabel("result / target (target / result where less is better); bars: all rounds")
    axes.set_title("Figures against their targets", fontsize=10)


def _margins(figure: Figure) -> tuple[float, float, float]:
    limit = figure.target.limit
    low, median, high = figure.value.low, figure.value.median, figure.value.high
    if figure.target.kind == "at least":
        return low / limit, median / limit, high / limit
    tiny = limit / 1e3  # a memory cost of nothing would be infinitely good
    return limit / max(high, tiny), limit / max(median, tiny), limit / max(low, tiny)


def _lines(axes: Axes, curve: Curve) -> None:
    xs = sorted({x for points in curve.lines.values() for x, _ in points})
    for name, points in curve.lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, linewidth=1.3, label=name)
    if curve.x_log:
        axes.set_xscale("log")
    axes.set_xticks(xs, [number(x).removesuffix(".00").removesuffix(".0") for x in xs])
    axes.minorticks_off()
    if curve.y_log:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(curve.x_label, fontsize=8)
    axes.set_ylabel(curve.y_label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.set_title(curve.title, fontsize=10)
    axes.legend(fontsize=8)


def _plain_numbers(axis: matplotlib.axis.Axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
