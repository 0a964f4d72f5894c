"""The dashboard in Chromium: how soon the page of many topics is there, and its script."""

from __future__ import annotations

import gzip
import statistics
from pathlib import Path
from typing import Any

import penstock
from bench.figures import at_most
from bench.harness import Bench
from bench.served import served
from penstock.server.http.routes.dashboard import STATIC
from tests.e2e.browser import CHROMIUM, MISSING, chromium

_TOPICS = 5_000
_VISITS = 7
_PAINTED = """() => new Promise(done => {
  const look = () => document.querySelectorAll("tbody tr").length >= 50
    ? requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())))
    : setTimeout(look, 1);
  look();
})"""
"""Milliseconds from when the page was asked for until a screenful of topics is painted."""


def run(bench: Bench) -> None:
    scripts = [path.read_bytes() for path in Path(STATIC / "assets").glob("*.js")]
    size = sum(len(gzip.compress(each, 9)) for each in scripts)
    bench.figure("script, compressed", size / 1e3, unit="kB", target=at_most(80))
    name = f"the page of {_TOPICS:,} topics, from the address to the painted rows"
    if CHROMIUM is None:
        bench.figure(name, None, unit="ms", target=at_most(500), detail=MISSING)
        return
    with bench.folder() as folder:
        with penstock.connect(folder / "data") as ps:
            for number in range(_TOPICS):
                bench.progress.show(f"{number:,} topics")
                ps.create_topic(f"topic-{number:05}")
        with served(str(folder / "data")) as url, chromium() as browser:
            times = [_visit(browser, url) for _ in range(_VISITS + 1)][1:]
    bench.figure(
        name,
        statistics.median(times),
        unit="ms",
        target=at_most(500),
        detail=f"each visit without a cache; {min(times):.0f} .. {max(times):.0f} ms",
    )


def _visit(browser: Any, url: str) -> float:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.goto(f"{url}/#/topics", wait_until="commit")
    took_ms = float(page.evaluate(_PAINTED))
    context.close()
    return took_ms
