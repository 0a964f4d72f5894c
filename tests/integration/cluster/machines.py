"""Three machines in network namespaces, each with a NATS server, a Penstock node and a disk.

What they say to each other goes over a bridge, and can be cut. The tests stand at the bridge: they
reach every machine, whoever else it is cut off from. Needs root, `ip` and `mount`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.cluster.local_nats import LocalNats
from penstock.cluster.local_nodes import LocalCluster

COUNT = 3
DISK_BYTES = 1 << 30
_BALLAST = "ballast"


class Machines:
    """The namespaces and what lies between them; a disk of bounded size for each NATS server."""

    def __init__(self, root: Path) -> None:
        tag = f"{os.getpid() % 10_000:04d}"
        self.bridge = f"psbr{tag}"
        self.names = [f"psns{tag}-{number}" for number in range(COUNT)]
        self._links = [f"psv{tag}{number}" for number in range(COUNT)]
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.disks = [root / "nats" / f"n{number}" for number in range(COUNT)]

    def host(self, number: int) -> str:
        return f"{self._net}.{10 + number}"

    def inside(self, number: int, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.names[number], *command]

    def make(self) -> None:
        """Raises OSError or CalledProcessError where that is not allowed."""
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self._net}.1/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for number, name in enumerate(self.names):
            link = self._links[number]
            _ip("netns", "add", name)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", link, "master", self.bridge, "up")
            _ip("-n", name, "addr", "add", f"{self.host(number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            disk = self.disks[number]
            disk.mkdir(parents=True)
            size = f"size={DISK_BYTES}"
            _run("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(disk))

    def remove(self) -> None:
        for number, name in enumerate(self.names):
            for undo in (
                ("umount", "-l", str(self.disks[number])),
                ("ip", "link", "del", self._links[number]),
                ("ip", "netns", "del", name),
            ):
                with suppress(subprocess.CalledProcessError):
                    _run(*undo)
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self.bridge)

    def cut(self, one: int, other: int) -> None:
        """Nothing gets from one to the other, nor back."""
        _ip("-n", self.names[one], "route", "add", "blackhole", f"{self.host(other)}/32")

    def heal(self) -> None:
        for one, name in enumerate(self.names):
            for other in range(COUNT):
                if other != one:
                    with suppress(subprocess.CalledProcessError):
                        _ip("-n", name, "route", "del", "blackhole", f"{self.host(other)}/32")

    def fill(self, number: int) -> None:
        """Leave no room on the disk of a NATS server."""
        with suppress(OSError), (self.disks[number] / _BALLAST).open("wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def empty(self, number: int) -> None:
        (self.disks[number] / _BALLAST).unlink(missing_ok=True)


class _Nats(LocalNats):
    machines: Machines

    def host(self, number: int) -> str:
        return self.machines.host(number)

    def command(self, number: int, command: list[str]) -> list[str]:
        return self.machines.inside(number, command)


class _Nodes(LocalCluster):
    machines: Machines

    def host(self, number: int) -> str:
        return self.machines.host(number)

    def command(self, number: int, command: list[str]) -> list[str]:
        return self.machines.inside(number, command)


@contextmanager
def networked(root: Path) -> Iterator[tuple[LocalCluster, Machines | None]]:
    """A cluster on machines of its own or, where they cannot be made, on this one."""
    machines = Machines(root)
    try:
        try:
            machines.make()
        except (OSError, subprocess.CalledProcessError) as exc:
            machines.remove()
            print(f"no network namespaces here ({exc}): the network is not cut, no disk is filled")
            yield LocalCluster(root), None
            return
        nats = _Nats(root / "nats")
        nats.machines = machines
        nodes = _Nodes(root, settings={"allow_public_without_keys": "true"}, nats=nats)
        nodes.machines = machines
        yield nodes, machines
    finally:
        machines.remove()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=10)
