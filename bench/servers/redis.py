"""Redis Streams: XADD, XREADGROUP, XACK; batches in a pipeline."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack

from bench.servers.base import Peer, Publisher

try:
    import redis
    import redis.asyncio
except ImportError:
    redis = None

_GROUP = "bench"
_SERVER = shutil.which("redis-server")


class Redis(Peer):
    name = "Redis Streams"
    settings = "append-only file, appendfsync everysec; batches in a pipeline, a consumer group"
    missing = (
        ""
        if redis and _SERVER
        else "redis-server is not installed (Debian: redis-server), or redis-py"
    )

    def command(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [_SERVER or "redis-server", *words]

    def connect(self) -> None:
        self._client = redis.Redis(port=self.port)
        self._client.ping()

    def create(self, queue: str) -> None:
        self._client.xgroup_create(queue, _GROUP, id="0", mkstream=True)

    def publish(self, queue: str, value: bytes) -> None:
        self._client.xadd(queue, {"value": value})

    def publish_batch(self, queue: str, values: Sequence[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(queue, {"value": value})
        pipeline.execute()

    def take(self, queue: str, count: int) -> int:
        ((_, entries),) = self._client.xreadgroup(_GROUP, "one", {queue: ">"}, count=count)
        self._client.xack(queue, _GROUP, *[entry for entry, _ in entries])
        return sum(len(fields[b"value"]) for _, fields in entries)

    async def publisher(self, stack: AsyncExitStack) -> Publisher | None:
        client = redis.asyncio.Redis(port=self.port)
        stack.push_async_callback(client.aclose)
        await client.ping()
        return lambda queue, value: client.xadd(queue, {"value": value})

    def disconnect(self) -> None:
        self._client.close()
