"""What a run of the benchmark finds: figures with targets, and curves. Plain data, no timing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Spread:
    """The median of several rounds, with the lowest and the highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Target:
    """A limit for a figure's median."""

    kind: Literal["at least", "at most"]
    limit: float

    def met_by(self, value: float) -> bool:
        return value >= self.limit if self.kind == "at least" else value <= self.limit


def at_least(limit: float) -> Target:
    return Target("at least", limit)


def at_most(limit: float) -> Target:
    return Target("at most", limit)


@dataclass(frozen=True)
class Figure:
    """One line of the report: a value, what it should be, and what it was made from."""

    title: str
    value: Spread | None  # None where it could not be taken; `detail` then says why
    unit: str = "x"
    target: Target | None = None  # None for what is shown as information only
    detail: str = ""  # absolute numbers and settings

    @property
    def verdict(self) -> Literal["met", "missed", "skipped", ""]:
        if self.value is None:
            return "skipped"
        if self.target is None:
            return ""
        return "met" if self.target.met_by(self.value.median) else "missed"


@dataclass(frozen=True)
class Curve:
    """How a cost moves with something: one panel of the plot, one small table in the report."""

    title: str
    x_label: str
    y_label: str
    lines: dict[str, list[tuple[float, float]]]
    x_log: bool = True
    y_log: bool = False


@dataclass
class Findings:
    """Everything one suite found."""

    suite: str
    figures: list[Figure] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
