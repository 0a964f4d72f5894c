"""What the suites on Spark share: a topic full of messages, and jobs that read it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import penstock.spark
from bench import messages
from bench.harness import Contender, Sample, stopwatch
from penstock.errors import JavaMissing

FRAME = 1000
KEY_AND_VALUE = "key binary, value binary"


def missing() -> str:
    """Why there is no Spark on this machine; empty if there is."""
    try:
        penstock.spark.prepare()
    except JavaMissing as exc:
        return str(exc)
    return ""


def prepare(jars: Sequence[str] = ()) -> None:
    """Say what the JVM is to start with; the first session of this process starts it."""
    words = ["--conf", "spark.python.unix.domain.socket.enabled=true"]
    words += ["--jars", ",".join(jars)] if jars else []
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*words, "pyspark-shell"])


def fill(data: str, topic: str, partitions: int, rows: int) -> None:
    """Publish random messages in turn to each partition."""
    pool = messages.in_batches(messages.values(100 * FRAME), FRAME)
    with penstock.connect(data) as ps:
        ps.create_topic(topic, partitions=partitions)
        for number in range(rows // FRAME):
            ps.publish_batch(topic, pool[number % 100], partition=number % partitions)


def log(spark: Any, place: str, topic: str = "bench", schema: str = KEY_AND_VALUE) -> Any:
    """A frame of a topic in a data folder, or on a server; with all columns if none are named."""
    reader = spark.read.format("penstock").option("subscribe", topic)
    reader = reader.option("url" if "://" in place else "path", place)
    return (reader.schema(schema) if schema else reader).load()


def job(
    name: str,
    rows: int,
    frame: Callable[[], Any],
    save: Callable[[Any, Path], None],
    settings: str = "",
) -> Contender:
    """A contender that saves a frame of so many rows; making the frame is not timed."""

    def run(folder: Path) -> Sample:
        made = frame()
        with stopwatch(rows) as sample:
            save(made, folder)
        return sample

    return Contender(name, run, settings)


def to_noop(frame: Any, _: Path) -> None:
    frame.write.format("noop").mode("overwrite").save()


def to_parquet(frame: Any, folder: Path) -> None:
    frame.write.mode("overwrite").parquet(str(folder / "out"))
