"""Spark: how the rows per second grow with partitions and with cores."""

from __future__ import annotations

from bench.figures import Curve, Spread
from bench.harness import Bench
from bench.spark import fill, job, log, missing, prepare, to_noop

_ROWS = 1_000_000
_ROWS_QUICK = 200_000
_PARTITIONS = (1, 2, 4, 8)
_CORES = (2, 1)


def run(bench: Bench) -> None:
    why_not = missing()
    if why_not:
        bench.figure("2 cores / 1 core", None, detail=why_not)
        return
    prepare()
    rows = _ROWS_QUICK if bench.quick else _ROWS
    with bench.folder() as folder:
        data = str(folder / "data")
        for partitions in _PARTITIONS:
            fill(data, f"bench-{partitions}", partitions, rows)
        rates = {cores: _rates(bench, data, rows, cores) for cores in _CORES}
    lines = {
        f"local[{cores}]": [(float(count), rates[cores][count].median) for count in _PARTITIONS]
        for cores in sorted(_CORES)
    }
    title = "Spark: a log to noop"
    bench.curve(Curve(title, "partitions", "rows/s", lines))
    for partitions in _PARTITIONS:
        two, one = rates[2][partitions].median, rates[1][partitions].median
        plural = "s" if partitions > 1 else ""
        bench.figure(f"2 cores / 1 core, {partitions} partition{plural}", two / one)
    bench.note(
        f"{rows:,} messages in each topic, key and value read. A partition is cut into splits of "
        "32 MB, so one partition keeps as many cores busy as many do. A task is a thread of Java "
        "and a Python worker side by side: local[1] has more than one core at work already."
    )


def _rates(bench: Bench, data: str, rows: int, cores: int) -> dict[int, Spread]:
    from penstock.spark.pipelines import session

    with session(f"local[{cores}]", "penstock bench") as spark:
        race = bench.race(
            f"{cores} cores",
            [
                job(
                    f"{count}",
                    rows,
                    lambda count=count: log(spark, data, f"bench-{count}"),
                    to_noop,
                )
                for count in _PARTITIONS
            ],
            rounds=3,
        )
    return {count: race.rate(f"{count}") for count in _PARTITIONS}
