"""Messages that a server pushes: over WebSockets, and as webhooks."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import aiohttp
from aiohttp import web
from websockets.asyncio.client import ClientConnection, connect

import penstock
from bench import messages
from bench.cpu_time import process_at
from bench.figures import at_least, at_most
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.served import served
from penstock.client.client import Client
from penstock.wire.columns import decode_delivered
from penstock.wire.push import ARROW_SUBPROTOCOL, decode_frame

_BATCH = 100
_BATCHES = 200
_IDLE = 1000
_POSTED = 2000
_CONCURRENCY = 8

_queues = count()


def run(bench: Bench) -> None:
    values = messages.values(_BATCH * _BATCHES)
    with bench.folder() as folder:
        loopback = {"PENSTOCK_WEBHOOK_NETWORKS": "127.0.0.0/8", "PENSTOCK_WEBHOOK_HTTP": "true"}
        with served(str(folder / "data"), **loopback) as url, penstock.connect(url) as ps:
            _sockets(bench, ps, url, values)
            _webhooks(bench, ps)
    with bench.folder() as folder, served(str(folder / "data")) as url:
        bench.progress.show(f"{_IDLE} idle WebSockets")
        grown = asyncio.run(_idle_sockets(url))
        bench.figure(
            f"{_IDLE:,} idle WebSockets",
            grown / 1e6,
            unit="MB",
            target=at_most(60),
            detail="by which the memory of the server's process grows; each waits for messages",
        )
    bench.note(
        f"A server on loopback, messages of 100 B. {_BATCHES} frames or answers of {_BATCH}, each "
        f"acked; {_POSTED:,} webhooks of a message each, {_CONCURRENCY} at a time."
    )


def _sockets(bench: Bench, ps: Client, url: str, values: list[bytes]) -> None:
    race = bench.race(
        "push in batches",
        [
            Contender("WebSocket", lambda _: asyncio.run(_pushed(ps, url, _filled(ps, values)))),
            Contender("HTTP", lambda _: _received(ps, _filled(ps, values))),
        ],
        rounds=2 * bench.rounds - 1,  # short runs, close ratios
    )
    bench.compare(
        race, "WebSocket", "HTTP", at_least(0.5), "messages", title="push + ack 100: HTTP receive"
    )


def _filled(ps: Client, values: list[bytes]) -> str:
    queue = f"q{next(_queues)}"
    ps.create_topic(queue)
    ps.publish_batch(queue, values)
    return queue


def _received(ps: Client, queue: str) -> Sample:
    with stopwatch(_BATCH * _BATCHES) as sample:
        for _ in range(_BATCHES):
            ps.receive_batch(queue, "g", _BATCH).ack()
    return sample


async def _pushed(ps: Client, url: str, queue: str) -> Sample:
    rows = _BATCH * _BATCHES
    async with _connect(url, ARROW_SUBPROTOCOL) as socket:
        await socket.recv()  # hello
        with stopwatch(rows) as sample:
            await _say(
                socket,
                type="subscribe",
                id="s",
                topic=queue,
                group="g",
                credit=10 * _BATCH,
                max_batch=_BATCH,
            )
            while rows:
                frame = await socket.recv()
                if isinstance(frame, str):
                    continue
                _, body = decode_frame(frame)
                for lease in decode_delivered(body):
                    rows -= lease.count
                    leases = [{"partition": lease.partition, "lease": lease.nonce}]
                    await _say(socket, type="ack", id="s", ref=rows, leases=leases)
                    await _say(socket, type="credit", id="s", add=lease.count)
            while True:  # the last ack is answered when it is durable
                answer = await socket.recv()
                if isinstance(answer, str) and json.loads(answer).get("ref") == 0:
                    break
    return sample


def _connect(url: str, subprotocol: str) -> connect:
    address = url.replace("http", "ws", 1) + "/v1/ws"
    return connect(address, subprotocols=[subprotocol], max_size=None, compression=None)  # type: ignore[list-item]


async def _say(socket: ClientConnection, **said: object) -> None:
    await socket.send(json.dumps(said))


async def _idle_sockets(url: str) -> float:
    """Bytes by which the server grows for so many connections that wait for messages."""
    with penstock.connect(url) as ps:
        ps.create_topic("idle")
    pid = process_at(url)
    async with AsyncExitStack() as stack:
        for number in range(_IDLE + 10):
            if number == 10:  # all is loaded by now
                before = _resident_bytes(pid)
            socket = await stack.enter_async_context(_connect(url, ARROW_SUBPROTOCOL))
            await socket.recv()
            await _say(socket, type="subscribe", ref=1, id="s", topic="idle", group="g", credit=100)
            await socket.recv()
        await asyncio.sleep(1)
        return _resident_bytes(pid) - before


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def _webhooks(bench: Bench, ps: Client) -> None:
    race = bench.race(
        "webhooks",
        [
            Contender("webhook", lambda _: asyncio.run(_posted_by_webhook(ps))),
            Contender("aiohttp loop", lambda _: asyncio.run(_posted_by_loop())),
        ],
    )
    bench.compare(race, "webhook", "aiohttp loop", at_least(0.4), "requests")


class _Receiver:
    """Counts what is posted to it, and says when so many requests have come."""

    def __init__(self) -> None:
        self.left = _POSTED
        self.done = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        await request.read()
        self.left -= 1
        if not self.left:
            self.done.set()
        return web.Response(status=204)

    async def start(self, stack: AsyncExitStack) -> str:
        app = web.Application()
        app.router.add_post("/hook", self.take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/hook"


async def _posted_by_webhook(ps: Client) -> Sample:
    queue = f"q{next(_queues)}"
    ps.create_topic(queue)
    ps.publish_batch(queue, messages.values(_POSTED))
    receiver = _Receiver()
    async with AsyncExitStack() as stack:
        url = await receiver.start(stack)
        with stopwatch(_POSTED) as sample:
            ps.create_webhook(queue, url, concurrency=_CONCURRENCY)
            await receiver.done.wait()
        ps.delete_webhook(queue)
    return sample


async def _posted_by_loop() -> Sample:
    receiver, bodies = _Receiver(), iter(messages.values(_POSTED))
    async with AsyncExitStack() as stack:
        url = await receiver.start(stack)
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def post() -> None:
            for body in bodies:
                async with session.post(url, data=body) as answer:
                    await answer.read()

        with stopwatch(_POSTED) as sample:
            await asyncio.gather(*[post() for _ in range(_CONCURRENCY)])
    return sample
