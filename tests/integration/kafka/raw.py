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
    head = sock.recv(4, socket.MSG_WAITALL)
    return sock.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
