"""What Spark says when something goes wrong, as the error that it was in the first place."""

from __future__ import annotations

import inspect
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException

from penstock import errors
from penstock.errors import InvalidInput, PenstockError, SparkFailed

_TRACEBACK = "Traceback (most recent call last):\n"
_OURS = re.compile(r"penstock\.errors\.(\w+): (.+)", re.DOTALL)
_STATE = re.compile(r"\s*SQLSTATE: .*", re.DOTALL)


@contextmanager
def unwrapped() -> Iterator[None]:
    """Inside, an error that comes out of Spark is one of ours, and says no more than it has to."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as exc:
        if _is_interrupt(exc):
            raise KeyboardInterrupt from exc
        if isinstance(exc, ConnectionError | EOFError) and not _is_of_spark(exc):
            raise
        raise as_ours(exc) from exc


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it happened because of Ctrl-C: what PySpark does on its way out fails then too."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _is_of_spark(error: Exception) -> bool:
    """Whether PySpark or py4j raised it, which talk to Java through sockets; others do so too."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    while os.path.basename(files[-1]) == "socket.py":
        files.pop()
    return not {"py4j", "pyspark"}.isdisjoint(files[-1].split(os.sep))


def as_ours(error: Exception) -> PenstockError:
    """The error of ours that Spark has wrapped, or one that says what Spark says."""
    if isinstance(error, ConnectionError | EOFError):
        return SparkFailed(f"Spark's Java process does not answer: {error}")
    text = str(error)
    raised = _raised(text)
    ours = _OURS.fullmatch(raised)
    kind = getattr(errors, ours[1], None) if ours else None
    if ours and isinstance(kind, type) and issubclass(kind, PenstockError):
        return _made(kind, ours[2])
    said = _STATE.sub("", next(filter(None, map(str.strip, text.splitlines())), text))
    if isinstance(error, AnalysisException):  # of a condition or a schema that somebody wrote
        return InvalidInput(said)
    return SparkFailed(f"Spark failed: {raised or said}")


def _raised(text: str) -> str:
    """What Python code has raised in the end, if any: it follows the lines of the last traceback.

    They are indented; so is what Spark adds behind it.
    """
    _, found, last = text.rpartition(_TRACEBACK)
    lines = iter(last.splitlines() if found else [])
    first = next((line for line in lines if line and not line[0].isspace()), "")
    return "\n".join([first, *takewhile(lambda line: line and not line[0].isspace(), lines)])


def _made(kind: type[PenstockError], message: str) -> PenstockError:
    """What it is about is not known but from the message: None, for whoever asks the error."""
    made = kind.__new__(kind)
    Exception.__init__(made, message)
    made.__dict__.update(dict.fromkeys(inspect.signature(kind).parameters.keys() - {"message"}))
    return made
