"""What commands print: tables for people, JSON for programs. No line is ever wrapped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.cells import cell_len, set_cell_size

from penstock.cli.output import line_width, write_line

_CUT_MIN = 12
_INDENT = "  "


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    cut: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> None:
    """Rows under a dim head; numbers to the right, with their thousands set apart.

    Where a terminal is too narrow for it, columns move together and the words of a name in the
    head go below each other. Then the columns in `drop` are left out, one after the other, until
    those in `cut` need to lose no more than their ends. If that is not enough, long names go to
    lines of their own, above the rest of their rows. Others are always whole.
    """
    head, *body = lines(columns, rows, line_width(), cut=cut, drop=drop)
    for text in head:
        write_line((text, "dim"))
    for row in body:
        for text in row:
            write_line(text)


def lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    width: int | None,
    *,
    cut: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> list[list[str]]:
    """The lines of the head, and of each row."""
    made = [_Column.of(name, [row[i] for row in rows]) for i, name in enumerate(columns)]
    gap = 2
    if width is not None and _total(made, gap) > width:
        for column in made:
            column.head = column.name.split(" ")
        if _total(made, gap) > width:
            gap = 1
        for name in drop:
            if _total(made, gap, cut) > width:
                made = [column for column in made if column.name != name]
        names, made = _long_names(made, gap, width, cut)
        if names:
            rest = _laid(made, gap, width - len(_INDENT), cut)
            return [
                name + [f"{_INDENT}{text}" for text in facts]
                for name, facts in zip(_laid(names, gap, None, ()), rest, strict=True)
            ]
    return _laid(made, gap, width, cut)


def _long_names(
    columns: list[_Column], gap: int, width: int, cut: Sequence[str]
) -> tuple[list[_Column], list[_Column]]:
    """The first columns that have to go to a line of their own for the others to fit, and those."""
    names: list[_Column] = []
    rest = columns
    for column in columns:
        is_indented = bool(names)
        if _total(rest, gap, cut) + is_indented * len(_INDENT) <= width:
            break
        is_long = not column.is_number and column.name not in cut and column.width > _CUT_MIN
        if is_long and _total([*names, column], gap) <= width and len(rest) > 1:
            names = [*names, column]
            rest = [each for each in rest if each is not column]
    for column in names:
        column.head = [column.name]
    return names, rest


def _laid(made: list[_Column], gap: int, width: int | None, cut: Sequence[str]) -> list[list[str]]:
    """The lines of a head, and of each row."""
    if width is not None:
        for column in sorted(made, key=lambda c: -c.width):
            if column.name in cut:
                column.shorten(_total(made, gap) - width)
    height = max(len(column.head) for column in made)
    for column in made:
        column.head = [""] * (height - len(column.head)) + column.head
    space = " " * gap
    head, body = zip(*((c.aligned(c.head), c.aligned(c.texts)) for c in made), strict=True)
    return [
        [space.join(cells).rstrip() for cells in zip(*head, strict=True)],
        *([space.join(cells).rstrip()] for cells in zip(*body, strict=True)),
    ]


@dataclass
class _Column:
    name: str
    head: list[str]
    texts: list[str]
    is_number: bool

    @classmethod
    def of(cls, name: str, values: Sequence[Any]) -> _Column:
        is_number = bool(values) and all(isinstance(v, int | float | None) for v in values)
        return cls(name, [name], [cell(value) for value in values], is_number)

    @property
    def width(self) -> int:
        return max(map(cell_len, [*self.head, *self.texts]))

    def shorten(self, surplus: int) -> None:
        """Cut what is too long, down to a width that still says something."""
        room = max(self.width - max(surplus, 0), _CUT_MIN)
        self.texts = [
            text if cell_len(text) <= room else set_cell_size(text, room - 3).rstrip() + "..."
            for text in self.texts
        ]

    def aligned(self, texts: Sequence[str]) -> list[str]:
        width = self.width
        padded = [(" " * (width - cell_len(text)), text) for text in texts]
        return [pad + text if self.is_number else text + pad for pad, text in padded]


def _total(columns: Sequence[_Column], gap: int, cut: Sequence[str] = ()) -> int:
    """How wide a table is; with `cut`, how wide it has to be at the least."""
    widths = [min(c.width, _CUT_MIN) if c.name in cut else c.width for c in columns]
    return sum(widths) + gap * (len(columns) - 1)


def facts(pairs: Sequence[tuple[str, Any]]) -> None:
    """Names and what they are, one a line."""
    width = max((len(name) for name, _ in pairs), default=0) + 2
    for name, value in pairs:
        write_line((name.ljust(width), "dim"), cell(value))


def say(text: str, style: str = "") -> None:
    """A sentence."""
    write_line((text, style))


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
    """Text that others wrote must not control the reader's terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
