"""NATS JetStream: a file-backed stream and a durable pull consumer, through nats-py."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.servers.base import Peer

try:
    import nats
except ImportError:
    nats = None

T = TypeVar("T")

_BESIDE_PYTHON = Path(sys.executable).with_name("nats-server")
_SERVER = str(_BESIDE_PYTHON) if _BESIDE_PYTHON.exists() else shutil.which("nats-server")


class Nats(Peer):
    name = "NATS JetStream"
    settings = (
        "file storage, sync_interval 1s; a batch is published before its first ack is awaited"
    )
    missing = "" if nats and _SERVER else "nats-server is not installed; make setup installs it"

    def command(self) -> list[str]:
        store = self.folder / "store"
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{store}", sync_interval: "1s" }}\n'
        )
        return [_SERVER or "nats-server", "-c", str(config)]

    def connect(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pulls: dict[str, Any] = {}
        self._connection = self._run(
            nats.connect(
                f"nats://127.0.0.1:{self.port}", allow_reconnect=False, error_cb=_say_nothing
            )
        )
        self._stream = self._connection.jetstream()
        self._run(self._stream.account_info())

    def create(self, queue: str) -> None:
        self._run(self._stream.add_stream(name=queue, subjects=[queue], storage="file"))
        self._pulls[queue] = self._run(self._stream.pull_subscribe(queue, "bench"))

    def publish(self, queue: str, value: bytes) -> None:
        self._run(self._stream.publish(queue, value))

    def publish_batch(self, queue: str, values: Sequence[bytes]) -> None:
        self._run(self._publish_all(queue, values))

    async def _publish_all(self, queue: str, values: Sequence[bytes]) -> None:
        await asyncio.gather(*[self._stream.publish(queue, value) for value in values])

    def take(self, queue: str, count: int) -> int:
        return self._run(self._take(queue, count))

    async def _take(self, queue: str, count: int) -> int:
        total, left = 0, count
        while left:
            found = await self._pulls[queue].fetch(left, timeout=10)
            for message in found:
                total += len(message.data)
                await message.ack()
            left -= len(found)
        await self._connection.flush()
        return total

    def disconnect(self) -> None:
        self._run(self._connection.close())
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


async def _say_nothing(_: Exception) -> None:
    """While the server starts there is nothing to be said."""
