"""NATS servers on this machine, for trying a cluster out and for tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from penstock.errors import MissingExtra, Unavailable

_CONFIG = """\
server_name: n{number}
listen: {host}:{port}
http: {host}:{monitor}
max_payload: 2MB
max_pending: 256MB
jetstream {{ store_dir: "{store}", sync_interval: always, max_file: {max_file}, max_mem: 64MB }}
{cluster}
"""
_CLUSTER = "cluster {{ name: penstock, listen: {host}:{route}, routes: [{routes}] }}"
_READY_S = 30


class LocalNats:
    """Some servers that replicate, each with a folder of its own below `root`."""

    def __init__(
        self, root: str | os.PathLike[str], count: int = 3, max_file: str = "20GB"
    ) -> None:
        self.root = Path(root).absolute()
        self.binary = find_nats_server()
        self.count = count
        self.max_file = max_file
        ports = free_ports(3 * count)
        self.ports, self.monitors = ports[:count], ports[count : 2 * count]
        self.routes = ports[2 * count :]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count

    @property
    def urls(self) -> str:
        return ",".join(f"nats://{self.host(n)}:{port}" for n, port in enumerate(self.ports))

    def start_all(self) -> None:
        for number in range(self.count):
            self.start(number)
        self.wait_ready()

    def start(self, number: int) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / f"n{number}.conf"
        path.write_text(self._config(number), encoding="utf-8")
        with open(self.root / f"n{number}.log", "ab") as log:
            # In a group of its own: Ctrl-C in a terminal is for who started it.
            self.processes[number] = subprocess.Popen(
                self.command(number, [self.binary, "-c", str(path)]),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def host(self, number: int) -> str:
        """Where a server listens."""
        return "127.0.0.1"

    def command(self, number: int, command: list[str]) -> list[str]:
        """What starts a server, for who puts it somewhere."""
        return command

    def store(self, number: int) -> Path:
        return self.root / f"n{number}"

    def signal(self, number: int, what: signal.Signals = signal.SIGKILL) -> None:
        process = self.processes[number]
        if process is not None and process.poll() is None:
            process.send_signal(what)
            if what in (signal.SIGKILL, signal.SIGTERM):
                process.wait()

    def wait_ready(self, timeout_s: float = _READY_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not all(self.is_ready(number) for number in range(self.count)):
            check_alive(self.processes, self.root, "n", "NATS server")
            if time.monotonic() > deadline:
                raise Unavailable(f"the NATS servers did not start; see {self.root}/n0.log")
            time.sleep(0.1)

    def is_ready(self, number: int) -> bool:
        try:
            url = f"http://{self.host(number)}:{self.monitors[number]}/healthz"
            with urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def stop(self) -> None:
        for process in self.processes:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            if process is not None:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _config(self, number: int) -> str:
        cluster = ""
        if self.count > 1:
            routes = ", ".join(
                f'"nats-route://{self.host(n)}:{port}"' for n, port in enumerate(self.routes)
            )
            cluster = _CLUSTER.format(
                host=self.host(number), route=self.routes[number], routes=routes
            )
        return _CONFIG.format(
            number=number,
            host=self.host(number),
            port=self.ports[number],
            monitor=self.monitors[number],
            store=self.store(number),
            max_file=self.max_file,
            cluster=cluster,
        )


def find_nats_server() -> str:
    """The server that came from PyPI, or one of the machine."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise MissingExtra("cluster", "nats-server")
    return found


def check_alive(
    processes: Sequence[subprocess.Popen[bytes] | None], root: Path, prefix: str, what: str
) -> None:
    """Raises Unavailable if one of them ended, with the last thing that it said."""
    for number, process in enumerate(processes):
        if process is not None and process.poll() is not None:
            log = root / f"{prefix}{number}.log"
            lines = log.read_text("utf-8", "replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
            raise Unavailable(f"{what} {prefix}{number} ended: {last.strip()} (see {log})")


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()
