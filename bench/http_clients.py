"""What one publish costs through our own HTTP client and through urllib3, both over one connection.

python -m bench.http_clients
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import urllib3

import penstock
from penstock.client.client import Client
from penstock.errors import Unavailable

ROUNDS, CALLS = 3, 1500
VALUE = b"x" * 100
START_S_MAX = 20


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "penstock", "serve", "--data", folder, "--port", str(port)]
        quiet = subprocess.DEVNULL
        server = subprocess.Popen(command, stdout=quiet, stderr=quiet, env={**os.environ})
        try:
            compare(port)
        finally:
            server.terminate()
            server.wait()


def compare(port: int) -> None:
    ps = connected(f"http://127.0.0.1:{port}")
    ps.create_topic("orders")
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port)
    headers = {"content-type": "application/octet-stream"}

    def by_urllib3() -> None:
        path = "/v1/topics/orders/messages"
        answer = pool.urlopen("POST", path, body=VALUE, headers=headers, retries=False)
        assert answer.status == 201
        json.loads(answer.data)

    ways: dict[str, Callable[[], object]] = {
        "penstock": lambda: ps.publish("orders", VALUE),
        "urllib3": by_urllib3,
    }
    for _ in range(ROUNDS):
        for name, publish in ways.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(CALLS):
                publish()
            cpu_us = (time.process_time() - cpu) / CALLS * 1e6
            wall_us = (time.perf_counter() - wall) / CALLS * 1e6
            print(f"{name}: {cpu_us:.0f} us of CPU in the client, {wall_us:.0f} us in all")
    ps.close()


def connected(url: str) -> Client:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            return penstock.connect(url)
        except Unavailable:
            if time.monotonic() > deadline:
                raise


if __name__ == "__main__":
    main()
