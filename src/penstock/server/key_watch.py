"""Connections that stay open: they end when their key is revoked, also while nothing is said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from penstock.errors import PenstockError
from penstock.server.gate import Gate
from penstock.server.keys import Key

_LOOK_EVERY_S = 1.0


class KeyHolder(Protocol):
    @property
    def key(self) -> Key | None: ...

    def revoked(self, exc: PenstockError) -> None:
        """The key is not good any more: end."""


class KeyWatch:
    """One timer for all of them, so that a thousand idle ones cost nothing."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._holders: set[KeyHolder] = set()
        self._looking: asyncio.TimerHandle | None = None

    @contextmanager
    def over(self, holder: KeyHolder) -> Iterator[None]:
        """Look after it for as long as the block runs."""
        self._holders.add(holder)
        if self._looking is None:
            self._look()
        try:
            yield
        finally:
            self._holders.discard(holder)

    def _look(self) -> None:
        self._looking = None
        if not self._holders:
            return
        for holder in list(self._holders):
            try:
                if holder.key is not None:
                    self._gate.check_still_good(holder.key)
            except PenstockError as exc:
                holder.revoked(exc)
        self._looking = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)
