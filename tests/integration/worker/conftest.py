"""Where apps are tried: on a data folder and on a server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import penstock

_numbers = count()
EVENT_S_MAX = 30


class Place(NamedTuple):
    """A folder or a server, and a namespace for one test."""

    target: str
    namespace: str

    def connect(self) -> Any:
        """While no app works on a folder."""
        return penstock.connect(self.target, namespace=self.namespace)

    def app(self, **options: Any) -> penstock.App:
        return penstock.App(self.target, namespace=self.namespace, **options)


class Server:
    """A server process, which can be killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = self._start(0)

    def _start(self, port: int) -> str:
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(self._folder)]
        self.process = subprocess.Popen(
            [*command, "--port", str(port), "--log-level", "info"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK")},
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            message: str = json.loads(line)["message"]
            if message.startswith("listening on "):
                return message.removeprefix("listening on ")
        raise AssertionError("the server did not start")

    def kill_and_restart(self) -> None:
        self.stop(signal.SIGKILL)
        assert self._start(int(self.url.rpartition(":")[2])) == self.url

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=EVENT_S_MAX)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("served"))
    yield server
    server.stop()


@pytest.fixture(params=["folder", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return Place(str(tmp_path / "data"), "default")
    server: Server = request.getfixturevalue("shared_server")
    return Place(server.url, f"test-{next(_numbers)}")


class Working:
    """An app that runs on an event loop in a thread of its own."""

    def __init__(self, app: penstock.App, **options: Any) -> None:
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

        def run() -> None:
            try:
                self._loop.run_until_complete(app.run_async(stop=self._stop, **options))
            except BaseException as exc:  # noqa: BLE001 - raised where the test waits for the end
                self._error = exc
            finally:
                # SystemExit ends a loop at once; what was closed needs another turn.
                self._loop.run_until_complete(asyncio.sleep(0))
                self._loop.close()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def tell_to_stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    def turn(self, times: int) -> None:
        """Let the event loop go round so often."""

        async def turns() -> None:
            for _ in range(times):
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(turns(), self._loop).result(EVENT_S_MAX)

    def end(self) -> None:
        """Wait until it is over; raises what it died of."""
        self._thread.join(EVENT_S_MAX)
        assert not self._thread.is_alive(), "the app does not end"
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self.tell_to_stop()
        self.end()

    def __enter__(self) -> Working:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._thread.is_alive():
            self.stop()


def until(true: Callable[[], bool]) -> None:
    """Wait for something that other threads are about to do."""
    deadline = time.monotonic() + EVENT_S_MAX
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)
