"""A program that ends without closing its client: what is done aside comes to rest first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

UNCLOSED = """
import sys, time
import penstock

ps = penstock.connect(sys.argv[1])
ps.create_topic("orders", exist_ok=True)
ps.publish_batch("orders", [b"0", b"1"])
for message in ps.stream("orders", "audit"):
    break
"""

AT_WORK = """
import threading, time
from penstock.log.commit import SHARED

begun = threading.Event()

def work():
    begun.set()
    time.sleep(0.3)
    print("done", flush=True)

SHARED.schedule(0, work)
begun.wait()
"""


def ends(script: str, *args: str) -> str:
    child = [sys.executable, "-c", script, *args]
    done = subprocess.run(child, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_task_that_is_under_way_is_finished() -> None:
    assert ends(AT_WORK) == "done\n"


@pytest.mark.parametrize("_time", range(3))
def test_a_client_that_nobody_closed_ends_without_a_word(tmp_path: Path, _time: int) -> None:
    ends(UNCLOSED, str(tmp_path))
    ends(UNCLOSED, str(tmp_path))
