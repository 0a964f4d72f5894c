"""What people are told when a pipeline cannot do what they ask: a sentence, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import DataLost, InvalidInput, SparkFailed, TopicNotFound
from tests.spark.victims import Victim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def shop(folder: str) -> str:
    with penstock.connect(folder) as ps:
        ps.create_topic("orders")
        ps.create_topic("again")
        ps.publish_batch("orders", [f'{{"n": {n}}}' for n in range(10)])
    return folder


def test_the_command_says_what_is_wrong_before_it_starts_spark(shop: str, tmp_path: Path) -> None:
    def run(*words: str, code: int = 2, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "pipeline", "run", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return " ".join(done.stderr.split())

    orders = ("--topic", "orders")
    assert "there is no pipeline 'archiv'" in run("archiv", "--from", shop)
    assert "needs --to" in run("archive", "--from", shop, *orders)
    assert "say which topics" in run("rollup", "--from", shop, "--to", "x")
    nowhere = f"there is no data folder {tmp_path}/nowhere [log_not_found]"
    assert nowhere in run("archive", "--from", "nowhere", "--to", "x", *orders, code=3)
    replay = ("replay", "--from", shop, *orders, "--name", "r")
    assert nowhere in run(*replay, "--to", "nowhere", code=3)
    assert f"no lake table in {shop} [invalid_input]" in run("compact", "--from", shop)
    assert "the lake is 's3://b/l'" in run("archive", "--from", shop, "--to", "s3://b/l", *orders)
    rollup = ("rollup", "--from", shop, "--to", "x", *orders)
    assert "the master is 'foo'" in run(*rollup, "--master", "foo")
    assert "where there is no bin/java [java_missing]" in run(*rollup, code=7, JAVA_HOME="/nowhere")
    assert "no 'java' is on the PATH. [java_missing]" in run(
        *rollup, code=7, JAVA_HOME="", PATH="/nowhere"
    )
    assert os.listdir(tmp_path) == ["data"]


def test_ctrl_c_while_java_starts_leaves_nobody_behind(shop: str, tmp_path: Path) -> None:
    """Java that is left in the middle of its start would stay, and hold on to our output."""
    words = ("pipeline", "run", "rollup", "--from", shop, "--to", str(tmp_path / "out"))
    rollup = (sys.executable, "-m", "penstock", *words, "--topic", "orders")
    victim = Victim(*rollup, log=tmp_path / "log")

    def wait_for(so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not so():
            assert time.monotonic() < deadline, victim.family()
            time.sleep(0.05)

    try:
        wait_for(lambda: any("org.apache.spark" in line for line in victim.family().values()))
        victim.interrupt()
        wait_for(lambda: victim.returncode is not None and not victim.family())
        assert victim.returncode == 130
        assert "Traceback" not in victim.last_words()
    finally:
        victim.kill()


def test_what_goes_wrong_in_spark_is_an_error_of_our_own(
    spark: SparkSession, shop: str, tmp_path: Path
) -> None:
    from penstock.spark.lake import open_lake
    from penstock.spark.lake_table import Change
    from penstock.spark.pipelines import archive, compact, dead_letters, replay
    from penstock.spark.pipelines.failures import unwrapped

    lake = str(tmp_path / "lake")

    def fails(kind: type[Exception], said: str, work: Callable[[], Any]) -> None:
        with pytest.raises(kind, match=said) as caught, unwrapped():
            work()
        assert "Traceback" not in str(caught.value)

    fails(InvalidInput, "`nocol`", lambda: dead_letters(spark, shop, ["orders"], where="nocol = 1"))
    fails(InvalidInput, "PARSE_SYNTAX", lambda: spark.sql("a b c"))
    reader = spark.read.format("penstock").option("path", shop)
    fails(TopicNotFound, "nosuch", lambda: reader.option("subscribe", "nosuch").load().count())
    gone = {"subscribe": "orders", "endingOffsets": '{"orders": {"0": 500}}'}
    fails(DataLost, "offsets 0 up to 500", lambda: reader.options(**gone).load().count())
    fails(
        SparkFailed, "Division", lambda: spark.sql("select 1 / (id - id) from range(9)").collect()
    )
    fails(
        InvalidInput,
        "UNSUPPORTED_DATATYPE",
        lambda: archive(spark, shop, lake, ["orders"], schema="n integerr"),
    )
    fails(InvalidInput, "give columns", lambda: archive(spark, shop, lake, ["x"], schema="int"))
    fails(
        InvalidInput, "has a field 'Key'", lambda: archive(spark, shop, lake, [], schema="Key int")
    )
    fails(
        InvalidInput,
        "is not one of",
        lambda: archive(spark, shop, lake, ["orders"], lake_format="x"),
    )
    fails(InvalidInput, "it is id or key", lambda: compact(spark, lake, unique_by="x"))
    fails(InvalidInput, "letters, digits", lambda: replay(spark, shop, shop, "again", name="../r"))
    fails(
        InvalidInput,
        "cannot follow what it sends",
        lambda: replay(spark, shop, shop, "orders", name="r", from_topic="orders", every_s=1),
    )
    assert not os.path.exists(lake)
    halfway = open_lake(str(tmp_path / "halfway" / "orders.bad"))
    halfway.commit(Change(pa.schema([("offset", pa.int64())]), topic="orders", ends={0: 5}))
    fails(
        InvalidInput,
        "with the same schema once more",
        lambda: archive(spark, shop, str(tmp_path / "halfway"), ["orders"]),
    )

    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            spark.sql("a b c")  # as PySpark, whose last words go to a connection that is closed

    with pytest.raises(KeyboardInterrupt), unwrapped():
        interrupted()
