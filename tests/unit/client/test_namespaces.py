"""The quotas that a program can name are those that there are."""

from __future__ import annotations

from penstock.client.namespaces import QuotaOptions
from penstock.model.namespaces import Quotas


def test_every_quota_can_be_set() -> None:
    named = {
        "retention_ms" if name == "retention" else name for name in QuotaOptions.__annotations__
    }
    assert named == set(Quotas.__struct_fields__)
