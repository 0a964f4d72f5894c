"""End to end: a broker that is killed, queries whose driver and workers are killed, one truth.

At the end the lake, or the topic that a stream copies to, holds every message of the log once, and
every message that was confirmed. `TORTURE_KILLS` and `TORTURE_MESSAGES` change the size; the seed
is printed.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import deltalake
import pytest

import penstock
from tests.spark.doomed_publisher import BATCH
from tests.spark.victims import ROOT, Victim

KILLS = int(os.environ.get("TORTURE_KILLS", "20"))
MESSAGES = int(os.environ.get("TORTURE_MESSAGES", "1000000"))


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_the_lake_holds_each_message_once_whoever_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    print(f"\nseed {seed}: {MESSAGES:,} messages, {KILLS} kills")
    data, lake, acked = (str(tmp_path / name) for name in ("data", "lake", "acked"))
    with penstock.connect(data) as ps:
        ps.create_topic("orders", partitions=3, segment_bytes=4 << 20)
    command = ["-m", "penstock", "pipeline", "run", "archive", "--from", data, "--to", lake]
    publisher = Victim("-m", "tests.spark.doomed_publisher", data, acked, str(MESSAGES))
    archive = Victim(*command, "--topic", "orders", "--follow")
    kills: Counter[str] = Counter()
    try:
        while kills.total() < KILLS:
            time.sleep(dice.uniform(1, 12))
            victim = dice.choice(["driver", "worker", "broker"])
            if victim == "broker":
                publisher.kill()
                publisher.start()
            elif victim == "driver":
                archive.kill()
                archive.start()
            elif not archive.kill_a_worker(dice):
                continue
            kills[victim] += 1
            if archive.returncode is not None:  # a worker's death may end the job: it is run again
                archive.kill()
                archive.start()
        while publisher.returncode is None:
            time.sleep(0.5)
        assert publisher.returncode == 0
    finally:
        publisher.kill()
        archive.kill()
    done = subprocess.run(
        [sys.executable, *command, "--topic", "orders"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    table = deltalake.DeltaTable(f"{lake}/orders").to_pyarrow_table(
        columns=["partition", "offset", "value"]
    )
    places = Counter(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    twice = [place for place, count in places.items() if count > 1]
    assert not twice, f"seed {seed}: {len(twice)} messages are in the lake twice"
    with penstock.connect(data) as ps:
        ends = {each.partition: each.end for each in ps.stats("orders").partitions}
    assert len(places) == sum(ends.values())
    confirmed = {
        start + row for start in map(int, Path(acked).read_text().split()) for row in range(BATCH)
    }
    assert confirmed <= set(map(int, table["value"].to_pylist()))
    assert len(confirmed) == MESSAGES
    print(f"{len(places):,} messages in the log and in the lake; killed: {dict(kills)}")


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_a_stream_copies_each_message_once_whoever_is_killed(tmp_path: Path) -> None:
    """From a server, and to it."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    messages = MESSAGES // 10 // BATCH * BATCH
    print(f"\nseed {seed}: {messages:,} messages, {KILLS} kills")
    data = str(tmp_path / "data")
    with penstock.connect(data) as ps:
        for topic in ("orders", "copy"):
            ps.create_topic(topic, partitions=2)
        for start in range(0, messages, BATCH):
            values = [f"{number}" for number in range(start, start + BATCH)]
            ps.publish_batch("orders", values, keys=values)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = Victim("-m", "penstock", "serve", "--data", data, "--port", port)
    words = ("-m", "tests.spark.doomed_stream", f"http://127.0.0.1:{port}", str(tmp_path))
    stream = Victim(*words)
    kills: Counter[str] = Counter()
    try:
        while stream.returncode != 0:
            time.sleep(dice.uniform(1, 12))
            assert server.returncode is None, "the server ended on its own"
            if kills.total() < KILLS:
                victim = dice.choice(["driver", "worker", "server"])
                if victim == "server":
                    server.kill()
                    server.start()
                elif victim == "driver":
                    stream.kill()
                    stream.start()
                elif not stream.kill_a_worker(dice):
                    continue
                kills[victim] += 1
            if stream.returncode not in (None, 0):
                stream.kill()
                stream.start()
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
    print(f"{messages:,} messages copied, each once; killed: {dict(kills)}")


@pytest.mark.torture
@pytest.mark.timeout(0)
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
