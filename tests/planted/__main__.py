"""The tests are tested: each planted bug has to be caught.

    python -m tests.planted                    # all of them, a line each
    python -m tests.planted fsync delivery/    # those with one of these in the name or the file

Each bug is planted into a copy of the source, and the tests that should notice it run on that copy.
First they all run on a copy without a bug: a test that fails anyway would prove nothing. The source
itself is never touched. A bug that survives is an exit code other than 0.
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

from tests.planted.bug import Bug
from tests.planted.bugs import BUGS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
TEST_S_MAX = 300  # a bug may well make a test hang, and a busy machine is none


@dataclass(frozen=True)
class Verdict:
    failed_test: str
    """Empty: nobody noticed."""
    reason: str
    """Why it failed; or, without a test that did, why the tests could not be run at all."""
    seconds: float


def main(words: list[str]) -> int:
    bugs = [bug for bug in BUGS if not words or any(w in bug.name or w in bug.file for w in words)]
    if not bugs:
        print(f"no planted bug has one of {words} in its name or file", file=sys.stderr)
        return 2
    tests = " ".join(bug.caught_by for bug in bugs)
    print(f"{len(bugs)} bugs; first the tests without one ...", flush=True)
    healthy = run_tests(None, tests, "-n", "auto")
    if healthy.failed_test or healthy.reason:
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


def run_tests(bug: Bug | None, tests: str, *options: str) -> Verdict:
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
        options = ("-m", "not torture", f"--timeout={TEST_S_MAX}", *options)
        ran = subprocess.run(
            [*pytest, *options, *dict.fromkeys(tests.split())],
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
    if failure is None and "Timeout" in ran.stdout + ran.stderr:
        return Verdict("a test that hangs", "", seconds)
    if ran.returncode != 1 or failure is None:
        return Verdict("", f"pytest could not run: {(ran.stdout + ran.stderr)[-1000:]}", seconds)
    broken = rf"^{re.escape(folder)}\S+:\d+: (Attribute|Name|Type|Import|Syntax)Error"
    if re.search(broken, ran.stdout, re.MULTILINE):
        return Verdict("", f"no bug but broken Python: {failure[2]}", seconds)
    return Verdict(failure[1], failure[2] or "", seconds)


def row(bug: Bug, verdict: Verdict) -> str:
    part = bug.file.partition("/")[0]
    if not verdict.failed_test:
        return f"  NOT CAUGHT {part:9} {bug.name} {verdict.reason}"
    return f"  caught     {part:9} {bug.name}: {verdict.failed_test}, {verdict.seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
