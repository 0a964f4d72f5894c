"""`python -m bench`: run suites, show the table, write the report."""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from bench import machine, report
from bench.alone import CACHE, run_suite, terminal
from bench.figures import Findings
from bench.suites import SUITES
from bench.units import parse_size

_HERE = Path(__file__).parent


def main() -> int:
    options = _options()
    console = terminal()
    facts = machine.facts(_HERE)
    findings: list[Findings] = []
    began = time.monotonic()
    try:
        for name in options.suites:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
                running = alone.submit(run_suite, name, options)
                with suppress(KeyboardInterrupt):  # it gets one too, and ends
                    wait([running])
                found, stopped = running.result()
            findings.append(found)
            if stopped is not None:
                raise stopped
    except BaseException as exc:
        options.partial = True
        console.print(f"Stopped by {type(exc).__name__}; what was found until then:")
        if not isinstance(exc, KeyboardInterrupt):
            raise
    finally:
        if not options.keep:
            shutil.rmtree(CACHE / "logs", ignore_errors=True)
        facts["duration"] = f"{time.monotonic() - began:.0f} s"
        report.show(console, findings)
        paths = report.write(options.out, _report_name(options), findings, facts)
        console.print("Written:", ", ".join(str(path) for path in paths), soft_wrap=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Penstock beside its peers. Results are ratios taken in one run.",
        epilog="suites: " + ", ".join(SUITES),
    )
    parser.add_argument("suites", nargs="*", help="names, or beginnings of names; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, logs up to 1 GB")
    parser.add_argument("--size", help="the largest log, for example 500MB (10GB; quick: 1GB)")
    parser.add_argument("--rounds", type=int, help="rounds of each race (7; quick: 3)")
    parser.add_argument("--keep", action="store_true", help="keep the large logs for the next run")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="folder for the report")
    options = parser.parse_args()
    options.partial = bool(options.suites or options.size or options.rounds)
    options.rounds = options.rounds or (3 if options.quick else 7)
    try:
        options.size = parse_size(options.size or ("1GB" if options.quick else "10GB"))
        options.suites = _chosen(options.suites)
    except ValueError as exc:
        parser.error(str(exc))
    return options


def _chosen(wanted: list[str]) -> list[str]:
    """The suites whose names begin with one of the wanted words."""
    for word in wanted:
        if not any(name.startswith(word) for name in SUITES):
            raise ValueError(f"no suite begins with {word!r}; there are: {', '.join(SUITES)}")
    return [name for name in SUITES if not wanted or name.startswith(tuple(wanted))]


def _report_name(options: argparse.Namespace) -> str:
    """Only a full run replaces the figures that are kept under version control."""
    if options.partial:
        return "partial"
    return "quick" if options.quick else "figures"


if __name__ == "__main__":
    raise SystemExit(main())
