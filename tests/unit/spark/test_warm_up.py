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
