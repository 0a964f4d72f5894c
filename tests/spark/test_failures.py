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
from tests.unit.spark.damage import publish_and_damage

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
    nobody = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true"}
    key = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    store = ("archive", "--from", shop, "--to", "s3://b/l", *orders)
    said = run(*store, code=6, **nobody, **key)
    assert "s3://b/l/orders cannot be looked at: " in said
    assert "Connection refused" in said
    assert "\x1b" not in said
    rollup = ("rollup", "--from", shop, "--to", "x", *orders)
    assert "the master is 'foo'" in run(*rollup, "--master", "foo")
    away = run(*rollup, "--master", "spark://127.0.0.1:9", code=7)
    assert "no Spark master answers at spark://127.0.0.1:9" in away
    assert "start it, or give another" in away
    assert "no topic is like x*" in run("rollup", "--from", shop, "--to", "x", "--topic", "x*")
    assert "--conf is 'fast'" in run(*rollup, "--conf", "fast")
    assert "where there is no bin/java" in run(*rollup, code=7, JAVA_HOME="/nowhere")
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


SESSION = """
import signal, sys
import pytest
from pyspark.errors import PySparkException
from penstock.spark.pipelines import session

former = signal.getsignal(signal.SIGINT)
with session("local[1]") as spark:
    with pytest.raises(PySparkException):
        spark.range(1).where("nosuch = 1")
    frame = spark.range(1).selectExpr("cast(raise_error('no') as string) as value")
    with pytest.raises(PySparkException):
        frame.write.format("penstock").mode("append").save(sys.argv[1], topic="again")
    assert signal.getsignal(signal.SIGINT) is not former
assert signal.getsignal(signal.SIGINT) is former
"""


def test_a_session_leaves_it_to_its_errors_to_speak_and_ctrl_c_as_it_was(shop: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SESSION, shop], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "nosuch" not in done.stderr
    assert "ERROR" not in done.stderr
    assert "\tat " not in done.stderr


def test_what_is_damaged_is_an_error_or_left_out_and_said(
    spark: SparkSession, shop: str, tmp_path: Path
) -> None:
    from penstock.spark.pipelines import replay, rollup
    from penstock.spark.pipelines.failures import unwrapped

    with penstock.connect(shop) as ps:
        publish_and_damage(ps, "torn")

    def run(**options: Any) -> int:
        with unwrapped():
            return replay(
                spark, shop, shop, "again", name="r", from_topic="torn", **options
            ).messages

    with pytest.raises(DataLost, match="offsets 1 up to 2 are lost"):
        run()
    assert run(fail_on_data_loss=False) == 2
    with penstock.connect(shop) as ps:
        assert [m.value[:3] for m in ps.peek("again", limit=10)] == [b"one", b"thr"]
    done = rollup(spark, shop, ["torn", "orders"], str(tmp_path / "out"))
    assert done.new_messages == 2 + 10
    assert done.notes == [
        "torn: 1 of 3 messages were gone before they were counted: expired, compacted or damaged"
    ]
    assert rollup(spark, shop, ["torn"], str(tmp_path / "out")).notes == []


def test_a_json_value_is_one_object_with_blanks_around_it(
    spark: SparkSession, folder: str, tmp_path: Path
) -> None:
    from penstock.spark.pipelines import archive, read_lake

    good = [b'{"n":1}', b'{"n":1}\n', b'{"n":1}\r\n', b'\n{"n":1} \t', b'{"n":1,"s":"} {"}']
    good += [b'{"o":{"a":1},"n":1}', b'{"o":{"a":[{}]} , "n":1}\n', b'{"o":{"a":NaN},"n":1}']
    more = [b'{"n":1} {"n":2}', b'{"n":1}\n{"n":2}\n', b'{"n":1},{"n":2}', b'{"n":1}}', b'{"n":1}x']
    more += [b'{"n":1}] {"n":2}', b'{"n":1},0] {"n":2}', b'{"n":1}\0', b'{"n":1}\xff']
    with penstock.connect(folder) as ps:
        ps.create_topic("t")
        ps.publish_batch("t", [*good, *more])
    lake = str(tmp_path / "lake")
    archive(spark, folder, lake, ["t"], schema="n int", lake_format="iceberg")
    found = [(bytes(row.value), row.n) for row in read_lake(spark, f"{lake}/t").collect()]
    assert sorted(found) == sorted((value, 1) for value in good)
    bad = read_lake(spark, f"{lake}/t.bad").collect()
    assert {bytes(row.value): row.reason for row in bad} == dict.fromkeys(
        more, "there is more behind the JSON"
    )


def test_what_goes_wrong_in_spark_is_an_error_of_our_own(
    spark: SparkSession, shop: str, tmp_path: Path
) -> None:
    from penstock.spark.lake import open_lake
    from penstock.spark.lake_table import TableChange, topic_mark
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
    with penstock.connect(shop) as ps:
        topic = topic_mark("orders", ps.stats("orders").incarnation)
    halfway.commit(TableChange(pa.schema([("offset", pa.int64())]), topic=topic, ends={0: 5}))
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
