"""What Spark says when something goes wrong, as the error that it was in the first place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException

from penstock import errors
from penstock.errors import InvalidInput, PenstockError, SparkFailed

_OURS = re.compile(r"^penstock\.errors\.(\w+): (.+)$", re.MULTILINE)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt): .+)$", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: .*", re.DOTALL)


@contextmanager
def unwrapped() -> Iterator[None]:
    """Inside, an error that comes out of Spark is one of ours, and says no more than it has to."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as exc:
        if _is_interrupt(exc):
            raise KeyboardInterrupt from exc
        raise as_ours(exc) from exc


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it happened because of Ctrl-C: what PySpark does on its way out fails then too."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def as_ours(error: Exception) -> PenstockError:
    """The error of ours that Spark has wrapped, or one that says what Spark says."""
    text = str(error)
    ours = [(getattr(errors, name, None), message) for name, message in _OURS.findall(text)]
    for kind, message in reversed(ours):  # the last one is what was raised because of the others
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            made = kind.__new__(kind)
            Exception.__init__(made, message)
            return made
    if isinstance(error, ConnectionError | EOFError):  # py4j talks to it through a socket
        return SparkFailed(f"Spark's Java process does not answer: {error}")
    said = _STATE.sub("", next(filter(None, map(str.strip, text.splitlines())), text))
    if isinstance(error, AnalysisException):  # of a condition or a schema that somebody wrote
        return InvalidInput(said)
    raised = _RAISED.findall(text)
    return SparkFailed(f"Spark failed: {raised[-1] if raised else said}")
