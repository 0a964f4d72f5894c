"""Namespaces: listing, making and deleting them, and their quotas."""

from __future__ import annotations

from penstock.model.calls.base import Call, route
from penstock.model.namespaces import NO_QUOTAS, NamespaceDescription, Quotas
from penstock.model.topics import Found, Namespaces


@route("GET", "/namespaces", "describe", Namespaces, tag="namespaces")
class ListNamespaces(Call[Namespaces], frozen=True, kw_only=True):
    """Every namespace that was made or has a topic, and "default"."""


@route("GET", "/usage", "describe", NamespaceDescription, tag="namespaces")
class DescribeNamespace(Call[NamespaceDescription], frozen=True, kw_only=True):
    """The quotas of a namespace, and what it uses."""


@route(
    "PUT",
    "/namespaces/{namespace}",
    "manage",
    NamespaceDescription,
    tag="namespaces",
    repeatable=True,
)
class CreateNamespace(Call[NamespaceDescription], frozen=True, kw_only=True):
    """Make a namespace, unless it is there. Creating a topic makes its namespace, too."""


@route(
    "PUT",
    "/namespaces/{namespace}/quotas",
    "manage",
    NamespaceDescription,
    tag="namespaces",
    repeatable=True,
)
class PutQuotas(Call[NamespaceDescription], frozen=True, kw_only=True):
    """Set the quotas of a namespace, in place of those that it had."""

    quotas: Quotas = NO_QUOTAS


@route("DELETE", "/namespaces/{namespace}", "manage", Found, tag="namespaces", repeatable=True)
class DeleteNamespace(Call[Found], frozen=True, kw_only=True):
    """Delete a namespace and its quotas. Only while it has no topics; by force with all of them,
    its schedules and its webhooks."""

    force: bool = False
