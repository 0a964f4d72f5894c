"""Looking for messages, and what was found."""

from __future__ import annotations

import msgspec

from penstock.record.batch import Message

SCAN_BYTES_MAX = 64 << 20
"""As much is read for one page of a search, about."""
SCAN_MS_MAX = 2000
"""And one page takes about so long."""


class FoundMessage(msgspec.Struct, frozen=True):
    """A message, and where it lies."""

    partition: int
    message: Message
    schema_id: int | None = None
    """Of the schema that its value names, if that could be read."""
    decoded: str | None = None
    """What the value says by this schema, as JSON."""


class FoundPage(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found so far."""

    found: list[FoundMessage]
    next: str | None
    """The `after` of the next page; None: all was looked through. A page may be empty and yet not
    the last, since what is read for a page is bounded."""
    scanned: int
    """Messages that were looked at for this page."""
    scanned_bytes: int
