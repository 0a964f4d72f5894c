"""One suite, in a process of its own: neither the memory nor the threads of others count."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from rich.console import Console

from bench.figures import Findings
from bench.harness import Bench, runs_folder
from bench.progress import Progress
from bench.suites import SUITES

CACHE = Path(__file__).parent / ".cache"


def run_suite(name: str, options: argparse.Namespace) -> tuple[Findings, BaseException | None]:
    """What it found and, if it did not come to its end, why."""
    findings = Findings(name)
    try:
        with Progress(terminal()) as progress:
            progress.say(f"{name}: {SUITES[name].__doc__.splitlines()[0]}")
            SUITES[name].run(_bench(options, findings, progress))
    except BaseException as exc:  # noqa: BLE001 - raised where the others' findings are
        return findings, exc
    finally:
        shutil.rmtree(runs_folder(CACHE), ignore_errors=True)
    return findings, None


def terminal() -> Console:
    return Console(width=None if Console().is_terminal else 160)


def _bench(options: argparse.Namespace, findings: Findings, progress: Progress) -> Bench:
    return Bench(
        findings,
        cache=CACHE,
        progress=progress,
        quick=options.quick,
        keep=options.keep,
        size_bytes_max=options.size,
        rounds=options.rounds,
    )
