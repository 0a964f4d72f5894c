"""How much of a processor another process has used."""

from __future__ import annotations

import os
from pathlib import Path


def used_s(process: int) -> float:
    """The CPU time of a process so far, its threads included."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
