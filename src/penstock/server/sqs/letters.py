"""Dead letters as SQS shows them: as the messages that they were, with where they came from."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.model.dead_letters import ORIGIN_HEADER, Origin
from penstock.record.schema import parse_ulid

_decoder = msgspec.json.Decoder(Origin)


def letter_origin(headers: Mapping[str, bytes | None]) -> Origin | None:
    """None: nobody knows, because somebody else wrote this header."""
    try:
        origin = _decoder.decode(headers.get(ORIGIN_HEADER) or b"")
        parse_ulid(origin.id)
    except (msgspec.DecodeError, ValueError):
        return None
    return origin
