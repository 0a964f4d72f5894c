"""What a read does to the worker that it runs in, in a process of its own: it lasts."""

import subprocess
import sys
from pathlib import Path

import pytest

import penstock

READ = """
import gc, sys
from pyspark import TaskContext
from penstock.spark.source import PenstockDataSource

if sys.argv[2] == "task":
    TaskContext._getOrCreate()
source = PenstockDataSource({"path": sys.argv[1], "subscribe": "orders"})
reader = source.reader(source.schema())
(part,) = reader.partitions()
for task in range(3):
    rows = sum(map(len, reader.read(part)))
    print(rows, gc.get_freeze_count())
"""


@pytest.mark.parametrize("place", ["task", "driver"])
def test_a_worker_need_not_go_through_its_modules_after_each_task(
    tmp_path: Path, place: str
) -> None:
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders")
        ps.publish_batch("orders", ["a", "b", "c"])
    command = [sys.executable, "-c", READ, str(tmp_path / "data"), place]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    tasks = [tuple(map(int, line.split())) for line in told.stdout.splitlines()]
    rows, frozen = zip(*tasks, strict=True)
    assert rows == (3, 3, 3)
    if place == "task":
        assert frozen[0] == 0, "the first task is what loads the modules"
        assert frozen[1] > 10_000
        assert frozen[2] == frozen[1], "what comes and goes with a task is not kept"
    else:
        assert frozen == (0, 0, 0), "another's process is left as it is"


UNSEEN = """
import os, sys
from pyspark import TaskContext
from penstock.errors import InvalidInput
from penstock.spark.source import PenstockDataSource

source = PenstockDataSource({"path": sys.argv[1], "subscribe": "orders"})
reader = source.reader(source.schema())
(part,) = reader.partitions()
TaskContext._getOrCreate()
os.rename(sys.argv[1], sys.argv[1] + " of another machine")
try:
    list(reader.read(part))
except InvalidInput as exc:
    print(exc)
"""


def test_a_folder_that_executors_do_not_see_is_told_with_the_cure(tmp_path: Path) -> None:
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders")
        ps.publish("orders", "a")
    command = [sys.executable, "-c", UNSEEN, str(tmp_path / "data")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert f"does not see the data folder {tmp_path / 'data'}: put it where" in told.stdout
    assert "option url" in told.stdout
