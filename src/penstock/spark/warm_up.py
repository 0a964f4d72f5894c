"""What is done once in each Python worker of Spark, when it begins with its second task of ours."""

from __future__ import annotations

import gc
from itertools import count

from pyspark import TaskContext

_tasks = count(1)


def freeze_loaded_modules() -> None:
    """Spare a worker from looking through all its modules after every task.

    Spark's workers collect garbage after each task, of all generations. The objects that are there
    when the second task begins, some hundred thousand, are modules and what belongs to them: the
    first has loaded all that a task needs. They stay, and going through them takes as long as
    reading a hundred thousand messages.
    """
    if TaskContext.get() is not None and next(_tasks) == 2:
        gc.collect()
        gc.freeze()
