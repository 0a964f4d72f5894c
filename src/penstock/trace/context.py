"""W3C trace context: the headers `traceparent` and `tracestate`.

`00-<trace id, 32 hex>-<parent id, 16 hex>-<flags, 2 hex>`; the lowest bit of the flags says that
the trace is sampled. What is not of this form counts as not there, as the recommendation asks.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(NamedTuple):
    trace_id: bytes
    span_id: bytes
    sampled: bool


@lru_cache(maxsize=256)  # the messages of a batch mostly have the same
def parse_traceparent(value: bytes | None) -> TraceContext | None:
    """None for anything that is not valid."""
    match = None if value is None or len(value) > 512 else _FORM.fullmatch(value.strip())
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more) or not trace.strip(b"0"):
        return None
    if not span.strip(b"0"):
        return None
    return TraceContext(
        bytes.fromhex(trace.decode()), bytes.fromhex(span.decode()), bool(int(flags, 16) & 1)
    )
