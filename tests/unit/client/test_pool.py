"""Connections over TCP: none is left open that could not be made whole."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest

from penstock.client.http.pool import Connections
from penstock.client.http.protocol import Address, RequestWriter, ServerRequest
from penstock.errors import Unavailable


class BrokenTls:
    """A context that fails before it has taken the socket over."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def wrap_socket(self, *args: Any, **how: Any) -> ssl.SSLSocket:
        raise self._error


@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError("no"), Unavailable), (ValueError("no"), ValueError), (KeyboardInterrupt(),) * 2],
    ids=["refused", "wrong", "interrupted"],
)
def test_a_connection_that_fails_half_way_is_closed(
    error: BaseException, raised: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[socket.socket] = []
    connect = socket.create_connection

    def noted(*args: Any) -> socket.socket:
        made.append(connect(*args))
        return made[-1]

    monkeypatch.setattr(socket, "create_connection", noted)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address.parse(f"https://127.0.0.1:{listener.getsockname()[1]}")
        tls: Any = BrokenTls(error)
        connections = Connections(address, RequestWriter(address, None), tls, 1.0)
        with pytest.raises(BaseException) as caught:
            connections.exchange(ServerRequest("GET", "/healthz"))
        is_raised = caught.type is (raised if isinstance(raised, type) else type(raised))
        assert is_raised
        assert [sock.fileno() for sock in made] == [-1]
