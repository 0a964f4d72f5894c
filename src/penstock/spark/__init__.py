"""Penstock on Spark: the data source `penstock`, and ready pipelines in `penstock.spark.pipelines`.

Spark finds the data source by the package `pyspark_penstock`; nothing has to be registered.
`prepare()`, before a session is built, has Spark use this Python and a Java that is there.
`keep_running()` starts a query in queue mode again when a batch of it fails; `source_progress()`
says how far behind a query is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.spark.environment import prepare

if TYPE_CHECKING:
    from penstock.spark.query_progress import source_progress as source_progress
    from penstock.spark.supervise import keep_running as keep_running

__all__ = ["keep_running", "prepare", "source_progress"]
_LATER = {
    "keep_running": "penstock.spark.supervise",
    "source_progress": "penstock.spark.query_progress",
}


def __getattr__(name: str) -> Any:
    """Loads PySpark when it is needed: `prepare` comes before that."""
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
