"""Namespaces: made, given quotas, deleted; and who did what to a server."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import msgspec

from penstock.client.base import AsyncCalls, SyncCalls
from penstock.durations import Duration, parse_ms
from penstock.errors import InvalidInput
from penstock.model import calls
from penstock.model.namespaces import AuditPage, NamespaceDescription, QuotaPolicy, Quotas
from penstock.spelling import nearest


class QuotaOptions(TypedDict, total=False):
    """What a namespace may use; what is left out, as much as it likes."""

    publish_messages: float | None
    """A second."""
    publish_bytes: float | None
    receive_messages: float | None
    receive_bytes: float | None
    storage_bytes: int | None
    topics: int | None
    partitions: int | None
    groups: int | None
    connections: int | None
    delayed: int | None
    schedules: int | None
    webhooks: int | None
    message_bytes: int | None
    retention: Duration | None
    """The longest that a topic may keep messages."""
    policy: QuotaPolicy


def _put(namespace: str, options: QuotaOptions) -> calls.PutQuotas:
    given: dict[str, Any] = dict(options)
    if "retention" in given:
        retention = given.pop("retention")
        given["retention_ms"] = None if retention is None else parse_ms(retention, "retention")
    known = [*QuotaOptions.__annotations__]
    for name in options:
        if name not in known:
            near = nearest(name, known)
            meant = f"did you mean {near!r}?" if near else f"there are {', '.join(known)}"
            raise InvalidInput(f"unknown quota {name!r}; {meant}")
    try:
        quotas = msgspec.convert(given, Quotas)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"quotas: {exc}") from None
    return calls.PutQuotas(namespace=namespace, quotas=quotas)


class NamespaceCalls(SyncCalls):
    def create_namespace(self, namespace: str) -> NamespaceDescription:
        """Make a namespace, unless it is there. Creating a topic makes its namespace, too."""
        return self._ask(calls.CreateNamespace(namespace=namespace))

    def describe_namespace(self, namespace: str | None = None) -> NamespaceDescription:
        """The quotas of a namespace, by default the client's own, and what it uses."""
        return self._ask(calls.DescribeNamespace(namespace=namespace or self._namespace))

    def set_quotas(self, namespace: str, **quotas: Unpack[QuotaOptions]) -> NamespaceDescription:
        """Set the quotas of a namespace, in place of those that it had."""
        return self._ask(_put(namespace, quotas))

    def delete_namespace(self, namespace: str, *, force: bool = False) -> bool:
        """Forget a namespace and its quotas; False: there was none. Raises NamespaceNotEmpty if it
        has topics; with `force` they go, too, and its schedules and webhooks."""
        return self._ask(calls.DeleteNamespace(namespace=namespace, force=force)).found

    def audit(
        self, namespace: str | None = None, *, before: int | None = None, limit: int = 100
    ) -> AuditPage:
        """Who did what to a server, newest first. `before` is the `next` of the page before."""
        return self._ask(calls.ListAudit(namespace=namespace, before=before, limit=limit))


class AsyncNamespaceCalls(AsyncCalls):
    async def create_namespace(self, namespace: str) -> NamespaceDescription:
        """Make a namespace, unless it is there. Creating a topic makes its namespace, too."""
        return await self._ask(calls.CreateNamespace(namespace=namespace))

    async def describe_namespace(self, namespace: str | None = None) -> NamespaceDescription:
        """The quotas of a namespace, by default the client's own, and what it uses."""
        return await self._ask(calls.DescribeNamespace(namespace=namespace or self._namespace))

    async def set_quotas(
        self, namespace: str, **quotas: Unpack[QuotaOptions]
    ) -> NamespaceDescription:
        """Set the quotas of a namespace, in place of those that it had."""
        return await self._ask(_put(namespace, quotas))

    async def delete_namespace(self, namespace: str, *, force: bool = False) -> bool:
        """Forget a namespace and its quotas; False: there was none. Raises NamespaceNotEmpty if it
        has topics; with `force` they go, too, and its schedules and webhooks."""
        return (await self._ask(calls.DeleteNamespace(namespace=namespace, force=force))).found

    async def audit(
        self, namespace: str | None = None, *, before: int | None = None, limit: int = 100
    ) -> AuditPage:
        """Who did what to a server, newest first. `before` is the `next` of the page before."""
        return await self._ask(calls.ListAudit(namespace=namespace, before=before, limit=limit))
