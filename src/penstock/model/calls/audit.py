"""The audit log."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.model.calls.base import EverywhereCall, route
from penstock.model.namespaces import AuditPage
from penstock.model.values import Whole


@route("GET", "/audit", "manage", AuditPage, tag="audit")
class ListAudit(EverywhereCall[AuditPage], frozen=True, kw_only=True):
    """Who did what to a server, newest first, page by page. With a namespace in the path, of that
    one."""

    before: Whole | None = None
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
