"""Progress on a terminal as one moving line, elsewhere as plain lines."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape

from bench.figures import Figure
from bench.units import quantity


class Progress:
    """Used as a context manager around the whole run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.stop()

    def show(self, text: str) -> None:
        """What is being done right now. Too much for a log file, so only on a terminal."""
        if self._console.is_terminal:
            self._status.update(escape(text))

    def say(self, text: str) -> None:
        self._console.print(escape(text), highlight=False)

    def found(self, figure: Figure) -> None:
        if figure.value is None:
            self.say(f"  {figure.title}: skipped: {figure.detail}")
        else:
            verdict = f"  {figure.verdict}" if figure.verdict else ""
            self.say(f"  {figure.title}: {quantity(figure.value.median, figure.unit)}{verdict}")
