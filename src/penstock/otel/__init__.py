"""Spans and contexts of OpenTelemetry, for clients and workers. `spans` needs its API."""

from __future__ import annotations

import os
import sys


def is_wanted() -> bool:
    """Whether the program uses OpenTelemetry, and did not switch it off by its own variable.

    A program that does has set up the SDK, or something that does, before it connects; for all
    others nothing is loaded, and nothing costs."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return "opentelemetry.trace" in sys.modules and not is_off
