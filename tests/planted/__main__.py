"""The tests are tested: each planted bug has to be caught.

    python -m tests.planted                # all of them, as a table
    python -m tests.planted fsync trim     # those with one of these words in the name

Each bug is planted into a copy of the source, and the tests that should notice it run on that copy.
First they all run on a copy without a bug: a test that fails anyway would prove nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.planted.bugs import BUGS, Bug

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"


@dataclass(frozen=True)
class Verdict:
    failed_test: str
    """Empty: nobody noticed."""
    reason: str
    seconds: float


def main(words: list[str]) -> int:
    bugs = [bug for bug in BUGS if not words or any(word in bug.name for word in words)]
    if not bugs:
        print(f"no planted bug has one of {words} in its name", file=sys.stderr)
        return 2
    tests = " ".join(bug.caught_by for bug in bugs)
    print(f"{len(bugs)} bugs; first the tests without one ...", flush=True)
    healthy = run_tests(None, tests)
    if healthy.failed_test:
        print(f"  {healthy.failed_test} fails without a bug: {healthy.reason}", file=sys.stderr)
        return 2
    missed = 0
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        for bug, verdict in zip(bugs, workers.map(try_bug, bugs), strict=True):
            missed += not verdict.failed_test
            print(row(bug, verdict), flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} planted bugs caught")
    return 1 if missed else 0


def try_bug(bug: Bug) -> Verdict:
    return run_tests(bug, bug.caught_by)


def run_tests(bug: Bug | None, tests: str) -> Verdict:
    """Run tests on a copy of the source, up to the first that fails."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "penstock"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if bug is not None:
            path = copy / bug.file
            path.write_text(bug.plant(path.read_text()))
        environment = {
            **os.environ,
            "PYTHONPATH": folder,
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "400",  # the reason of a failure on one line
        }
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider"]
        ran = subprocess.run(
            [*pytest, "-m", "not torture", *dict.fromkeys(tests.split())],
            cwd=ROOT,
            env=environment,
            text=True,
            capture_output=True,
            check=False,
        )
    seconds = time.monotonic() - began
    if ran.returncode == 0:
        return Verdict("", "", seconds)
    failure = re.search(r"^FAILED \S*?::(\S+)(?: - (.*))?$", ran.stdout, re.MULTILINE)
    if ran.returncode != 1 or failure is None:
        raise RuntimeError(f"pytest could not run: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    if re.match(r"(Attribute|Name|Type|Import|Syntax)Error", failure[2] or ""):
        raise RuntimeError(f"{bug} is no bug but broken Python: {failure[2]}")
    return Verdict(failure[1], failure[2] or "", seconds)


def row(bug: Bug, verdict: Verdict) -> str:
    caught = f"caught by {verdict.failed_test}" if verdict.failed_test else "NOT CAUGHT"
    reason = verdict.reason.removeprefix("tests.simulation.model.")[:100]
    return f"  {bug.name}\n      {caught} ({verdict.seconds:.0f} s) {reason}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
