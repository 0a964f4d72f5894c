"""What a server has to be able to do to take part."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

Publisher = Callable[[str, bytes], Awaitable[object]]
"""Publishes one message to a queue, and waits until it is confirmed."""

_START_S_MAX = 60
_STOP_S_MAX = 20


class Peer(ABC):
    """A server with one client that is connected to it.

    Every queue has a name of its own, so that one server serves all rounds of a race. A publish
    returns when the server has confirmed it, by the durability that is named in `settings`.
    """

    name: str
    settings: str
    missing: str = ""
    share: float = 1.0
    """Of the work of a round: less for a server that would take minutes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """What starts the server in the foreground."""

    @abstractmethod
    def connect(self) -> None:
        """Connect the client; raises OSError, or an error of its own, while there is no server."""

    @abstractmethod
    def create(self, queue: str) -> None: ...

    @abstractmethod
    def publish(self, queue: str, value: bytes) -> None: ...

    @abstractmethod
    def publish_batch(self, queue: str, values: Sequence[bytes]) -> None: ...

    @abstractmethod
    def take(self, queue: str, count: int) -> int:
        """Receive so many messages, look at them and ack them; how many bytes they had.

        The acks may come along with the next call; `finish` is the last.
        """

    def finish(self, queue: str) -> None:  # noqa: B027 - most have nothing left to do
        """Everything that was taken is acked when this returns."""

    @abstractmethod
    def disconnect(self) -> None: ...

    async def publisher(self, stack: AsyncExitStack) -> Publisher | None:
        """A client for asyncio with a connection of its own, closed by the stack; None: no."""
        return None

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> None:
        log = (self.folder / "server.log").open("wb")
        self.process = subprocess.Popen(
            self.command(),
            cwd=self.folder,
            env=self.environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that all of it can be stopped
        )
        log.close()
        deadline = time.monotonic() + _START_S_MAX
        while True:
            try:
                return self.connect()
            except Exception as exc:  # each client has errors of its own
                if self.process.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / "server.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{self.name} does not answer: {exc}\n{said}") from exc
            time.sleep(0.05)

    def stop(self) -> None:
        self.disconnect()
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
