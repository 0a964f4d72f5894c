"""A flow whose process is killed (SIGKILL) at one of its commit points.

python -m tests.spark.doomed_flow DECLARED.json POINT
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.spark.flows import apply_flow, run
from penstock.spark.flows.iceberg_table import IcebergFlowTable
from penstock.spark.flows.tables import FlowTable
from penstock.spark.pipelines import session

POINTS = ("planned", "quarantined", "before commit", "committed", "told")
TABLES: tuple[Any, ...] = (FlowTable, IcebergFlowTable)


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(function: Callable[..., Any]) -> Callable[..., Any]:
    return die


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        die()

    return called


def doom(point: str) -> None:
    """Have the process die at this point of its first round."""
    match point:
        case "planned":
            run._keep = after(run._keep)
        case "quarantined":
            run.quarantine = after(run.quarantine)
        case "before commit":
            for table in TABLES:
                table.write = before(table.write)
        case "committed":
            for table in TABLES:
                table.write = after(table.write)
        case "told":
            run.commit_progress = after(run.commit_progress)


if __name__ == "__main__":
    declared = json.loads(Path(sys.argv[1]).read_text())
    doom(sys.argv[2])
    with session("local[2]") as spark:
        apply_flow(spark, declared)
