"""The fold of the registry's journal."""

from __future__ import annotations

import msgspec

from penstock.schema.registry import (
    RegistryEntry,
    RegistryState,
    SchemaRecord,
    VersionAdded,
    VersionRecord,
)


def added(state: RegistryState, subject: str) -> VersionAdded:
    fingerprint = subject.encode().ljust(16)
    record = SchemaRecord(
        id=state.id_for(fingerprint, None), type="json", text="{}", fingerprint=fingerprint
    )
    return state.added("default", subject, record, 0)


def test_an_id_that_was_given_is_not_given_again_also_after_a_checkpoint() -> None:
    state = RegistryState()
    for subject in ("a", "b"):
        state.apply(added(state, subject))
    for permanent in (False, True):
        state.apply(state.deleted("default", "b", None, permanent=permanent))
    written = msgspec.json.encode(state.snapshot())
    again = RegistryState()
    again.apply(msgspec.json.decode(written, type=RegistryEntry))
    for each in (state, again):
        assert added(each, "c").version == VersionRecord(version=1, id=3, created_us=0)
        assert list(each.schemas) == [1]
        assert each.text_bytes == 2
