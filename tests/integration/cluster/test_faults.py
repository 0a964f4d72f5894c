"""Fault after fault while clients are at work, and in the end all has to be as they were told.

`PENSTOCK_FAULTS_SEED` repeats a campaign, `PENSTOCK_FAULTS_ONLY` names the faults of another one.
It prints each fault as it comes.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock.cluster.local_nats import find_nats_server
from penstock.cluster.local_nodes import LocalCluster
from penstock.cluster.placement import shard_of
from penstock.errors import MissingExtra
from tests.integration.cluster.checker import (
    TOPIC,
    Checker,
    Load,
    bills_of,
    drain,
    logs_of,
    make_topics,
)
from tests.integration.cluster.conftest import kept_running
from tests.integration.cluster.machines import Machines, networked
from tests.integration.cluster.test_cluster import flip, owner_of, post, until
from tests.simulation.torture import scaled

NODES = range(3)


class Campaign:
    """One fault at a time, each over before the next."""

    def __init__(
        self,
        cluster: LocalCluster,
        machines: Machines | None,
        checker: Checker,
        rng: random.Random,
    ) -> None:
        self.cluster = cluster
        self.checker = checker
        self.rng = rng
        self.counts: Counter[str] = Counter()
        self.stalls: list[float] = []
        self.faults = [
            self.kill_the_owner,
            self.kill_a_standby,
            self.pause_the_owner,
            self.wipe_a_node,
            self.kill_a_nats_server,
            self.pause_a_nats_server,
            self.wipe_a_nats_server,
            self.kill_all_nodes,
            self.kill_everything,
            self.turn_a_bit_of_a_cache,
            self.turn_a_bit_of_a_store,
        ]
        if machines is not None:
            self.machines = machines
            self.faults += [self.cut_off_the_owner, self.cut_off_one, self.cut_a_link]
            self.faults += [self.fill_a_disk]

    def one(self) -> None:
        fault = self.rng.choice(self.faults)
        self.counts[fault.__name__] += 1
        began = time.monotonic()
        fault()
        until(lambda: all(map(self.cluster.is_ready, NODES)), 120)
        resumed = time.monotonic()
        until(lambda: max(self.checker.confirmed.values(), default=0) > resumed, 60)
        self.stalls.append(time.monotonic() - began)
        time.sleep(1)

    def kill_the_owner(self) -> None:
        node = owner_of(self.cluster)
        self.cluster.signal(node)
        time.sleep(self.rng.random() * 8)
        self.cluster.start(node)

    def kill_a_standby(self) -> None:
        node = (owner_of(self.cluster) + self.rng.choice((1, 2))) % 3
        self.cluster.signal(node)
        time.sleep(self.rng.random() * 4)
        self.cluster.start(node)

    def pause_the_owner(self) -> None:
        """Over its lease, mostly; then it goes on as if nothing had been."""
        node = owner_of(self.cluster)
        self.cluster.signal(node, signal.SIGSTOP)
        time.sleep(self.rng.uniform(2, 9))
        self.cluster.signal(node, signal.SIGCONT)

    def wipe_a_node(self) -> None:
        node = self.rng.choice(NODES)
        self.cluster.signal(node)
        shutil.rmtree(self.cluster.folder(node), ignore_errors=True)
        self.cluster.start(node)

    def kill_a_nats_server(self) -> None:
        server = self.rng.choice(NODES)
        self.cluster.nats.signal(server)
        time.sleep(self.rng.random() * 5)
        self.cluster.nats.start(server)
        until(lambda: self.cluster.nats.is_ready(server), 60)

    def pause_a_nats_server(self) -> None:
        server = self.rng.choice(NODES)
        self.cluster.nats.signal(server, signal.SIGSTOP)
        time.sleep(self.rng.uniform(2, 8))
        self.cluster.nats.signal(server, signal.SIGCONT)
        until(lambda: self.cluster.nats.is_ready(server), 60)

    def wipe_a_nats_server(self) -> None:
        """It comes back under the same name, and gets all from the others."""
        server = self.rng.choice(NODES)
        self.cluster.nats.signal(server)
        shutil.rmtree(self.cluster.nats.store(server), ignore_errors=True)
        self.cluster.nats.start(server)
        until(lambda: self.cluster.nats.is_ready(server), 120)

    def kill_all_nodes(self) -> None:
        for node in NODES:
            self.cluster.signal(node)
        for node in NODES:
            self.cluster.start(node)

    def kill_everything(self) -> None:
        for number in NODES:
            self.cluster.signal(number)
            self.cluster.nats.signal(number)
        for number in NODES:
            self.cluster.nats.start(number)
        self.cluster.nats.wait_ready(60)
        for node in NODES:
            self.cluster.start(node)

    def turn_a_bit_of_a_cache(self) -> None:
        node, shard = owner_of(self.cluster), shard_of("default")
        files = self.cluster.folder(node) / "shards" / f"{shard:02d}" / "logs"
        self._turn_a_bit(files, "*/*.log")
        url = self.cluster.urls[node]
        with suppress(OSError):  # the shard may be at another node by now
            post(f"{url}/v1/cluster/verify", {"shard": shard})

    def turn_a_bit_of_a_store(self) -> None:
        """Of a server that was stopped in order: it does not look through its files then."""
        server = self.rng.choice(NODES)
        self.cluster.nats.signal(server, signal.SIGTERM)
        shard = shard_of("default")
        self._turn_a_bit(self.cluster.nats.store(server), f"**/*-{shard:02d}/msgs/*.blk")
        self.cluster.nats.start(server)
        until(lambda: self.cluster.nats.is_ready(server), 60)
        if self.rng.random() < 0.5:
            self.kill_all_nodes()
            until(lambda: all(map(self.cluster.is_ready, NODES)), 120)
        self._mend_the_store(server)

    def _mend_the_store(self, server: int) -> None:
        """As the log says: before another store is damaged as well."""
        self.cluster.nats.signal(server, signal.SIGTERM)
        shard = shard_of("default")
        for folder in self.cluster.nats.store(server).glob(f"**/streams/*-{shard:02d}"):
            shutil.rmtree(folder)
        self.cluster.nats.start(server)
        until(lambda: self.cluster.nats.is_ready(server), 120)

    def _turn_a_bit(self, folder: Path, files: str) -> None:
        found = [path for path in folder.glob(files) if path.stat().st_size > 200]
        if found:
            path = self.rng.choice(found)
            flip(path, self.rng.randrange(100, path.stat().st_size))

    def cut_off_the_owner(self) -> None:
        """From the other machines; not from its clients."""
        self._cut_off(owner_of(self.cluster))

    def cut_off_one(self) -> None:
        self._cut_off(self.rng.choice(NODES))

    def cut_a_link(self) -> None:
        """Both go on to reach the third."""
        one, other = self.rng.sample(NODES, 2)
        self.machines.cut(one, other)
        time.sleep(self.rng.uniform(2, 12))
        self.machines.heal()

    def _cut_off(self, machine: int) -> None:
        for other in NODES:
            if other != machine:
                self.machines.cut(machine, other)
        time.sleep(self.rng.uniform(2, 12))
        self.machines.heal()

    def fill_a_disk(self) -> None:
        """Of a NATS server, which may switch JetStream off; it is started again when there is
        room."""
        server = self.rng.choice(NODES)
        self.machines.fill(server)
        time.sleep(self.rng.uniform(2, 8))
        self.machines.empty(server)
        self.cluster.nats.signal(server, signal.SIGTERM)
        self.cluster.nats.start(server)
        until(lambda: self.cluster.nats.is_ready(server), 120)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_faults_lose_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_FAULTS_SEED", "0")) or random.randrange(1 << 32)
    print(f"\nPENSTOCK_FAULTS_SEED={seed}")
    try:
        find_nats_server()
    except MissingExtra as exc:
        pytest.skip(str(exc))
    with networked(tmp_path) as (machines, network):
        for cluster in kept_running(machines):
            campaign(cluster, network, random.Random(seed), scaled(200))


def campaign(
    cluster: LocalCluster, machines: Machines | None, rng: random.Random, faults: int
) -> None:
    checker = Checker()
    with penstock.connect(cluster.urls[0]) as client:
        make_topics(client)
    load = Load(cluster.urls, checker)
    load.start()
    under = Campaign(cluster, machines, checker, rng)
    if only := os.environ.get("PENSTOCK_FAULTS_ONLY"):
        under.faults = [getattr(under, name) for name in only.split(",")]
    try:
        for number in range(faults):
            under.one()
            print(f"{number + 1}: {len(checker.confirmed)} confirmed, {dict(under.counts)}")
            assert not checker.problems, checker.problems[:10]
    finally:
        load.stop()
    with penstock.connect(cluster.urls[owner_of(cluster)]) as client:
        drain(client, checker, 120)
        problems = checker.check(logs_of(client), bills_of(client))
        left = sum(group.depth for group in client.stats(TOPIC).groups)
    told = (
        f"{len(checker.confirmed)} confirmed, {len(checker.acked)} acked, "
        f"{len(checker.in_transactions)} transactions, {checker.commits} commits, {faults} faults"
    )
    print(f"{told}; {dict(under.counts)}; longest {max(under.stalls):.1f} s to the next confirm")
    assert not load.errors
    assert not problems, problems[:20]
    assert left == 0
