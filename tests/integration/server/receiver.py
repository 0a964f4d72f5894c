"""A receiver of webhooks on a port of its own, which answers as the test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Got(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


Answer = tuple[int, dict[str, str], bytes]


class Receiver:
    """`answers` says what each request gets; by default 204."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.answers: Callable[[Got], Answer] = lambda _: (204, {}, b"")
        self._arrived = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                got = Got(self.path, headers, body)
                status, more, answer = receiver.answers(got)
                receiver.note(got)
                self.send_response(status)
                for name, value in {**more, "content-length": str(len(answer))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def note(self, got: Got) -> None:
        with self._arrived:
            self.got.append(got)
            self._arrived.notify_all()

    def wait(self, count: int, seconds: float = 20) -> list[Got]:
        """The first so many requests, once they are there."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.got) >= count, seconds), self.got
            return self.got[:count]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
