"""What commands print: tables for people, JSON for programs. No line is ever wrapped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Rows under a dim head; numbers to the right, with their thousands set apart."""
    texts = [[cell(value) for value in row] for row in rows]
    right = [
        all(isinstance(row[i], int | float | None) for row in rows) and bool(rows)
        for i in range(len(columns))
    ]
    widths = [
        max(cell_len(text) for text in [name, *(row[i] for row in texts)])
        for i, name in enumerate(columns)
    ]
    console = PlainConsole()
    console.print(Text(_aligned(columns, widths, right), style="dim"))
    for row in texts:
        console.print(Text(_aligned(row, widths, right)))


def facts(pairs: Sequence[tuple[str, Any]]) -> None:
    """Names and what they are, one a line."""
    console = PlainConsole()
    width = max((len(name) for name, _ in pairs), default=0) + 2
    for name, value in pairs:
        console.print(Text.assemble((name.ljust(width), "dim"), cell(value)))


def say(text: str, style: str = "") -> None:
    """A sentence."""
    PlainConsole().print(Text(text, style=style))


def document(value: Any) -> None:
    """One JSON document, indented."""
    sys.stdout.write(msgspec.json.format(encode(value), indent=2).decode() + "\n")


def line(value: Any) -> None:
    """One JSON object on one line."""
    sys.stdout.write(encode(value).decode() + "\n")


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


def cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """What others wrote must not steer the terminal of who reads it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class PlainConsole(Console):
    """A console that wraps, marks up and highlights nothing."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(highlight=False, soft_wrap=True, stderr=stderr, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Rich would end the process here, with an exit code of its own."""
        raise BrokenPipeError


def _aligned(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        " " * (width - cell_len(text)) + text if to_right else text + " " * (width - cell_len(text))
        for text, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(padded).rstrip()
