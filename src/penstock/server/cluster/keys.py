"""API keys of a cluster: one document in its registry, which all nodes read every second."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from penstock.cluster.registry import Registry
from penstock.errors import KeysUnreadable, Unavailable
from penstock.server.keys import Key, KeyFile, KeyStore

_NAME = "keys"


class ClusterKeys(KeyStore):
    """A key is good at all nodes within about a second after it was made, and bad after it was
    revoked. While the registry cannot be read, the keys are those that were known."""

    def __init__(self, folder: str | os.PathLike[str], registry: Registry) -> None:
        super().__init__(folder)
        self._registry = registry
        self._revision = -1

    def load(self) -> None:
        """Read what the cluster has. The first node brings the keys of its folder along."""
        value = self._registry.get(_NAME)
        if not value.revision:
            known = KeyStore.open(self._folder)
            if not known.empty:
                self._store(known.list(), 0)
                value = self._registry.get(_NAME)
        if value.revision == self._revision:
            return
        keys: dict[str, Key] = {}
        if value.revision:
            try:
                keys = {key.id: key for key in msgspec.json.decode(value.data, type=KeyFile).keys}
            except msgspec.MsgspecError as exc:
                raise KeysUnreadable("the registry of the cluster", exc) from exc
        with self._lock:
            self._keys, self._needed = keys, self._needed or bool(value.revision)
            self._revision = value.revision

    def check_not_lost(self) -> None:
        """They are where the cluster is."""

    def _refresh(self) -> dict[str, Key]:
        return self._keys

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Key]]:
        self.load()
        keys = dict(self._keys)
        yield keys
        self._store(list(keys.values()), max(self._revision, 0))
        self.load()

    def _store(self, keys: list[Key], revision: int) -> None:
        data = msgspec.json.encode(KeyFile(keys=keys))
        if self._registry.put(_NAME, data, revision) is None:
            raise Unavailable("somebody else changed the keys at this moment; try again")
