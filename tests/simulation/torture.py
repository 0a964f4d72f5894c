"""How long the long campaigns are: PENSTOCK_TORTURE_SCALE=0.1 for a tenth, 10 for ten times."""

from __future__ import annotations

import os

SCALE = float(os.environ.get("PENSTOCK_TORTURE_SCALE", "1"))


def scaled(count: int) -> int:
    return max(1, round(count * SCALE))
