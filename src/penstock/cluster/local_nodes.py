"""A whole cluster on this machine: NATS servers and nodes, for trying out and for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from penstock.cluster.local_nats import LocalNats, check_alive, free_ports
from penstock.errors import Unavailable

_READY_S = 60
_SHARD_BYTES = 256 << 20


class LocalCluster:
    """Processes, each with a folder below `root`. Nothing of it listens on a public address."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        nodes: int = 3,
        settings: Mapping[str, object] | None = None,
        first_port: int | None = None,
        nats: LocalNats | None = None,
        protocols: Sequence[str] = (),
    ) -> None:
        """`settings`: of the nodes, by the names that the configuration has. `protocols`: what they
        are to speak besides HTTP, as `grpc`."""
        self.root = Path(root).absolute()
        self.nats = nats or LocalNats(self.root / "nats")
        self.ports = free_ports(nodes)
        if first_port is not None:
            self.ports = list(range(first_port, first_port + nodes))
        self.settings = dict(settings or {})
        self.protocol_ports = {protocol: free_ports(nodes) for protocol in protocols}
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * nodes

    @property
    def urls(self) -> list[str]:
        return [f"http://{self.host(n)}:{port}" for n, port in enumerate(self.ports)]

    def host(self, number: int) -> str:
        """Where a node listens."""
        return "127.0.0.1"

    def address(self, number: int, protocol: str) -> str:
        """Where a node speaks another protocol."""
        return f"{self.host(number)}:{self.protocol_ports[protocol][number]}"

    def command(self, number: int, command: list[str]) -> list[str]:
        """What starts a node, for who puts it somewhere."""
        return command

    def start_all(self) -> None:
        self.nats.start_all()
        for number in range(len(self.ports)):
            self.start(number)
        self.wait_ready()

    def start(self, number: int) -> None:
        settings: dict[str, object] = {
            "data": self.folder(number),
            "host": self.host(number),
            "port": self.ports[number],
            "cluster": self.nats.urls,
            "cluster_monitors": "",
            "cluster_nats_syncs": "true",  # the configuration that it was given says so
            "cluster_shard_bytes": _SHARD_BYTES,
            "node_id": f"p{number}",
            "advertise": self.urls[number],
            "log_level": "warning",
            **{name: self.address(number, name) for name in self.protocol_ports},
            **self.settings,
        }
        environ = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        environ |= {f"PENSTOCK_{name.upper()}": str(value) for name, value in settings.items()}
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / f"p{number}.log", "ab") as log:
            self.processes[number] = subprocess.Popen(
                self.command(number, [sys.executable, "-m", "penstock", "serve"]),
                env=environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def folder(self, number: int) -> Path:
        return self.root / f"p{number}"

    def signal(self, number: int, what: signal.Signals = signal.SIGKILL) -> None:
        process = self.processes[number]
        if process is not None and process.poll() is None:
            process.send_signal(what)
            if what in (signal.SIGKILL, signal.SIGTERM):
                process.wait()

    def is_ready(self, number: int) -> bool:
        try:
            with urlopen(f"{self.urls[number]}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def wait_ready(self, timeout_s: float = _READY_S) -> None:
        """Until all nodes are, and all shards have owners."""
        deadline = time.monotonic() + timeout_s
        while not all(map(self.is_ready, range(len(self.ports)))):
            check_alive(self.processes, self.root, "p", "node")
            if time.monotonic() > deadline:
                raise Unavailable(f"the nodes did not start; see {self.root}/p0.log")
            time.sleep(0.1)

    def stop(self) -> None:
        for process in self.processes:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            if process is not None:
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.nats.stop()
