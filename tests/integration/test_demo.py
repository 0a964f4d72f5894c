"""The demos keep running, and what they show stays true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(demo: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / demo), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "Where to look next" in done.stdout
    return done.stdout


def test_the_shop_is_killed_and_every_order_ends_as_it_has_to(tmp_path: Path) -> None:
    told = run("demo.py", "--quick", "--keep", str(tmp_path / "data"))
    assert "kill -9, with about" in told
    assert re.search(r"back in \d+ ms, with \d+ orders to do", told)
    assert "max_retries after 4 attempts" in told
    assert re.search(r"[1-9]\d* letters are redriven, [1-9]\d* are purged", told)
    verdicts = re.findall(r"^   (yes|NO)  (.+?)  ", told, re.MULTILINE)
    assert [what for verdict, what in verdicts if verdict == "NO"] == []
    assert len(verdicts) == 8
    assert (tmp_path / "data" / "topics" / "default" / "orders.dlq").is_dir()


def test_the_log_demo_loses_nothing() -> None:
    told = run("log_demo.py")
    assert "confirmed and lost: 0" in told
    assert "are skipped and reported" in told
