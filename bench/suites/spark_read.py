"""Spark: the log beside batches made up in memory and Spark's own Parquet, and into a topic."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from bench import messages
from bench.figures import at_least
from bench.harness import Bench, Contender, Sample, stopwatch

_ROWS = 2_000_000
_ROWS_QUICK = 400_000
_FRAME = 1000
_PARTITIONS = 4
_BATCH_ROWS = 32_768


def run(bench: Bench) -> None:
    missing = _missing()
    if missing:
        bench.figure("log to noop", None, unit="rows/s", detail=missing)
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from penstock.spark.pipelines import session

    rows = _ROWS_QUICK if bench.quick else _ROWS
    with bench.folder() as folder, session("local[2]", "penstock bench") as spark:
        data, parquet = str(folder / "data"), str(folder / "parquet")
        _fill(data, rows)
        _log(spark, data).write.parquet(parquet)
        spark.dataSource.register(_made_up(rows))
        _noop(bench, spark, data, rows)
        _tables(bench, spark, data, parquet, rows)
        _server(bench, spark, data, rows)
        _topic(bench, spark, parquet, rows)
    bench.note(
        f"{rows:,} messages of {messages.VALUE_BYTES} bytes in {_PARTITIONS} partitions and frames "
        f"of {_FRAME:,}, key and value read, on local[2]. Batches made up in memory are the same "
        "rows from a data source that reads nothing. Python workers are warm."
    )


def _noop(bench: Bench, spark: Any, data: str, rows: int) -> None:
    made_up = spark.read.format("made_up").load()
    race = bench.race(
        "to noop",
        [
            _job("made up in memory", rows, lambda _: made_up, _to_noop),
            _job("log to noop", rows, lambda _: _log(spark, data), _to_noop),
            _job("log to noop, all columns", rows, lambda _: _log(spark, data, ""), _to_noop),
        ],
        rounds=3,
    )
    bench.compare(race, "log to noop", "made up in memory", at_least(0.7), "rows")
    bench.compare(race, "log to noop, all columns", "made up in memory", None, "rows")
    per_core = race.rate("log to noop").median / 2
    bench.figure("log to noop, per core", per_core, unit="rows/s", target=at_least(1e6))


def _tables(bench: Bench, spark: Any, data: str, parquet: str, rows: int) -> None:
    race = bench.race(
        "to tables",
        [
            _job("Parquet to Parquet", rows, lambda _: spark.read.parquet(parquet), _to_parquet),
            _job("log to Parquet", rows, lambda _: _log(spark, data), _to_parquet),
            Contender("archive to Delta", lambda folder: _archive(spark, data, folder, rows)),
        ],
        rounds=3,
    )
    bench.compare(race, "log to Parquet", "Parquet to Parquet", at_least(0.6), "rows")
    bench.compare(race, "archive to Delta", "Parquet to Parquet", None, "rows")


def _server(bench: Bench, spark: Any, data: str, rows: int) -> None:
    from bench.served import served

    with served(data) as url:
        race = bench.race(
            "from a server",
            [
                _job("folder", rows, lambda _: _log(spark, data), _to_noop),
                _job("server", rows, lambda _: _log(spark, url), _to_noop),
            ],
            rounds=3,
        )
    bench.compare(race, "server", "folder", None, "rows")


def _topic(bench: Bench, spark: Any, parquet: str, rows: int) -> None:
    def write(folder: Path) -> Sample:
        with penstock.connect(folder / "data") as ps:
            ps.create_topic("out", partitions=_PARTITIONS)
        frame = spark.read.parquet(parquet).select("value")
        with stopwatch(rows) as sample:
            out = frame.write.format("penstock").mode("append")
            out.options(path=str(folder / "data"), topic="out").save()
        return sample

    race = bench.race("into a topic", [Contender("Parquet to topic", write)], rounds=3)
    bench.figure("Parquet to topic", race.rate("Parquet to topic"), unit="rows/s")


def _job(
    name: str,
    rows: int,
    frame: Callable[[Path], Any],
    save: Callable[[Any, Path], None],
) -> Contender:
    def run(folder: Path) -> Sample:
        made = frame(folder)
        with stopwatch(rows) as sample:
            save(made, folder)
        return sample

    return Contender(name, run)


def _to_noop(frame: Any, _: Path) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _to_parquet(frame: Any, folder: Path) -> None:
    frame.write.mode("overwrite").parquet(str(folder / "out"))


def _archive(spark: Any, data: str, folder: Path, rows: int) -> Sample:
    from penstock.spark.pipelines import archive

    with stopwatch(rows) as sample:
        done = archive(spark, data, str(folder / "lake"), ["bench"], group=f"bench-{folder.name}")
    if done.rows != rows:
        raise RuntimeError(f"{done.rows:,} of {rows:,} messages were archived")
    return sample


def _log(spark: Any, place: str, schema: str = "key binary, value binary") -> Any:
    reader = spark.read.format("penstock").option("subscribe", "bench")
    reader = reader.option("url" if "://" in place else "path", place)
    return (reader.schema(schema) if schema else reader).load()


def _fill(data: str, rows: int) -> None:
    pool = messages.in_batches(messages.values(100 * _FRAME), _FRAME)
    with penstock.connect(data) as ps:
        ps.create_topic("bench", partitions=_PARTITIONS)
        for number in range(rows // _FRAME):
            ps.publish_batch("bench", pool[number % 100], partition=number % _PARTITIONS)


def _made_up(rows: int) -> Any:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class MadeUpReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(2 * _PARTITIONS)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            values = pa.array([os.urandom(50).hex().encode()] * _BATCH_ROWS, pa.binary())
            keys = pa.nulls(_BATCH_ROWS, pa.binary())
            batch = pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])
            left = rows // (2 * _PARTITIONS)
            while left > 0:
                yield batch.slice(0, left)
                left -= _BATCH_ROWS

    class MadeUp(DataSource):
        @classmethod
        def name(cls) -> str:
            return "made_up"

        def schema(self) -> str:
            return "key binary, value binary"

        def reader(self, schema: Any) -> MadeUpReader:
            return MadeUpReader()

    return MadeUp


def _missing() -> str:
    if shutil.which("java") is None:
        return "Spark needs Java 17, and no 'java' is on the PATH"
    return ""
