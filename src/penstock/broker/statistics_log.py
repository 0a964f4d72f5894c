"""A log that the broker goes on without: of latencies, of traces, of how topics stood."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from penstock.errors import LogFailed, PenstockError
from penstock.log.base import PartitionLog

_logger = logging.getLogger("penstock.broker")


class Closable(Protocol):
    def close(self) -> None: ...


L = TypeVar("L", bound=Closable)


class StatisticsLog(Generic[L]):
    """Opened when it is first needed, and anew after a failure. One thread at a time calls."""

    def __init__(
        self,
        what: str,
        open_log: Callable[[bool], PartitionLog | None],
        over: Callable[[PartitionLog], L],
    ) -> None:
        """`what` is in it, for the warning. `open_log` makes a log if it may; else it gives None
        where there is none. `over` it lies what reads and writes it."""
        self._what = what
        self._open_log = open_log
        self._over = over
        self._log: L | None = None
        self._failing = False

    def if_any(self, *, create: bool = False) -> L | None:
        if self._log is None:
            log = self._open_log(create)
            if log is not None:
                try:
                    self._log = self._over(log)
                except BaseException:
                    log.close()
                    raise
        return self._log

    def if_open(self) -> L | None:
        return self._log

    def write(self, work: Callable[[L], None]) -> bool:
        """Whether it was written; of several failures in a row the first is told."""
        with self.trying():
            log = self.if_any(create=True)
            assert log is not None
            work(log)
            self._failing = False
            return True
        return False

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Whatever becomes of statistics, the broker goes on."""
        try:
            yield
        except (PenstockError, OSError) as exc:
            if not self._failing:
                self._failing = True
                _logger.warning("%s are not stored: %s", self._what, exc)
            if isinstance(exc, LogFailed) and self._log is not None:
                failed, self._log = self._log, None  # the next one opens it anew
                with suppress(PenstockError, OSError):
                    failed.close()

    def close(self) -> None:
        """It is not opened again: what comes later finds it closed."""
        with self.trying():
            if self._log is not None:
                self._log.close()
