"""Spark is told which Python a program runs on when the program uses Spark, and not otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = os.path.dirname(sys.executable)


def named(script: str, **environ: str) -> str:
    """What a fresh interpreter has in PYSPARK_DRIVER_PYTHON after a script."""
    show = "import os; print(os.environ.get('PYSPARK_DRIVER_PYTHON'))"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\n{show}"],
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def pyspark(tmp_path: Path) -> str:
    """A folder with a `pyspark` that is quick to import."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("")
    return str(tmp_path)


@pytest.mark.parametrize(
    "script", ["import penstock; import pyspark", "import pyspark; import penstock"]
)
def test_a_program_that_imports_both_says_its_python(script: str, pyspark: str) -> None:
    assert named(script, PYTHONPATH=pyspark) == sys.executable


def test_a_program_without_spark_says_nothing() -> None:
    assert named("import penstock; import json") == "None"


@pytest.mark.parametrize("name", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_what_the_user_has_named_stays(name: str, pyspark: str) -> None:
    told = named("import penstock; import pyspark", PYTHONPATH=pyspark, **{name: "python9"})
    assert told == {"PYSPARK_PYTHON": "None", "PYSPARK_DRIVER_PYTHON": "python9"}[name]


def test_in_an_activated_environment_python3_is_right_already(pyspark: str) -> None:
    assert named("import penstock; import pyspark", PYTHONPATH=pyspark, PATH=BIN) == "None"
