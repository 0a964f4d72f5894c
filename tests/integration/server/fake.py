"""A server that answers with whatever bytes a test gives it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

VERSION = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 19\r\n\r\n"
    b'{"version":"1.0.0"}'
)


class FakeServer:
    """Answers `GET /version` as it should be, and any other request with `answer`: some bytes, or
    a function that is given the socket."""

    def __init__(self, answer: bytes | Callable[[socket.socket], None]) -> None:
        self.answer = answer
        self.requests = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self.closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.closed = True
        for sock in (self._listening, *self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listening.accept()
                self._open.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError):
            while data := sock.recv(1 << 20):
                if data.startswith(b"GET /version"):
                    sock.sendall(VERSION)
                    continue
                self.requests += 1
                if callable(self.answer):
                    self.answer(sock)
                else:
                    sock.sendall(self.answer)
