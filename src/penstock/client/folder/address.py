"""Where the owner of a data folder listens: the socket `SOCKET` in the folder, for its user alone.

Whoever has the folder's lock may take away what lies there: it is left of an owner that was killed.
The address of a socket has room for 107 bytes. A folder with a longer path is reached through a
descriptor of it, which has a short name under /proc.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SOCKET_FILE = "SOCKET"
CONNECT_TIMEOUT_S = 5.0
_ADDRESS_BYTES_MAX = 107
_BACKLOG = 1024


def listen(folder: str) -> socket.socket:
    """A socket to which only this user may connect. The caller has the lock of the folder."""
    path = os.path.join(folder, SOCKET_FILE)
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(folder) as address:
            listener.bind(address)
        os.chmod(path, 0o600)  # before anybody can connect
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(folder: str, *, blocking: bool = True) -> socket.socket:
    """A connection to the owner; OSError if nobody listens. On an event loop it may not block."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_TIMEOUT_S if blocking else 0)
        with _short(folder) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def is_listening(folder: str) -> bool:
    """Whether there is an owner to connect to."""
    try:
        connect(folder).close()
    except OSError:
        return False
    return True


def has_socket(folder: str) -> bool:
    """Whether there is an owner that shares the folder, or one was killed."""
    return os.path.exists(os.path.join(folder, SOCKET_FILE))


def remove(folder: str) -> None:
    with suppress(OSError):
        os.unlink(os.path.join(folder, SOCKET_FILE))


@contextmanager
def _short(folder: str) -> Iterator[str]:
    path = os.path.join(folder, SOCKET_FILE)
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield path
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_FILE}"
    finally:
        os.close(fd)
