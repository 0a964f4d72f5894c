"""Spark: the log beside batches made up in memory, Spark's own Parquet and Kafka; into a topic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from bench import messages
from bench.figures import at_least
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.peers import kafka
from bench.served import served
from bench.spark import FRAME, fill, job, log, missing, prepare, to_noop, to_parquet

_ROWS = 2_000_000
_ROWS_QUICK = 400_000
_PARTITIONS = 4
_BATCH_ROWS = 32_768
_ROUNDS = 3


def run(bench: Bench) -> None:
    why_not = missing()
    if why_not:
        bench.figure("log to noop", None, unit="rows/s", detail=why_not)
        return
    bench.progress.show("fetching Kafka")
    no_kafka = kafka.fetch(bench.cache)
    prepare(() if no_kafka else kafka.source_jars(bench.cache))
    from penstock.spark.pipelines import session

    rows = _ROWS_QUICK if bench.quick else _ROWS
    with bench.folder() as folder, session("local[2]", "penstock bench") as spark:
        data, parquet = str(folder / "data"), str(folder / "parquet")
        fill(data, "bench", _PARTITIONS, rows)
        log(spark, data).write.parquet(parquet)
        spark.dataSource.register(_made_up(rows))
        _noop(bench, spark, data, rows)
        _tables(bench, spark, data, parquet, rows)
        _server(bench, spark, data, rows)
        _topic(bench, spark, parquet, rows)
        _kafka(bench, spark, data, rows, no_kafka)
    bench.note(
        f"{rows:,} messages of {messages.VALUE_BYTES} bytes in {_PARTITIONS} partitions and frames "
        f"of {FRAME:,}, key and value read, on local[2]. Batches made up in memory are the same "
        "rows from a data source that reads nothing. Python workers are warm, and "
        "spark.python.unix.domain.socket.enabled is true for all."
    )


def _noop(bench: Bench, spark: Any, data: str, rows: int) -> None:
    made_up = spark.read.format("made_up").load()
    race = bench.race(
        "to noop",
        [
            job("made up in memory", rows, lambda: made_up, to_noop),
            job("log to noop", rows, lambda: log(spark, data), to_noop),
            job("log to noop, all columns", rows, lambda: log(spark, data, schema=""), to_noop),
        ],
        rounds=_ROUNDS,
    )
    bench.compare(race, "log to noop", "made up in memory", at_least(0.7), "rows")
    bench.compare(race, "log to noop, all columns", "made up in memory", None, "rows")
    per_core = race.rate("log to noop").median / 2
    bench.figure("log to noop, per core", per_core, unit="rows/s", target=at_least(1e6))


def _tables(bench: Bench, spark: Any, data: str, parquet: str, rows: int) -> None:
    race = bench.race(
        "to tables",
        [
            job("Parquet to Parquet", rows, lambda: spark.read.parquet(parquet), to_parquet),
            job("log to Parquet", rows, lambda: log(spark, data), to_parquet),
            Contender("archive to Delta", lambda folder: _archive(spark, data, folder, rows)),
        ],
        rounds=_ROUNDS,
    )
    bench.compare(race, "log to Parquet", "Parquet to Parquet", at_least(0.6), "rows")
    bench.compare(race, "archive to Delta", "Parquet to Parquet", at_least(0.5), "rows")


def _server(bench: Bench, spark: Any, data: str, rows: int) -> None:
    with served(data) as url:
        race = bench.race(
            "from a server",
            [
                job("folder", rows, lambda: log(spark, data), to_noop),
                job("server", rows, lambda: log(spark, url), to_noop),
            ],
            rounds=_ROUNDS,
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

    race = bench.race("into a topic", [Contender("Parquet to topic", write)], rounds=_ROUNDS)
    bench.figure("Parquet to topic", race.rate("Parquet to topic"), unit="rows/s")


def _kafka(bench: Bench, spark: Any, data: str, rows: int, no_kafka: str) -> None:
    """The same messages, in as many partitions, in Kafka."""
    target = at_least(2)
    if no_kafka:
        for kind in ("noop", "Parquet"):
            title = f"log to {kind} / Kafka to {kind}"
            bench.figure(title, None, target=target, detail=no_kafka)
        return
    with bench.folder() as folder, kafka.broker(bench.cache, folder, _PARTITIONS) as address:
        servers, settings = {"kafka.bootstrap.servers": address}, kafka.settings(bench.cache)
        bench.progress.show("filling Kafka")
        copied = log(spark, data, schema="key binary, value binary, topic string, partition int")
        copied.write.format("kafka").options(**servers, **kafka.WRITE_OPTIONS).save()

        def topic() -> Any:
            reader = spark.read.format("kafka").options(**servers, subscribe="bench")
            return reader.load().select("key", "value")

        found = topic().count()
        if found != rows:
            raise RuntimeError(f"Kafka has {found:,} of {rows:,} messages")
        for kind, save in (("noop", to_noop), ("Parquet", to_parquet)):
            race = bench.race(
                f"beside Kafka, to {kind}",
                [
                    job(f"log to {kind}", rows, lambda: log(spark, data), save),
                    job(f"Kafka to {kind}", rows, topic, save, settings),
                ],
                rounds=_ROUNDS,
            )
            bench.compare(race, f"log to {kind}", f"Kafka to {kind}", target, "rows")


def _archive(spark: Any, data: str, folder: Path, rows: int) -> Sample:
    from penstock.spark.pipelines import archive

    with stopwatch(rows) as sample:
        done = archive(spark, data, str(folder / "lake"), ["bench"], group=f"bench-{folder.name}")
    if done.rows != rows:
        raise RuntimeError(f"{done.rows:,} of {rows:,} messages were archived")
    return sample


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
