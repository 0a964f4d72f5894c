"""End to end on a Spark cluster, where driver, executors, Python workers and broker are killed.

At the end the lake, or the topic that a stream copies to, holds every message once, in spite of
kills at random moments of the work. The seed is printed.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import deltalake
import pytest

import penstock
from tests.simulation.torture import scaled
from tests.spark.cluster import SparkCluster, free_port
from tests.spark.doomed_publisher import BATCH, PARTITIONS
from tests.spark.victims import ROOT, Victim

KILLS = scaled(21)
MESSAGES = max(scaled(1_000_000), KILLS * 10 * BATCH) // BATCH * BATCH
PATIENCE_S = 1800.0
LAYOUTS: tuple[tuple[str, ...], ...] = (
    (),
    ("--partition-by", "partition", "--partition-by", "priority", "--statistics", "timestamp"),
)

pytestmark = [pytest.mark.torture, pytest.mark.timeout(0)]


class Campaign:
    """Kills by turns, in a random order; most of them while a query is at work, some as it starts.

    `kill` says how; one that found nobody to kill says so, and another one is tried.
    """

    def __init__(self, seed: int, query: Victim, work_done: Callable[[], int]) -> None:
        self.dice = random.Random(seed)
        self.killed: Counter[str] = Counter()
        self._query = query
        self._work_done = work_done
        self._deck: list[str] = []

    def kill_one_of(self, kill: Mapping[str, Callable[[], bool]]) -> None:
        before = self._work_done()
        if self.dice.random() < 0.8:
            self.wait_for(lambda: self._work_done() > before)
        self.rest(self.dice.uniform(0, 5))
        while True:
            if not self._deck:
                self._deck = self.dice.sample(list(kill), len(kill))
            name = self._deck.pop()
            if kill[name]():
                self.killed[name] += 1
                print(f"{time.strftime('%H:%M:%S')} {name} killed", flush=True)
                return
            self.rest(0.5)

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)
        if self._query.returncode not in (None, 0):
            self._query.kill()  # the death of others may end a query: it is run again
            self._query.start()

    def wait_for(self, so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not so() and self._query.returncode != 0:
            assert time.monotonic() < deadline, f"it does not get on:\n{self._query.last_words()}"
            self.rest(0.2)


def allow(path: Path, messages: int) -> None:
    path.with_suffix(".new").write_text(str(messages))
    path.with_suffix(".new").replace(path)  # the publisher may be reading


def restarted(victim: Victim) -> bool:
    victim.kill()
    victim.start()
    return True


def test_the_lake_holds_each_message_once_whoever_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    layout = random.Random(seed).choice(LAYOUTS)
    print(f"\nseed {seed}: {MESSAGES:,} messages, {KILLS} kills {' '.join(layout)}")
    data, lake, acked, allowed = (tmp_path / name for name in ("data", "lake", "acked", "allowed"))
    with penstock.connect(data) as ps:
        ps.create_topic(
            "orders",
            partitions=PARTITIONS,
            segment_bytes=256 << 10,
            retention="5s",
            retention_waits_for=["archive"],
        )
    allow(allowed, 0)
    words = ("pipeline", "run", "archive", "--from", str(data), "--to", str(lake))
    command = (sys.executable, "-m", "penstock", *words, "--topic", "orders", *layout)
    began = time.monotonic()
    with SparkCluster(tmp_path / "spark") as cluster:
        publisher = Victim(
            sys.executable,
            *("-m", "tests.spark.doomed_publisher", str(data), str(acked), str(allowed)),
            str(MESSAGES),
            log=tmp_path / "publisher.log",
        )
        archive = Victim(
            *command,
            *("--follow", "--master", cluster.url),
            environment=cluster.environment,
            log=tmp_path / "archive.log",
        )
        campaign = Campaign(seed, archive, lambda: len([*lake.glob("orders/_delta_log/*.json")]))
        dice = campaign.dice
        try:
            for number in range(KILLS):
                assert publisher.returncode is None, publisher.last_words()
                allow(allowed, MESSAGES * (number + 1) // KILLS)
                campaign.kill_one_of(
                    {
                        "driver": lambda: restarted(archive),
                        "executor": lambda: cluster.kill_an_executor(dice),
                        "python worker": lambda: cluster.kill_a_worker(dice),
                        "broker": lambda: restarted(publisher),
                    }
                )
            campaign.wait_for(lambda: publisher.returncode is not None)
            assert publisher.returncode == 0, publisher.last_words()
        finally:
            publisher.kill()
            archive.kill()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    table = deltalake.DeltaTable(str(lake / "orders")).to_pyarrow_table(
        columns=["partition", "offset", "value"]
    )
    values = Counter(map(int, table["value"].to_pylist()))
    twice = sum(count > 1 for count in values.values())
    missing = MESSAGES - len(values.keys() & set(range(MESSAGES)))
    assert (twice, missing, len(table)) == (0, 0, MESSAGES), f"seed {seed}"
    with penstock.connect(data) as ps:
        parts = ps.stats("orders").partitions
        assert set(ps.describe_stream_group("archive").lag.values()) == {0}
    places = set(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert places == {(part.partition, offset) for part in parts for offset in range(part.end)}
    dropped = sum(part.start for part in parts)
    assert dropped > 0, "retention never dropped anything, so it was not seen to wait"
    print(
        f"{MESSAGES:,} published, {sum(p.end for p in parts):,} in the log (of which retention has "
        f"dropped {dropped:,}), {len(table):,} in the lake, each once; "
        f"{campaign.killed.total()} kills: {dict(campaign.killed)}; "
        f"{time.monotonic() - began:,.0f} s"
    )


def test_a_stream_copies_each_message_once_whoever_is_killed(tmp_path: Path) -> None:
    """From a server, and to it."""
    seed = random.randrange(1 << 32)
    messages = MESSAGES // 10 // BATCH * BATCH
    print(f"\nseed {seed}: {messages:,} messages, {KILLS} kills")
    data = str(tmp_path / "data")
    with penstock.connect(data) as ps:
        for topic in ("orders", "copy"):
            ps.create_topic(topic, partitions=2)
        for start in range(0, messages, BATCH):
            values = [f"{number}" for number in range(start, start + BATCH)]
            ps.publish_batch("orders", values, keys=values)
    port = str(free_port())
    began = time.monotonic()
    with SparkCluster(tmp_path / "spark") as cluster:
        server = Victim(
            *(sys.executable, "-m", "penstock", "serve", "--data", data, "--port", port),
            log=tmp_path / "server.log",
        )
        stream = Victim(
            *(sys.executable, "-m", "tests.spark.doomed_stream", f"http://127.0.0.1:{port}"),
            *(str(tmp_path), str(messages // KILLS // 4), cluster.url),
            environment=cluster.environment,
            log=tmp_path / "stream.log",
        )
        commits = tmp_path / "checkpoint" / "commits"
        campaign = Campaign(seed, stream, lambda: len([*commits.glob("[0-9]*")]))
        dice = campaign.dice
        try:
            for _ in range(KILLS):
                if stream.returncode == 0:
                    break
                assert server.returncode is None, server.last_words()
                campaign.kill_one_of(
                    {
                        "driver": lambda: restarted(stream),
                        "executor": lambda: cluster.kill_an_executor(dice),
                        "python worker": lambda: cluster.kill_a_worker(dice),
                        "server": lambda: restarted(server),
                    }
                )
            campaign.wait_for(lambda: stream.returncode == 0)
        finally:
            stream.kill()
            server.kill()
    with penstock.connect(data) as ps:
        copied = Counter(
            int(m.value or b"-1")
            for partition in range(2)
            for m in ps.peek("copy", partition=partition, limit=10_000_000)
        )
    assert copied == Counter(range(messages)), f"seed {seed}"
    print(
        f"{messages:,} messages copied, each once; {campaign.killed.total()} kills: "
        f"{dict(campaign.killed)}; {time.monotonic() - began:,.0f} s"
    )


def test_the_demo_tells_no_lies(tmp_path: Path) -> None:
    """Here and not among the quick tests: it starts a Spark of its own."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "pipeline_demo.py"), "--keep", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("   yes  ") == 5
    assert (tmp_path / "rollup" / "rollup.html").exists()
