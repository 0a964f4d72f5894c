"""Tells Spark which Python this program runs on, so that it finds `format("penstock")`.

Spark looks for data sources with the Python that PYSPARK_DRIVER_PYTHON or PYSPARK_PYTHON names,
else with any `python3` of the PATH. Where the virtualenv is not activated, as in
`.venv/bin/python x.py`, that one does not have Penstock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType


def tell_pyspark() -> None:
    """Set PYSPARK_DRIVER_PYTHON, now or when PySpark is imported; not where nobody uses Spark.

    The variable is inherited by what a program starts, so one without PySpark has no use for it.
    """
    if "pyspark" in sys.modules:
        _name_this_python()
    else:
        sys.meta_path.insert(0, _PySparkImport())


class _PySparkImport:
    """Is asked for every module that is imported, and finds none of them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name == "pyspark":
            _name_this_python()


def _name_this_python() -> None:
    """Unless the user has named one, or `python3` is of this environment anyway."""
    if "PYSPARK_DRIVER_PYTHON" in os.environ or "PYSPARK_PYTHON" in os.environ:
        return
    import shutil  # noqa: PLC0415 - keeps `import penstock` light

    usual = shutil.which("python3")
    if usual is None or os.path.dirname(usual) != os.path.dirname(sys.executable):
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
