"""The calls of the API that are about namespaces, and the audit log."""

from __future__ import annotations

from penstock.broker.api_part import ApiPart, namespace_of
from penstock.broker.namespaces import delete_namespace
from penstock.broker.namespaces import described as described_namespace
from penstock.errors import NotFound
from penstock.model import calls
from penstock.model.namespaces import AuditEntry, AuditPage, NamespaceDescription
from penstock.model.topics import Found, Namespaces


class NamespaceApi(ApiPart):
    """Namespaces with their quotas, and who did what to a server."""

    def describe_namespace(self, call: calls.DescribeNamespace) -> NamespaceDescription:
        namespace = namespace_of(call)
        if namespace not in self._broker.namespaces():
            raise NotFound(
                f"there is no namespace {namespace!r}: it was not made, and has no topics"
            )
        return described_namespace(self._broker, namespace)

    def create_namespace(self, call: calls.CreateNamespace) -> NamespaceDescription:
        self._broker.tenants.put(namespace_of(call), None)
        return described_namespace(self._broker, call.namespace)

    def put_quotas(self, call: calls.PutQuotas) -> NamespaceDescription:
        self._broker.tenants.put(namespace_of(call), call.quotas)
        return described_namespace(self._broker, call.namespace)

    def delete_namespace(self, call: calls.DeleteNamespace) -> Found:
        namespace = namespace_of(call)
        return Found(found=delete_namespace(self._broker, namespace, force=call.force))

    def list_audit(self, call: calls.ListAudit) -> AuditPage:
        return self._broker.audit.page(call.namespace, call.before, call.limit)

    def note_audit(self, entry: AuditEntry) -> None:
        """Somebody did something to the server."""
        self._broker.audit.note(entry)

    def list_namespaces(self, call: calls.ListNamespaces) -> Namespaces:
        return Namespaces(namespaces=self._broker.namespaces())
