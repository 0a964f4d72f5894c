"""What errors that come out of Spark become; without a session."""

from __future__ import annotations

import io
import socket

import pytest
from pyspark.errors import PythonException
from pyspark.serializers import read_int

from penstock.errors import DataFolderInUse, LeaseLost, SparkFailed, TopicNotFound
from penstock.spark.pipelines.failures import unwrapped

WORKER = "An exception was thrown from the Python worker: "
STACK = (
    " SQLSTATE: 38000\n\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:9)\n"
)


def traceback(raised: str) -> str:
    return f'Traceback (most recent call last):\n  File "a.py", line 7, in f\n    g()\n{raised}\n'


def spark_raises(text: str) -> None:
    with unwrapped():
        raise PythonException(text)


@pytest.mark.parametrize(
    "raised",
    [
        "ValueError: bad value",
        "AssertionError",
        "shop.orders.OutOfStock: none of it is left",
        "ValueError: the first line\nand the second: of two",
    ],
)
def test_what_the_code_of_a_user_raises_is_said_in_its_own_words(raised: str) -> None:
    with pytest.raises(SparkFailed) as caught:
        spark_raises(f"{WORKER}{traceback(raised)}{STACK}")
    assert str(caught.value) == f"Spark failed: {raised}"


def test_it_is_what_was_raised_last_that_counts() -> None:
    ours = traceback("penstock.errors.TopicNotFound: there is no topic 'x'")
    then = "\nThe above exception was the direct cause of the following exception:\n\n"
    with pytest.raises(SparkFailed, match=r"^Spark failed: ValueError: what matters$"):
        spark_raises(f"{WORKER}{ours}{then}{traceback('ValueError: what matters')}{STACK}")
    with pytest.raises(TopicNotFound, match=r"^there is no topic 'x'$"):
        spark_raises(f"{WORKER}{traceback('KeyError: 7')}{then}{ours}{STACK}")
    with pytest.raises(SparkFailed, match=r"^Spark failed: ValueError: penstock.errors.Retry: no"):
        spark_raises(f"{WORKER}{traceback('ValueError: penstock.errors.Retry: no')}{STACK}")


def test_an_error_of_ours_can_be_asked_what_it_is_about_though_that_is_not_known() -> None:
    with pytest.raises(DataFolderInUse, match="is in use") as caught:
        spark_raises(traceback("penstock.errors.DataFolderInUse: /data is in use by a server"))
    assert (caught.value.folder, caught.value.owner) == (None, None)
    with pytest.raises(LeaseLost) as lost:
        spark_raises(traceback("penstock.errors.LeaseLost: the lease is over"))
    assert lost.value.offset is None


def test_only_a_connection_of_spark_is_a_matter_of_java() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()
    with pytest.raises(ConnectionRefusedError), unwrapped():
        socket.create_connection(free)
    with pytest.raises(EOFError, match="the file is short"), unwrapped():
        raise EOFError("the file is short")
    with pytest.raises(SparkFailed, match="Java process does not answer"), unwrapped():
        read_int(io.BytesIO())  # as PySpark, of a result that Java breaks off
