"""Which namespaces the open connections of a server are for: what the quota `connections` counts.

A connection belongs to each namespace whose messages it had to do with, until it is closed: one of
HTTP or Kafka, a WebSocket, and in gRPC, which shares its connections, a call. One that a quota
refuses is told so with each question; what settles messages passes, and so does whoever looks after
the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import QuotaExceeded
from penstock.server.keys import Right

if TYPE_CHECKING:
    from penstock.broker.api import Api

SCOPE = "penstock.connection"
"""Where the scope of a request names its connection; it does so in our own server."""

COMPLETE = "penstock.complete"
"""Where the scope of a request says that all of its body has come."""

_COUNTED: frozenset[Right] = frozenset(("publish", "consume", "look"))


class NamespaceConnections:
    """Used on the event loop of the server."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._of: dict[object, set[str]] = {}
        self._counts: dict[str, int] = {}
        api.count_connections_by(self.count)

    def count(self, namespace: str) -> int:
        return self._counts.get(namespace, 0)

    def use(
        self, connection: object, right: Right, namespace: str | None, *, settles: bool = False
    ) -> None:
        """Something is asked that needs this right. Raises QuotaExceeded."""
        if right not in _COUNTED or namespace is None:
            return
        known = self._of.get(connection)
        if known is None:
            known = self._of[connection] = set()
        elif namespace in known:
            return
        try:
            self._api.check_quota(namespace, "connections", 1)
        except QuotaExceeded:
            if settles:
                return
            raise
        known.add(namespace)
        self._counts[namespace] = self.count(namespace) + 1

    def closed(self, connection: object) -> None:
        for namespace in self._of.pop(connection, ()):
            left = self._counts[namespace] - 1
            if left:
                self._counts[namespace] = left
            else:
                del self._counts[namespace]
