"""A wire that can be cut at the worst moment: when the server has answered, and nobody heard it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Passes on everything. `lose_answers` cuts that many connections instead of an answer;
    with `hold_answers` each waits until somebody calls `let_one_go`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.lose_answers = 0
        self.lost = 0
        self.hold_answers = False
        self.held = 0
        self._let_go = threading.Semaphore(0)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def let_one_go(self) -> None:
        self.held -= 1
        self._let_go.release()

    def close(self) -> None:
        self._let_go.release(1000)
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for sock in self._open:
            sock.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, server]
            self._start(self._pass, client, server, False)
            self._start(self._pass, server, client, True)

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers and self.lose_answers:
                    self.lose_answers -= 1
                    self.lost += 1
                    break
                if answers and self.hold_answers:
                    self.held += 1
                    self._let_go.acquire()
                target.sendall(data)
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
