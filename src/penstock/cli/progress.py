"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere.

All of it goes to stderr, so that what a command prints can be piped.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.cli.output import note, wants_json
from penstock.cli.units import size

if TYPE_CHECKING:
    from rich.progress import Progress

_QUIET_S = 2  # work that is shorter says nothing where there is no terminal
_EVERY_S = 5


class ByteProgress:
    """How many of so many bytes are done."""

    def __init__(self, total_bytes: int, done: str = "looked at") -> None:
        self._verb = done
        self._total = total_bytes
        self._done = 0
        self._name = ""
        self._bar: Progress | None = None
        self._next_line = time.monotonic() + _QUIET_S
        if sys.stderr.isatty() and not wants_json():
            # Here, as it takes long to load and most work is short or piped.
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import (  # noqa: PLC0415
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=total_bytes)

    def name(self, name: str) -> None:
        """What is being worked on."""
        self._name = name
        if self._bar:
            self._bar.update(self._task, description=name)

    def advance(self, count: int) -> None:
        self.reach(self._done + count)

    def reach(self, position: int) -> None:
        # A log that grows, or is looked at twice, has more than was counted at first.
        self._done = min(position, self._total)
        if self._bar:
            self._bar.update(self._task, completed=self._done)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _EVERY_S
            line = f"{size(self._done)} of {size(self._total)} {self._verb}; now {self._name}"
            note(line)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()
