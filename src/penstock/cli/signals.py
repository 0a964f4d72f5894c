"""Ctrl-C and SIGTERM, but never in the middle of what has to be done as a whole."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Signals:
    """Raises KeyboardInterrupt for them, at once or, within `held_off`, at the end of that.

    To be held off: the calls of a broker in this process, which an exception from nowhere could
    leave with half a change; and what comes between writing a message out and its ack.
    """

    def __init__(self, *, closed_terminal: bool = False) -> None:
        """`closed_terminal`: also when that happens, unless it was to be ignored (nohup)."""
        self._numbers = [signal.SIGINT, signal.SIGTERM]
        if closed_terminal and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._numbers.append(signal.SIGHUP)
        self._held_off = 0
        self._came = False
        self._former: dict[signal.Signals, Any] = {}

    @contextmanager
    def held_off(self) -> Iterator[None]:
        self._held_off += 1
        try:
            yield
        finally:
            self._held_off -= 1
        if self._came and not self._held_off:
            raise KeyboardInterrupt

    def __enter__(self) -> Signals:
        for number in self._numbers:
            self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._held_off:
            self._came = True
        else:
            raise KeyboardInterrupt
