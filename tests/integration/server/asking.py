"""Plain HTTP, as a client of another language speaks it; and sockets for worse than that."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, NamedTuple


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of a problem; everything that every problem has is looked at too."""
        problem = self.json
        assert self.headers["content-type"] == "application/problem+json"
        assert problem["status"] == self.status
        assert problem["title"]
        assert problem["detail"]
        return str(problem["code"])


class Http:
    """One connection that is kept."""

    def __init__(self, port: int, key: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._key = key

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        **headers: str,
    ) -> Answered:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["content-type"] = content_type
        if self._key is not None:
            sent["authorization"] = f"Bearer {self._key}"
        self._connection.request(method, path, body, sent)
        answer = self._connection.getresponse()
        return Answered(
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read(),
        )

    def get(self, path: str, **headers: str) -> Answered:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any = None, **how: Any) -> Answered:
        return self.ask("POST", path, {} if body is None else body, **how)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Http:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def talk(port: int, data: bytes, timeout_s: float = 10) -> bytes:
    """Send bytes as they are; all that comes back until the server hangs up, or time is up."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as sock:
        sock.sendall(data)
        received = b""
        try:
            while part := sock.recv(65536):
                received += part
        except (TimeoutError, ConnectionResetError):
            pass
        return received
