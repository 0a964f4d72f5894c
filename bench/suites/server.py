"""The server and its client, over loopback, beside other message servers and theirs."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from itertools import count
from pathlib import Path

import numpy as np

import penstock.aio
from bench import messages
from bench.figures import Target, at_least, at_most
from bench.harness import Bench, Contender, Race, Sample, stopwatch
from bench.servers import PEERS
from bench.servers.base import Peer, Publisher
from bench.servers.penstock import GROUP, Penstock
from bench.servers.redis import Redis

_BATCH = 100
_BATCHES = 200
_SINGLES = 1000
_CLIENTS = 32
_CLIENT_SECONDS = 5
_POLLS = 5000
_OTHERS = at_least(10)
_TWICE = "Penstock, a request each"

_queues = count()


def run(bench: Bench) -> None:
    with bench.folder() as folder, ExitStack() as running:
        servers = [running.enter_context(_started(bench, kind, folder)) for kind in PEERS]
        values = messages.values(_BATCH * _BATCHES)
        race = bench.race(
            "publish in batches",
            _contenders(servers, lambda peer: _publish(peer, values)),
            rounds=2 * bench.rounds - 1,  # short runs, close ratios
        )
        _compare(bench, race, "publish 100", at_least(4))
        _receive_and_ack(bench, servers, values)
        singles = values[:_SINGLES]
        race = _race(
            bench, "single messages", servers, lambda peer: _publish_singles(peer, singles)
        )
        for name in race.contenders:
            if name != Penstock.name:
                target = at_least(0.5) if name == Redis.name else None
                _figure(bench, race, "publish 1", name, target)
        both = [peer for peer in servers if isinstance(peer, (Penstock, Redis))]
        race = _race(
            bench, f"{_CLIENTS} clients", both, lambda peer: _publish_from_many(peer, values)
        )
        _figure(bench, race, f"publish 1 from {_CLIENTS} clients", Redis.name, at_least(0.5))
    _under_load(bench)
    _idle_polls(bench)
    bench.note(
        f"Servers on loopback, one Python client each, messages of 100 B; {_BATCHES} batches of "
        f"{_BATCH}, or {_SINGLES} single messages, a round. All sync to disk about once a second."
    )


@contextmanager
def _started(bench: Bench, kind: type[Peer], folder: Path) -> Iterator[Peer]:
    peer = kind(folder / kind.name.replace(" ", "-").lower())
    if not peer.missing:
        bench.progress.show(f"starting {peer.name}")
        peer.start()
    try:
        yield peer
    finally:
        if peer.process is not None:
            peer.stop()


def _receive_and_ack(bench: Bench, servers: list[Peer], values: list[bytes]) -> None:
    """An ack goes along with the next receive, or has a request of its own."""
    contenders = _contenders(servers, lambda peer: _receive(peer, values, peer.take))
    (ours,) = [peer for peer in servers if isinstance(peer, Penstock)]
    contenders.append(
        Contender(_TWICE, lambda _: _receive(ours, values, ours.take_and_ack), ours.settings)
    )
    race = bench.race("receive and ack", contenders)
    _compare(bench, race, "receive + ack 100", at_least(3))
    for peer in servers:
        if peer is not ours:
            title = f"receive + ack 100, a request each: {peer.name}"
            bench.compare(race, _TWICE, peer.name, None, "messages", title=title)


def _race(bench: Bench, title: str, servers: list[Peer], work: Callable[[Peer], Sample]) -> Race:
    return bench.race(title, _contenders(servers, work))


def _contenders(servers: list[Peer], work: Callable[[Peer], Sample]) -> list[Contender]:
    return [
        Contender(peer.name, lambda _, peer=peer: work(peer), peer.settings, peer.missing)
        for peer in servers
    ]


def _compare(bench: Bench, race: Race, what: str, beside_redis: Target) -> None:
    for name in race.contenders:
        if name not in (Penstock.name, _TWICE):
            _figure(bench, race, what, name, beside_redis if name == Redis.name else _OTHERS)


def _figure(bench: Bench, race: Race, what: str, peer: str, target: Target | None) -> None:
    bench.compare(race, Penstock.name, peer, target, "messages", title=f"{what}: {peer}")


def _new_queue(peer: Peer) -> str:
    queue = f"q{next(_queues)}"
    peer.create(queue)
    return queue


def _publish(peer: Peer, values: list[bytes]) -> Sample:
    queue = _new_queue(peer)
    values = values[: max(_BATCH, int(len(values) * peer.share))]
    batches = messages.in_batches(values, _BATCH)
    with stopwatch(len(values)) as sample:
        for batch in batches:
            peer.publish_batch(queue, batch)
    return sample


def _receive(peer: Peer, values: list[bytes], take: Callable[[str, int], int]) -> Sample:
    queue = _new_queue(peer)
    values = values[: max(_BATCH, int(len(values) * peer.share))]
    for batch in messages.in_batches(values, _BATCH):
        peer.publish_batch(queue, batch)
    total = 0
    with stopwatch(len(values)) as sample:
        for _ in range(len(values) // _BATCH):
            total += take(queue, _BATCH)
        peer.finish(queue)
    if total != sum(map(len, values)):
        raise RuntimeError(f"{peer.name} gave back {total:,} bytes, not what it was given")
    return sample


def _publish_singles(peer: Peer, values: list[bytes]) -> Sample:
    queue = _new_queue(peer)
    values = values[: max(10, int(len(values) * peer.share))]
    with stopwatch(len(values)) as sample:
        for value in values:
            peer.publish(queue, value)
    return sample


def _publish_from_many(peer: Peer, values: list[bytes]) -> Sample:
    """Single messages from many clients at once, each a connection; all in this process."""
    queue = _new_queue(peer)

    async def publish_share(publish: Publisher, share: list[bytes]) -> None:
        for value in share:
            await publish(queue, value)

    async def publish_all() -> Sample:
        async with AsyncExitStack() as stack:
            clients = [await peer.publisher(stack) for _ in range(_CLIENTS)]
            with stopwatch(len(values)) as sample:
                await asyncio.gather(
                    *[
                        publish_share(publish, values[number::_CLIENTS])
                        for number, publish in enumerate(clients)
                        if publish is not None
                    ]
                )
            return sample

    return asyncio.run(publish_all())


def _under_load(bench: Bench) -> None:
    """How long a single publish takes while many clients publish all the time."""
    bench.progress.show(f"{_CLIENTS} clients")
    with bench.folder() as folder:
        server = Penstock(folder)
        server.start()
        try:
            server.create("load")
            took_ms = asyncio.run(_many_clients(server.url)) * 1e3
        finally:
            server.stop()
    median, p99 = np.percentile(took_ms, [50, 99]).tolist()
    bench.figure(
        f"publish 1, {_CLIENTS} clients: p99",
        p99,
        unit="ms",
        detail=f"median {median:.2f} ms, {len(took_ms) / _CLIENT_SECONDS:,.0f} messages/s; each "
        "client a connection of its own, all in one process beside the server",
    )


async def _many_clients(url: str) -> np.ndarray:
    took: list[float] = []
    value = messages.values(1)[0]
    stop_at = time.perf_counter() + _CLIENT_SECONDS

    async def publish() -> None:
        async with await penstock.aio.connect(url) as ps:
            while (began := time.perf_counter()) < stop_at:
                await ps.publish("load", value)
                took.append(time.perf_counter() - began)

    await asyncio.gather(*[publish() for _ in range(_CLIENTS)])
    return np.array(took)


def _idle_polls(bench: Bench) -> None:
    """What a server needs for very many receives that wait, and whether it still answers."""
    bench.progress.show(f"{_POLLS:,} waiting receives")
    with bench.folder() as folder, ExitStack() as sockets:
        server = Penstock(folder)
        server.start()
        try:
            server.create("idle")
            body = b'{"max_messages": 1, "wait": "30s"}'
            request = (
                f"POST /v1/topics/idle/groups/{GROUP}/receive HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            ).encode() + body
            for _ in range(_POLLS):
                poll = sockets.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                poll.sendall(request)
            time.sleep(2)  # until all of them are waiting
            assert server.process is not None
            memory_mb = _resident_bytes(server.process.pid) / 1e6
            server.publish("idle", b"wake")
        finally:
            server.stop()
    bench.figure(
        f"memory with {_POLLS:,} waiting receives",
        memory_mb,
        unit="MB",
        target=at_most(300),
        detail="resident memory of the server process; a publish is answered meanwhile",
    )


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
