"""An S3 server on loopback, and what makes trouble between it and who asks."""

from __future__ import annotations

import http.client
import json
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """An S3 server of its own on loopback, with a bucket `lake`: how it is reached."""
    pytest.importorskip("moto.server", reason="an S3 server for tests: moto[server]")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(endpoint)
        request = urllib.request.Request(f"{endpoint}/lake", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(endpoint: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@contextmanager
def troubled(store: dict[str, str], seed: int) -> Iterator[tuple[dict[str, str], Trouble]]:
    """How a store is reached through somebody who makes trouble, in a process of its own: calls of
    the store's client may keep this one from doing anything."""
    between = subprocess.Popen(
        [sys.executable, __file__, store["AWS_ENDPOINT_URL"], str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert between.stdout
    try:
        with between.stdout as told:
            place = f"http://127.0.0.1:{int(told.readline())}"
        yield {**store, "AWS_ENDPOINT_URL": place}, Trouble(place)
    finally:
        between.terminate()
        between.wait(30)


class Trouble:
    """What was done to requests."""

    def __init__(self, place: str) -> None:
        self._place = place

    @property
    def seen(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self._place}{_SEEN}", timeout=30) as answer:
            found: dict[str, int] = json.load(answer)
            return found


_SEEN = "/trouble"
_SHARES = {"busy": 0.06, "lost": 0.06, "silent": 0.06}
"""A 503; done, and not answered; neither done nor answered."""


def make_trouble(endpoint: str, seed: int) -> None:
    """Stand between a store and who asks it, on a port that is printed."""
    to, chance, seen = urlsplit(endpoint).netloc, random.Random(seed), Counter[str]()

    def trouble() -> str:
        names = [*_SHARES, ""]
        (name,) = chance.choices(names, [*_SHARES.values(), 1 - sum(_SHARES.values())])
        seen[name] += 1
        return name

    class Between(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == _SEEN:
                self._answer(200, [], json.dumps(seen).encode())
                return
            what = trouble()
            if what == "busy":
                self._answer(503, [], b"")
                return
            if what == "silent":
                self.close_connection = True
                return
            with closing(http.client.HTTPConnection(to, timeout=30)) as server:
                server.request(self.command, self.path, body, dict(self.headers.items()))
                answer = server.getresponse()
                data = answer.read()
            if what == "lost":
                self.close_connection = True
                return
            self._answer(answer.status, answer.getheaders(), data)

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            given = {name.lower(): value for name, value in headers}
            given.setdefault("content-length", "0")
            if self.command != "HEAD":
                given["content-length"] = str(len(data))
            self.send_response(status)
            for name, value in given.items():
                if name not in ("connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

        def log_message(self, *_: object) -> None:
            """Quietly."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Between) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    make_trouble(sys.argv[1], int(sys.argv[2]))
