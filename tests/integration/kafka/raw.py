"""Bytes to the port of Kafka, and what comes back."""

from __future__ import annotations

import socket
import struct


def opened(kafka: str) -> socket.socket:
    host, port = kafka.split(":")
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.settimeout(10)
    return sock


def is_closed(sock: socket.socket) -> bool:
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def answer(sock: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _received(sock, 4))
    return _received(sock, size)


def _received(sock: socket.socket, size: int) -> bytes:
    """So many bytes. A socket with a timeout gives what is there, with MSG_WAITALL too."""
    data = bytearray()
    while len(data) < size:
        some = sock.recv(size - len(data))
        if not some:
            raise ConnectionError(f"the connection ended {size - len(data)} bytes too early")
        data += some
    return bytes(data)
