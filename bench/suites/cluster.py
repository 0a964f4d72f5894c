"""A cluster on NATS JetStream, R3 with `sync_interval: always`, beside JetStream itself."""

from __future__ import annotations

import asyncio
import statistics
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec

import penstock
from bench.cpu_time import used_s
from bench.figures import at_least, at_most
from bench.harness import Bench
from penstock.broker.broker import Broker
from penstock.cluster.jetstream import StreamLimits
from penstock.cluster.local_nats import LocalNats
from penstock.cluster.local_nodes import LocalCluster
from penstock.cluster.nats_connection import EXPECTED_LAST, NatsOptions
from penstock.cluster.node import ClusterNode, NodeConfig
from penstock.cluster.placement import shard_of
from penstock.cluster.records import HEADER_BYTES
from penstock.log.local_engine import LocalEngine
from penstock.model.names import TopicName
from penstock.record.batch import Batch

ORDERS = TopicName("default", "orders")
_ROWS = 1055
_WINDOW = 16
_THREADS = 8
_RAW = "bench"


def run(bench: Bench) -> None:
    rounds = 2 if bench.quick else 5
    with bench.folder() as folder, ExitStack() as closing:
        bench.progress.show("starting NATS servers and a node")
        nats = LocalNats(folder / "nats")
        closing.callback(nats.stop)
        nats.start_all()
        node = _node(nats, folder)
        closing.callback(node.close)
        _appends(bench, node, rounds, 60 if bench.quick else 300)
        _queue(bench, node, folder, rounds, 40 if bench.quick else 200)
    with bench.folder() as folder:
        _processes(bench, folder, 3 if bench.quick else 20)


def _node(nats: LocalNats, folder: Path) -> ClusterNode:
    options = NatsOptions(tuple(nats.urls.split(",")))
    config = NodeConfig(
        data=str(folder / "cache"),
        node="bench",
        url="http://127.0.0.1:1",
        nats=options,
        limits=StreamLimits(3, 1 << 30),
        nats_syncs=True,
    )
    node = ClusterNode(config)
    node.connect()
    node.start()
    while shard_of("default") not in node.shards:
        time.sleep(0.1)
    node.nats.api(
        f"STREAM.CREATE.{_RAW}",
        {"name": _RAW, "subjects": [f"{_RAW}.>"], "num_replicas": 3, "storage": "file"},
    )
    return node


def _appends(bench: Bench, node: ClusterNode, rounds: int, frames: int) -> None:
    shard = node.shards[shard_of("default")]
    shard.broker.create_topic(ORDERS, {})
    batch = Batch.build([bytes(100)] * _ROWS)
    before = shard.writer.committed_bytes
    _our_appends(shard.broker, batch, 1, shard.committed)
    record = bytes(shard.writer.committed_bytes - before + HEADER_BYTES)  # for both the same bytes
    raw, ours, raw_ms, our_ms = [], [], [], []
    for number in range(rounds):
        bench.progress.show(f"appending, round {number + 1} of {rounds}")
        raw.append(node.nats.call(_raw_appends(node, frames, record, _WINDOW), 120))
        ours.append(_our_appends(shard.broker, batch, frames, shard.committed))
        one = [node.nats.call(_raw_appends(node, 1, bytes(300), 1), 30) for _ in range(frames)]
        raw_ms.append(1000 * statistics.median(one))
        single = Batch.build([bytes(100)])
        mine = [_our_appends(shard.broker, single, 1, shard.committed) for _ in range(frames)]
        our_ms.append(1000 * statistics.median(mine))
    megabytes = frames * len(record) / 1e6
    bench.figure(
        "appends of 110 KB / raw JetStream",
        statistics.median(a / b for a, b in zip(raw, ours, strict=True)),
        target=at_least(0.8),
        detail=f"{megabytes / statistics.median(ours):.0f} / "
        f"{megabytes / statistics.median(raw):.0f} MB/s, {_WINDOW} under way",
    )
    bench.figure(
        "single publish, p50 / raw append",
        min(our_ms) / min(raw_ms),
        target=at_most(1.5),
        detail=f"{min(our_ms):.2f} / {min(raw_ms):.2f} ms",
    )


async def _raw_appends(node: ClusterNode, count: int, data: bytes, window: int) -> float:
    """Pipelined, each with the number that it expects; how long they took."""
    client = node.nats.client
    info = await node.nats.api_async(f"STREAM.INFO.{_RAW}")
    last = int(info["state"]["last_seq"])
    room, left = asyncio.Semaphore(window), count
    done = asyncio.Event()
    inbox = client.new_inbox()

    async def acked(message: object) -> None:
        nonlocal left
        assert "seq" in msgspec.json.decode(message.data)  # type: ignore[attr-defined]
        left -= 1
        room.release()
        if not left:
            done.set()

    subscription = await client.subscribe(inbox, cb=acked)
    began = time.perf_counter()
    for number in range(count):
        await room.acquire()
        headers = {EXPECTED_LAST: str(last + number)}
        await client.publish(f"{_RAW}.1", data, reply=inbox, headers=headers)
    await done.wait()
    took_s = time.perf_counter() - began
    await subscription.unsubscribe()
    return took_s


def _our_appends(broker: Broker, batch: Batch, count: int, committed: object) -> float:
    began = time.perf_counter()
    waiting: list[Future[None]] = []
    for _ in range(count):
        broker.publish(ORDERS, batch)
        waiting.append(committed())  # type: ignore[operator]
        if len(waiting) >= _WINDOW:
            waiting.pop(0).result(30)
    for future in waiting:
        future.result(30)
    return time.perf_counter() - began


def _queue(bench: Bench, node: ClusterNode, folder: Path, rounds: int, calls: int) -> None:
    """Receive 100 and ack them, confirmed, by eight threads."""
    shard = node.shards[shard_of("default")]
    local = Broker(LocalEngine(folder / "local"))
    local.create_topic(ORDERS, {"fsync": "always"})
    batch = Batch.build([bytes(100)] * 100)
    try:
        for _ in range(rounds * calls):
            shard.broker.publish(ORDERS, batch)
            local.publish(ORDERS, batch)[-1].durable.result(30)
        shard.committed().result(60)
        ours, theirs = [], []
        for number in range(rounds):
            bench.progress.show(f"receiving, round {number + 1} of {rounds}")
            ours.append(_receive(shard.broker, calls, shard))
            theirs.append(_receive(local, calls, None))
        bench.figure(
            "receive + ack of 100 / a local broker with `always`",
            min(theirs) / min(ours),
            target=at_least(0.5),
            detail=f"{calls / min(ours):,.0f} / {calls / min(theirs):,.0f} calls/s",
        )
    finally:
        local.close()


def _receive(broker: Broker, calls: int, shard: object) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(_THREADS) as threads:
        share = calls // _THREADS
        working = [threads.submit(_work, broker, share, shard) for _ in range(_THREADS)]
        for each in working:
            each.result()
    return time.perf_counter() - began


def _work(broker: Broker, calls: int, shard: object) -> None:
    for _ in range(calls):
        for each in broker.receive(ORDERS, "g", 100):
            if shard is not None:
                shard.committed().result(30)  # type: ignore[attr-defined]
            settled = broker.ack(ORDERS, each.partition, "g", each.nonce, None)
            settled.durable.result(30)
            if shard is not None:
                shard.committed().result(30)  # type: ignore[attr-defined]


def _processes(bench: Bench, folder: Path, kills: int) -> None:
    cluster = LocalCluster(folder)
    try:
        bench.progress.show("starting a cluster")
        cluster.start_all()
        with penstock.connect(cluster.urls[0]) as client:
            for number in range(500):
                client.create_topic(f"idle-{number}")
        time.sleep(15)
        cpu = [used_s(process.pid) for process in cluster.processes if process is not None]
        time.sleep(5)
        after = [used_s(process.pid) for process in cluster.processes if process is not None]
        busiest = max(b - a for a, b in zip(cpu, after, strict=True)) / 5
        bench.figure("idle, 500 topics, of a core", 100 * busiest, unit="%", target=at_most(10))
        drains = sorted(_drain_owner(cluster) for _ in range(kills))
        bench.figure(
            "owner drained to the next confirm, p95", drains[int(0.95 * (len(drains) - 1) + 0.5)],
            unit="s", target=at_most(1), detail=f"{len(drains)} drains, one client",
        )  # fmt: skip
        stalls = []
        for number in range(kills):
            bench.progress.show(f"killing the owner, {number + 1} of {kills}")
            stalls.append(_kill_owner(cluster))
        stalls.sort()
        worst = stalls[min(len(stalls) - 1, int(0.95 * len(stalls)))]
        detail = f"{len(stalls)} kills, median {statistics.median(stalls):.1f} s"
        bench.figure(
            "owner killed to the next confirm, p95", worst, unit="s", target=at_most(8),
            detail=detail,
        )  # fmt: skip
    finally:
        cluster.stop()


def _drain_owner(cluster: LocalCluster) -> float:
    """The longest that a client waits for a confirm while the owner hands over."""
    owner = _owner(cluster)
    with penstock.connect(cluster.urls[(owner + 1) % 3], retry_for="60s") as client:
        client.publish("idle-0", b"before")
        _post(cluster, "drain", {"node": f"p{owner}", "on": True})
        longest_s, handed_over_at = 0.0, None
        while handed_over_at is None or time.monotonic() - handed_over_at < 1:
            began = time.monotonic()
            client.publish("idle-0", b"meanwhile")
            longest_s = max(longest_s, time.monotonic() - began)
            if handed_over_at is None and _owner(cluster) != owner:
                handed_over_at = time.monotonic()
    _post(cluster, "drain", {"node": f"p{owner}", "on": False})
    cluster.wait_ready()
    return longest_s


def _post(cluster: LocalCluster, what: str, body: dict[str, object]) -> None:
    request = Request(
        f"{cluster.urls[0]}/v1/cluster/{what}",
        msgspec.json.encode(body),
        {"content-type": "application/json"},
    )
    urlopen(request, timeout=30).close()


def _owner(cluster: LocalCluster) -> int:
    with urlopen(f"{cluster.urls[0]}/v1/cluster/routes", timeout=10) as answer:
        owners = msgspec.json.decode(answer.read())["owners"]
    return int(owners.get(str(shard_of("default")), "p-1")[1:])


def _kill_owner(cluster: LocalCluster) -> float:
    owner = _owner(cluster)
    with penstock.connect(cluster.urls[(owner + 1) % 3], retry_for="60s") as client:
        client.publish("idle-0", b"before")
        cluster.signal(owner)
        began = time.monotonic()
        client.publish("idle-0", b"after")
        took_s = time.monotonic() - began
    cluster.start(owner)
    cluster.wait_ready()
    return took_s
