"""A server that lies about its messages: an error, never a crash."""

from __future__ import annotations

import os
import random
import subprocess
import sys

MUTATIONS = int(os.environ.get("PENSTOCK_MUTATIONS", "4000"))


def test_mutated_answers_are_refused_and_crash_nobody() -> None:
    seed = random.randrange(1 << 32)
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.wire.mutants", str(seed), str(MUTATIONS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.returncode}\n{done.stderr[-2000:]}"
    assert int(done.stdout) > MUTATIONS // 4
