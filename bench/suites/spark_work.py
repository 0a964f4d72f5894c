"""Spark: what queries and streams on messages take beside the same work on Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from bench import messages
from bench.figures import at_least, at_most
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.spark import FRAME, fill, job, log, missing, prepare, to_noop

_ROWS, _ROWS_QUICK = 2_000_000, 400_000
_SMALL_ROWS, _SMALL_PARTITIONS = 200_000, 200
_PARTITIONS = 4
_ROUNDS = 3
_EVENT = "order_id string, customer string, state string, amount_cents int"
_LOG, _PARQUET = "log", "Parquet"


def run(bench: Bench) -> None:
    if why_not := missing():
        bench.figure("from_json and groupBy: log / Parquet", None, detail=why_not)
        return
    prepare()
    from penstock.spark.pipelines import session

    rows = _ROWS_QUICK if bench.quick else _ROWS
    with bench.folder() as folder, session("local[2]", "penstock bench") as spark:
        data, parquet = str(folder / "data"), str(folder / "parquet")
        _fill_events(data, rows)
        log(spark, data, "events").write.parquet(parquet)
        _queries(bench, spark, data, parquet, rows)
        _stream(bench, spark, parquet, rows)
        _partitions(bench, spark, str(folder / "small"))
    bench.note(
        f"{rows:,} JSON messages of about 200 bytes in {_PARTITIONS} partitions and frames of "
        f"{FRAME:,}, on local[2]; the Parquet files have the same rows. A stream reads these files "
        "in one batch of AvailableNow, and publishes them or writes them as Parquet."
    )


def _fill_events(data: str, rows: int) -> None:
    pool = messages.in_batches(messages.documents(100 * FRAME), FRAME)
    with penstock.connect(data) as ps:
        ps.create_topic("events", partitions=_PARTITIONS)
        for number in range(rows // FRAME):
            ps.publish_batch("events", pool[number % 100], partition=number % _PARTITIONS)


def _queries(bench: Bench, spark: Any, data: str, parquet: str, rows: int) -> None:
    def values() -> Any:
        return log(spark, data, "events", "value binary")

    def stored() -> Any:
        return spark.read.parquet(parquet).select("value")

    race = bench.race(
        "value alone to noop",
        [job(_LOG, rows, values, to_noop), job(_PARQUET, rows, stored, to_noop)],
        rounds=_ROUNDS,
    )
    title = "value alone to noop: log / Parquet"
    bench.compare(race, _LOG, _PARQUET, at_least(0.6), "rows", title=title)
    race = bench.race(
        "from_json and groupBy",
        [job(_LOG, rows, values, _summed), job(_PARQUET, rows, stored, _summed)],
        rounds=_ROUNDS,
    )
    title = "from_json and groupBy: log / Parquet"
    bench.compare(race, _LOG, _PARQUET, at_least(0.8), "rows", title=title)


def _summed(frame: Any, _: Path) -> None:
    events = frame.selectExpr(f"from_json(cast(value as string), '{_EVENT}') as event")
    sums = events.groupBy("event.state").sum("event.amount_cents").collect()
    if len(sums) != 5:
        raise RuntimeError(f"{len(sums)} states instead of 5")


def _stream(bench: Bench, spark: Any, parquet: str, rows: int) -> None:
    schema = spark.read.parquet(parquet).select("value").schema

    def written(folder: Path, to: str, **options: str) -> Sample:
        frame = spark.readStream.schema(schema).parquet(parquet)
        with stopwatch(rows) as sample:
            out = frame.writeStream.format(to).options(**options)
            out = out.option("checkpointLocation", str(folder / "checkpoint"))
            out.trigger(availableNow=True).start().awaitTermination()
        return sample

    def publish(folder: Path) -> Sample:
        data = str(folder / "data")
        with penstock.connect(data) as ps:
            ps.create_topic("out", partitions=_PARTITIONS)
        return written(folder, "penstock", path=data, topic="out")

    race = bench.race(
        "a stream's sink",
        [
            Contender("topic", publish),
            Contender(_PARQUET, lambda folder: written(folder, "parquet", path=f"{folder}/out")),
        ],
        rounds=_ROUNDS,
    )
    title = "stream sink: topic / Parquet"
    bench.compare(race, "topic", _PARQUET, at_least(0.5), "rows", title=title)


def _partitions(bench: Bench, spark: Any, data: str) -> None:
    fill(data, "one", 1, _SMALL_ROWS)
    fill(data, "many", _SMALL_PARTITIONS, _SMALL_ROWS)
    race = bench.race(
        "small partitions",
        [
            job(name, _SMALL_ROWS, lambda name=name: log(spark, data, name), to_noop)
            for name in ("one", "many")
        ],
        rounds=_ROUNDS,
    )
    times = race.ratio("one", "many")
    title = f"time of {_SMALL_PARTITIONS} partitions / one, of the same {_SMALL_ROWS:,} rows"
    bench.figure(title, times, target=at_most(1.5))
