"""Sessions of browsers: who logged in with an API key, and until when.

A browser keeps no key: it is given a random token in a cookie that scripts cannot read. What the
token is good for is what its key is good for, until the key is revoked, the session is ended or is
twelve hours old, or the server stops. Only hashes of tokens are kept.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections import OrderedDict
from typing import NamedTuple

from penstock.server.keys import Key

LIFETIME_S = 12 * 3600
SESSIONS_MAX = 10_000
"""Beyond it the oldest ones end."""


class _Session(NamedTuple):
    key: Key
    ends_s: float


class Sessions:
    """Any thread may call."""

    def __init__(self, data_folder: str) -> None:
        folder = os.path.abspath(data_folder).encode()
        self.cookie = f"penstock_{hashlib.sha256(folder).hexdigest()[:12]}"
        """Its name. Servers of one host share their cookies, whatever their ports."""
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, _Session] = OrderedDict()  # the oldest first

    def begin(self, key: Key) -> str:
        """The token of a new session."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._open[_hashed(token)] = _Session(key, time.monotonic() + LIFETIME_S)
            if len(self._open) > SESSIONS_MAX:
                self._open.popitem(last=False)
        return token

    def find(self, token: str) -> Key | None:
        """Whose session it is; None if there is none, or no longer."""
        session = self._open.get(_hashed(token))
        if session is None or session.ends_s < time.monotonic():
            return None
        return session.key

    def end(self, token: str) -> None:
        with self._lock:
            self._open.pop(_hashed(token), None)


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
