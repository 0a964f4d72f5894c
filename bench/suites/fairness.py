"""Tenants that take turns: one message behind a flood, and what turns cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from bench.figures import at_most
from bench.harness import Bench, Contender, Sample, stopwatch

_FLOOD = 1_000_000
_BATCH = 1000
_TENANTS = 50
_RECEIVED = 100
_RECEIVES = 200
_FAIR, _PLAIN = "with turns", "without"
_LONGEST = 20


def run(bench: Bench) -> None:
    with bench.folder() as folder, penstock.connect(folder) as ps:
        ps.create_topic("jobs", fair_by="header:tenant")
        for nth in range(_FLOOD // _BATCH):
            bench.progress.show(f"{nth * _BATCH:,} messages of one tenant")
            _publish(ps, ["a"] * _BATCH)
        ps.receive("jobs", "g", max_messages=10)
        _publish(ps, ["b"])
        bench.figure(
            f"one message of B behind {_FLOOD:,} of A: which receive of 10 brings it",
            next(nth for nth in range(2, _LONGEST) if _brings_b(ps)),
            unit="",
            target=at_most(2),
            detail="B publishes after the first receive; which is not acked",
        )
    publish = bench.race(
        "publish in batches",
        [Contender(_FAIR, lambda f: _published(f, True)), Contender(_PLAIN, _published)],
    )
    bench.compare(publish, _FAIR, _PLAIN, None, "messages", title="publish 1,000: without turns")
    receive = bench.race(
        "receive and ack",
        [Contender(_FAIR, lambda f: _received(f, True)), Contender(_PLAIN, _received)],
    )
    title = f"receive + ack {_RECEIVED} of {_TENANTS} tenants: without turns"
    bench.compare(receive, _FAIR, _PLAIN, None, "messages", title=title)
    bench.note(f"Embedded, messages of 100 B with a header; {_TENANTS} tenants in batches.")


def _brings_b(ps: Any) -> bool:
    return any(m.headers["tenant"] == b"b" for m in ps.receive("jobs", "g", max_messages=10))


def _publish(ps: Any, tenants: list[str]) -> None:
    headers = [{"tenant": tenant} for tenant in tenants]
    ps.publish_batch("jobs", [b"x" * 100] * len(tenants), headers=headers)


def _published(folder: Path, fair: bool = False) -> Sample:
    with _topic(folder, fair) as ps, stopwatch(_BATCH * _RECEIVES) as sample:
        _fill(ps, _RECEIVES)
    return sample


def _received(folder: Path, fair: bool = False) -> Sample:
    with _topic(folder, fair) as ps:
        _fill(ps, _RECEIVED * _RECEIVES // _BATCH)
        with stopwatch(_RECEIVED * _RECEIVES) as sample:
            for _ in range(_RECEIVES):
                ps.receive_batch("jobs", "g", _RECEIVED).ack()
    return sample


def _topic(folder: Path, fair: bool) -> Any:
    ps = penstock.connect(folder)
    ps.create_topic("jobs", **({"fair_by": "header:tenant"} if fair else {}))
    return ps


def _fill(ps: Any, batches: int) -> None:
    tenants = [f"tenant-{nth % _TENANTS}" for nth in range(_BATCH)]
    for _ in range(batches):
        _publish(ps, tenants)
