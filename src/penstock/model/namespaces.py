"""Namespaces as tenants: what each may use, and what it does use."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.model.values import Short, Whole

QuotaPolicy: TypeAlias = Literal["delay", "refuse", "warn"]
Rate: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e12)]


class Quotas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a namespace may use; None: as much as it likes. Fields may be added, never renamed."""

    publish_messages: Rate | None = None
    """A second."""
    publish_bytes: Rate | None = None
    receive_messages: Rate | None = None
    receive_bytes: Rate | None = None
    storage_bytes: Whole | None = None
    topics: Whole | None = None
    partitions: Whole | None = None
    groups: Whole | None = None
    """Queue groups, each on each topic that it reads."""
    connections: Whole | None = None
    """Open at one server: of HTTP and Kafka, WebSockets, and calls of gRPC."""
    delayed: Whole | None = None
    """Messages that wait for their time."""
    schedules: Whole | None = None
    webhooks: Whole | None = None
    message_bytes: Whole | None = None
    """Of one message, with key and headers."""
    retention_ms: Whole | None = None
    """The longest that a topic may keep messages."""
    policy: QuotaPolicy = "delay"
    """Of what is too fast: `delay` the answer by up to a second before it is refused; `refuse` at
    once; or only `warn` in the log."""


NO_QUOTAS = Quotas()


class NamespaceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a namespace uses now."""

    publish_messages: float
    """A second, lately."""
    receive_messages: float
    storage_bytes: int
    topics: int
    partitions: int
    groups: int
    delayed: int
    schedules: int
    webhooks: int
    connections: int = 0
    """Of the server that was asked."""


class NamespaceDescription(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    quotas: Quotas
    usage: NamespaceUsage
    delayed_answers: int = 0
    """Since the broker was opened: answers that were delayed, since they came too fast."""
    refused: int = 0
    """What was refused, or would have been."""
    created_us: int | None = None
    """When it was made; None: it is there because it has topics."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody did to a server."""

    at_us: int
    actor: str
    """The name of the key; "": nobody had to have one."""
    address: str
    """Where the request came from."""
    action: str
    """As `delete_topic`."""
    namespace: str | None
    target: str
    """What it was done to: a topic, a webhook, a key ..."""
    detail: Short = ""
    """What was asked for."""
    error: str = ""
    """The code of the error, if it was refused."""


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first."""

    entries: list[AuditEntry]
    next: int | None = None
    """The `before` of the next page; None: that was all."""
