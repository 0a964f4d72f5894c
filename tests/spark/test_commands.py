"""The pipelines as commands, and the examples: each starts a Spark of its own, so it takes long."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import deltalake
import pytest

import penstock
from tests.spark.victims import ROOT
from tests.unit.spark.s3 import s3  # noqa: F401 - a fixture

pytestmark = [pytest.mark.torture, pytest.mark.timeout(1800)]

PATIENCE_S = 600.0


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "pipeline", "run", *words]


def run(*words: str) -> str:
    done = subprocess.run(command(*words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_until(said: str, *words: str) -> str:
    """Run a pipeline that goes on and on, until it says something; Ctrl-C; all that it said."""
    with subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        patience = threading.Timer(PATIENCE_S, running.kill)
        patience.start()
        try:
            assert running.stdout is not None
            told = list(until(said, running.stdout))
            running.send_signal(signal.SIGINT)
            told.append(running.communicate()[0])
        finally:
            patience.cancel()
            running.kill()
    assert running.returncode >= 0, f"it did not end in {PATIENCE_S} s: {told}"
    assert "Traceback" not in "".join(told), told
    return "".join(told)


def until(said: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if said in line:
            return


@pytest.fixture
def shop(tmp_path: Path) -> str:
    folder = str(tmp_path / "data")
    with penstock.connect(folder) as ps:
        ps.create_topic("orders")
        ps.create_topic("again")
        ps.publish_batch("orders", [json.dumps({"n": n}) for n in range(100)])
        for message in ps.receive("orders", "billing", max_messages=5):
            message.reject("no such customer")
    return folder


def test_every_pipeline_is_a_command_that_sums_up_what_it_did(shop: str, tmp_path: Path) -> None:
    lake, out = str(tmp_path / "lake"), str(tmp_path / "out")
    told = run_until(
        "orders: 100 messages into",
        *("archive", "--from", shop, "--topic", "orders", "--to", lake),
        *("--schema", "n int", "--follow", "--master", "local[1]"),
    )
    assert "archive: done" in told
    assert "'orders': 100" in told
    assert len(deltalake.DeltaTable(f"{lake}/orders").to_pyarrow_table()) == 100
    told = run(
        *("replay", "--from", f"{lake}/orders", "--lake", "--to", shop, "--topic", "again"),
        *("--name", "r1", "--where", "n < 10", "--rate", "1000", "--once"),
    )
    assert "messages: 10" in told
    told = run("dead-letters", "--from", shop, "--topic", "orders", "--redrive")
    assert "no such customer" in told
    assert "redriven: 5" in told
    told = run_until(
        "new messages: 105",  # in the sum-up, which comes last
        *("rollup", "--from", shop, "--topic", "orders", "--to", out, "--every", "1h"),
    )
    assert "rollup: done" in told
    assert "rows after: 100" in run("compact", "--from", f"{lake}/orders", "--unique-by", "id")


def test_a_table_in_a_store_is_compacted_by_command(
    shop: str,
    s3: dict[str, str],  # noqa: F811
) -> None:
    storage = [f"--storage={name}={value}" for name, value in s3.items()]
    lake = ("--from", shop, "--topic", "ord*", "--to", "s3://lake/shop", *storage)
    conf = ("--conf", "spark.sql.shuffle.partitions=1", "--conf", "spark.app.name=by conf")
    assert json.loads(run("archive", *lake, *conf, "--json"))["topics"] == {"orders": 100}
    told = run("compact", "--from", "s3://lake/shop/orders", "--unique-by", "id", *storage)
    assert "rows after: 100" in told
    assert "files after: 1" in told


def test_the_flow_of_the_page_works_as_it_is_printed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "flows.md").read_text("utf-8")
    (declared,) = re.findall(r"```yaml\n# (\S+)\n(.*?)```", page, re.DOTALL)
    (tmp_path / declared[0]).write_text(declared[1])
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)

    def typed(line: str) -> str:
        words = shlex.split(line, comments=True)
        assert words[0] == "penstock"
        done = subprocess.run(
            [sys.executable, "-m", *words[: words.index(">") if ">" in words else None]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout

    told = {line.split("  ")[0]: typed(line) for line in blocks[0].splitlines() if line}
    applied = told["penstock pipeline apply customers.yaml"]
    assert re.search(r"messages: 2\n  rows: 1\n  bad: 1", applied)
    status = told["penstock pipeline status customers.yaml"]
    assert re.search(r"lag: 0\n", status)
    assert re.search(r"last commit: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", status)

    queue = re.findall(r"`(penstock dlq \w+ [^`]*)`", page)
    assert "has_city does not hold" in typed(queue[0])
    (tmp_path / declared[0]).write_text(declared[1].replace("quarantine", "warn"))
    typed(queue[1])
    assert "rows: 1" in typed("penstock pipeline apply customers.yaml")
    told = {line.split("  ")[0]: typed(line) for line in blocks[1].splitlines()}
    assert any('penstock_flow_rows_total{flow="customers"} 2' in each for each in told.values())


def test_the_example_in_plain_pyspark_goes_on_where_it_was(tmp_path: Path) -> None:
    for runs in (1, 2):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "spark_orders.py"), "--data", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"{4 * runs} messages were no orders" in done.stdout
        assert "the group 'totals' has 0 messages to do" in done.stdout


def test_the_declarative_example_runs_twice(tmp_path: Path) -> None:
    data, project = tmp_path / "data", tmp_path / "project"
    example = ROOT / "examples" / "spark_declarative"
    (project / "transformations").mkdir(parents=True)
    settings = (example / "spark-pipeline.yml").read_text()
    settings = settings.replace("file:///tmp/penstock-declarative", f"file://{tmp_path}/storage")
    (project / "spark-pipeline.yml").write_text(settings.replace("./data", str(data)))
    source = (example / "transformations" / "orders.py").read_text()
    (project / "transformations" / "orders.py").write_text(source)
    with penstock.connect(data) as ps:
        ps.create_topic("orders")
    for runs in (1, 2):
        with penstock.connect(data) as ps:
            ps.publish("orders", json.dumps({"city": "Bergen", "amount": 12 * runs}))
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "spark-pipelines"),
                *("run", "--conf", "spark.sql.catalogImplementation=hive"),
            ],
            cwd=project,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (total,) = _totals(project, tmp_path)
        assert total == 12 * sum(range(1, runs + 1))


def _totals(project: Path, tmp_path: Path) -> list[float]:
    """The one column of numbers in the files of the table `totals`."""
    import pyarrow.parquet as pq

    folder = next(p for root in (project, tmp_path) for p in root.rglob("totals") if p.is_dir())
    files = list(folder.glob("*.parquet"))
    return [total for file in files for total in pq.read_table(file)["total"].to_pylist()]
