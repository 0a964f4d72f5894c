"""Penstock's own server, through penstock.connect."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

import penstock.aio
from bench.servers.base import Peer, Publisher
from penstock.client.received import ReceivedBatch

GROUP = "bench"


class Penstock(Peer):
    name = "Penstock"
    settings = "penstock serve with its defaults: fsync every second"

    def command(self) -> list[str]:
        data, port = str(self.folder / "data"), str(self.port)
        return [sys.executable, "-m", "penstock", "serve", "--data", data, "--port", port]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> None:
        self._taken: dict[str, ReceivedBatch] = {}
        self._client = penstock.connect(self.url)
        self._client.topics()

    def create(self, queue: str) -> None:
        self._client.create_topic(queue)

    def publish(self, queue: str, value: bytes) -> None:
        self._client.publish(queue, value)

    def publish_batch(self, queue: str, values: Sequence[bytes]) -> None:
        self._client.publish_batch(queue, values)

    def take(self, queue: str, count: int) -> int:
        done = self._taken.pop(queue, None)
        self._taken[queue] = received = self._client.receive_batch(queue, GROUP, count, ack=done)
        return _bytes(received)

    def finish(self, queue: str) -> None:
        done = self._taken.pop(queue, None)
        if done is not None:
            done.ack()

    def take_and_ack(self, queue: str, count: int) -> int:
        """The same with a request each."""
        received = self._client.receive_batch(queue, GROUP, count)
        total = _bytes(received)
        received.ack()
        return total

    async def publisher(self, stack: AsyncExitStack) -> Publisher | None:
        client = await stack.enter_async_context(penstock.aio.connect(self.url))
        return client.publish

    def disconnect(self) -> None:
        self._client.close()


_OWNER = """
import signal, sys, penstock
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with penstock.connect(sys.argv[1]):
    signal.sigwait({signal.SIGTERM})
"""


class SharedFolder(Penstock):
    """Another process that has the folder, and no server."""

    name = "Penstock, shared folder"
    settings = "penstock.connect to a folder that another process owns: fsync every second"

    def command(self) -> list[str]:
        return [sys.executable, "-c", _OWNER, str(self.folder / "data")]

    @property
    def url(self) -> str:
        return str(self.folder / "data")

    def connect(self) -> None:
        if not (self.folder / "data" / "SOCKET").exists():
            raise ConnectionError("it is not there yet")
        super().connect()


def _bytes(received: ReceivedBatch) -> int:
    return sum(len(value) for batch in received.batches for value in batch.values.to_pylist())
