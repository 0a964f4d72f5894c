"""Fair timing on a noisy machine.

Contenders of one race run in turns, round after round, so that whatever else the machine does hits
them all alike. A ratio is taken inside each round and the figure is the median of those ratios. The
first round only warms up. Every run gets an empty folder on the same disk, and a disk that is done
with what the one before has written.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import Curve, Figure, Findings, Spread, Target
from bench.progress import Progress
from bench.units import rate


@dataclass
class Sample:
    """One timed run: so many units of work (messages, bytes, calls) in so many seconds."""

    units: float
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.units / self.seconds


@contextmanager
def stopwatch(units: float) -> Iterator[Sample]:
    """Time a block. What a contender does outside it, such as filling a queue, is not counted."""
    sample = Sample(units)
    with own_garbage_only():
        began_ns = time.perf_counter_ns()
        yield sample
        sample.seconds = (time.perf_counter_ns() - began_ns) / 1e9


@contextmanager
def own_garbage_only() -> Iterator[None]:
    """Let nobody pay for the objects of the benchmark and of those who ran before.

    The collector stays on, since a contender should pay for the garbage that it makes; but what is
    there already is frozen, so that the collector does not look through it.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a race. `run` gets an empty folder and returns what it timed."""

    name: str
    run: Callable[[Path], Sample]
    settings: str = ""
    missing: str = ""  # why it cannot take part on this machine, and what would help


@dataclass
class Race:
    """The rates of some contenders, round by round."""

    contenders: dict[str, Contender]
    rates: dict[str, list[float]]

    def rate(self, name: str) -> Spread:
        return Spread.of(self.rates[name])

    def ratio(self, name: str, baseline: str) -> Spread:
        """How many times faster `name` is than `baseline`."""
        pairs = zip(self.rates[name], self.rates[baseline], strict=True)
        return Spread.of(ours / theirs for ours, theirs in pairs)


def runs_folder(cache: Path) -> Path:
    """Where the runs of this process are: another one may be at it too."""
    return cache / "runs" / str(os.getpid())


@dataclass
class Bench:
    """What a suite is given: the settings of this run, races, and a place to put findings."""

    findings: Findings
    cache: Path
    progress: Progress
    quick: bool = False
    keep: bool = False
    size_bytes_max: int = 10 * 10**9
    rounds: int = 7
    _runs: int = field(default=0, init=False)

    def race(self, title: str, contenders: Sequence[Contender], rounds: int | None = None) -> Race:
        """Run every contender once a round. The order rotates: none is always the first."""
        rounds = rounds or self.rounds
        present = [contender for contender in contenders if not contender.missing]
        rates: dict[str, list[float]] = {contender.name: [] for contender in present}
        for number in range(rounds + 1):
            first = number % len(present)
            for contender in (*present[first:], *present[:first]):
                turn = f"round {number} of {rounds}" if number else "warm-up"
                self.progress.show(f"{title}: {turn}, {contender.name}")
                with self.folder() as folder:
                    sample = contender.run(folder)
                if number:
                    rates[contender.name].append(sample.rate)
        return Race({contender.name: contender for contender in contenders}, rates)

    def compare(
        self,
        race: Race,
        name: str,
        baseline: str,
        target: Target | None = None,
        unit: str = "",
        title: str = "",
    ) -> None:
        """A figure: how many times faster `name` is than `baseline`, where both took part.

        `unit` is what the race counts, for the absolute rates beside the ratio.
        """
        title = title or f"{name} / {baseline}"
        pair = [race.contenders[name], race.contenders[baseline]]
        for contender in pair:
            if contender.missing:
                self.figure(title, None, target=target, detail=contender.missing)
                return
        rates = " / ".join(rate(race.rate(contender.name).median, unit) for contender in pair)
        settings = f"; {pair[1].settings}" if pair[1].settings else ""
        self.figure(title, race.ratio(name, baseline), target=target, detail=rates + settings)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder on the disk under test, gone afterwards."""
        self._runs += 1
        folder = runs_folder(self.cache) / str(self._runs)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.sync()  # or whoever runs now would pay for what others left to be written and removed
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def figure(
        self,
        title: str,
        value: Spread | float | None,
        *,
        unit: str = "x",
        target: Target | None = None,
        detail: str = "",
    ) -> None:
        if isinstance(value, int | float):
            value = Spread.of([value])
        figure = Figure(title, value, unit, target, detail)
        self.findings.figures.append(figure)
        self.progress.found(figure)

    def curve(self, curve: Curve) -> None:
        self.findings.curves.append(curve)

    def note(self, text: str) -> None:
        self.findings.notes.append(text)
