"""The demo keeps running, and what it shows stays true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_runs_and_loses_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "confirmed and lost: 0" in done.stdout
    assert "are skipped and reported" in done.stdout
    assert "Where to look next" in done.stdout
