"""Waiting for a server, or a folder, that is away for a while: a query goes on when it is back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import (
    DataLost,
    FormatOutdated,
    FormatUnknown,
    LogError,
    OffsetOutOfRange,
    PenstockError,
    TopicNotFound,
)

_logger = logging.getLogger("penstock.spark")

T = TypeVar("T")

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0


class Patience:
    """How long to try again what may succeed later; each success begins it anew."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.succeeded()

    def succeeded(self) -> None:
        self._pause_s = _FIRST_PAUSE_S
        self._deadline = time.monotonic() + self._patience_s

    def wait(self, error: Exception, what: str) -> None:
        """Pause before the next attempt; raises the error if it will not pass, or took too long."""
        left_s = self._deadline - time.monotonic()
        if not passes(error) or left_s <= 0:
            raise error
        _logger.warning("%s: %s; trying again", what, error)
        time.sleep(min(self._pause_s, max(0.05, left_s)))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def passes(error: Exception) -> bool:
    """Whether it may be over later."""
    if isinstance(
        error, TopicNotFound | DataLost | OffsetOutOfRange | FormatOutdated | FormatUnknown
    ):
        return False
    if isinstance(error, PenstockError):
        return error.retriable or isinstance(error, LogError)
    return isinstance(error, OSError)


def patiently(work: Callable[[], T], patience_s: float, what: str) -> T:
    """Do something that can be done again, until it succeeds or it takes too long."""
    patience = Patience(patience_s)
    while True:
        try:
            return work()
        except (OSError, PenstockError) as exc:
            patience.wait(exc, what)
