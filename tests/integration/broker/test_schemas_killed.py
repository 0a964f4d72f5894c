"""The registry of schemas killed at each write: what was registered is there, with its id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker import schemas
from penstock.errors import SchemaNotFound, SubjectNotFound
from tests.integration.broker.world import World


def told(ps: Any) -> dict[int, str]:
    """The schema of each id."""
    found = {}
    for id_ in range(1, 40):
        try:
            found[id_] = ps.schemas.get_by_id(id_).schema
        except SchemaNotFound:
            continue
    return found


def versions(ps: Any) -> list[tuple[int, int, bool]]:
    try:
        found = ps.schemas.describe("s", deleted=True).versions
    except SubjectNotFound:
        return []
    return [(each.version, each.id, each.deleted) for each in found]


def test_a_kill_at_any_write_loses_nothing_and_gives_no_id_twice(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "_CHECKPOINT_BYTES", 1500)
    left: list[tuple[Path, int]] = []
    stands: list[tuple[dict[int, str], list[tuple[int, int, bool]]]] = []

    def note() -> None:
        stands.append((told(sync.ps), versions(sync.ps)))

    sync.ps.schemas.set_compatibility("none")
    note()
    sync.files.before_append = lambda path: left.append((sync.copy(), len(stands)))
    for number in range(12):
        sync.ps.schemas.register("s", {"const": number})
        note()
    for step in (
        lambda: sync.ps.schemas.delete("s", 12),
        lambda: sync.ps.schemas.delete("s", 12, permanent=True),
        lambda: sync.ps.schemas.register("s", {"const": "last"}),
    ):
        step()
        note()
    sync.files.before_append = None
    assert len(left) > len(stands), "no checkpoint was written"
    for folder, done in left:
        ps = sync.go_on_in(folder)
        here = told(ps), versions(ps)
        after = stands[done] if done < len(stands) else stands[-1]
        assert here in (stands[done - 1], after), f"after {done} calls"
        given = max([0, *here[0], *(id_ for _, id_, _ in here[1])])
        assert ps.schemas.register("other", {"const": "new"}).id > given
        if done > 13:
            assert ps.schemas.get("other").id > 12  # which was given, and is gone
