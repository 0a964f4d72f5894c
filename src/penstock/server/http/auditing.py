"""Which requests the audit log tells of, and what it says."""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.model.namespaces import AuditEntry
from penstock.server.http.answers import Answer, Request
from penstock.server.http.endpoints import Endpoint
from penstock.server.keys import Key

_TAGS = {"topics", "namespaces", "dead letters", "schedules", "webhooks", "schemas", "keys"}
_ALSO = {"purge", "delete_group", "seek", "reset_stream_group", "delete_stream_group"}
_READING = {"GET", "HEAD"}
_TOLD = {"topics", "namespaces", "dead letters", "keys"}
"""Whose bodies are told: they hold no secret and no message."""

_DETAIL_MAX = 256
_NOT_WORTH_IT = {"sync", "compact", "find_schema", "check_schema"}


def is_audited(endpoint: Endpoint) -> bool:
    """Whether it changes what others depend on. Publishing and consuming do not count."""
    if endpoint.method in _READING or endpoint.name in _NOT_WORTH_IT:
        return False
    return endpoint.tag in _TAGS or endpoint.name in _ALSO


def audit_entry(
    endpoint: Endpoint,
    parameters: Mapping[str, str],
    request: Request,
    key: Key | None,
    answer: Answer,
) -> AuditEntry:
    namespace = parameters.get("namespace", "default" if endpoint.in_namespaces else None)
    target = [value for name, value in parameters.items() if name != "namespace"]
    body = request.body[: 4 * _DETAIL_MAX] if endpoint.tag in _TOLD else b""
    said = [request.query, body.decode(errors="replace")]
    return AuditEntry(
        at_us=time.time_ns() // 1000,
        actor="" if key is None else key.name,
        address=request.client,
        action=endpoint.name,
        namespace=namespace,
        target="/".join(target)[:_DETAIL_MAX],
        detail=" ".join(part for part in said if part)[:_DETAIL_MAX],
        error=answer.code,
    )
