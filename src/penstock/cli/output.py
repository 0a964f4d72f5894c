"""Where lines go: results to stdout, all else to stderr, which with --json holds errors only."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

Part = str | tuple[str, str]
"""Text, or text and its style: words such as `bold red`."""


def wants_json() -> bool:
    """Whether a program reads what this command prints: --json, unless it is a value."""
    words = sys.argv[1:]
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def write_line(*parts: Part, stderr: bool = False) -> None:
    """A line, whatever its length; styles are for terminals."""
    stream = sys.stderr if stderr else sys.stdout
    is_styled = _shows_styles(stream)
    stream.write("".join(_text(part, is_styled) for part in parts) + "\n")


def note(text: str) -> None:
    """Something beside the result that a person wants to know."""
    if not wants_json():
        print(text, file=sys.stderr, flush=True)


def line_width() -> int | None:
    """How long a line may be: as the terminal is wide; None where nobody looks at it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _shows_styles(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty() or bool(os.environ.get("FORCE_COLOR"))


def _text(part: Part, is_styled: bool) -> str:
    if isinstance(part, str):
        return part
    text, style = part
    codes = ";".join(_CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and is_styled else text
