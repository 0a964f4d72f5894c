"""beanstalkd: put, reserve and delete, each a round trip, through greenstalk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from bench.servers.base import Peer

try:
    import greenstalk
except ImportError:
    greenstalk = None

_SERVER = shutil.which("beanstalkd")


class Beanstalkd(Peer):
    name = "beanstalkd"
    settings = "binlog with fsync every second; its protocol has no batches"
    missing = "" if greenstalk and _SERVER else "beanstalkd is not installed (Debian's package)"

    def command(self) -> list[str]:
        where = ["-l", "127.0.0.1", "-p", str(self.port)]
        return [_SERVER or "beanstalkd", *where, "-b", str(self.folder), "-f", "1000"]

    def connect(self) -> None:
        self._client = greenstalk.Client(("127.0.0.1", self.port), encoding=None)

    def create(self, queue: str) -> None:
        self._client.use(queue)
        self._client.watch(queue)

    def publish(self, queue: str, value: bytes) -> None:
        self._client.put(value)

    def publish_batch(self, queue: str, values: Sequence[bytes]) -> None:
        for value in values:
            self._client.put(value)

    def take(self, queue: str, count: int) -> int:
        total = 0
        for _ in range(count):
            job = self._client.reserve(timeout=10)
            total += len(job.body)
            self._client.delete(job)
        return total

    def disconnect(self) -> None:
        self._client.close()
