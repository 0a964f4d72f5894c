"""Text that callers give, and that goes into a journal."""

from __future__ import annotations

from penstock.errors import InvalidInput

ERROR_LENGTH_MAX = 4096
"""Characters that are kept of what a consumer says went wrong."""


def check_text(name: str, text: object) -> None:
    """What goes into the ledger has to come out of it again."""
    if not isinstance(text, str):
        raise InvalidInput(f"{name} must be text, not {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidInput(f"{name} cannot be stored as UTF-8: {exc}") from None
