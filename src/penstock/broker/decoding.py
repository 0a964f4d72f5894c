"""Values of messages as JSON, by the schema whose id they begin with, for who looks at them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import PenstockError
from penstock.model.searches import FoundMessage
from penstock.schema.columns import column_decoder
from penstock.schema.framing import PREFIX_BYTES, schema_id_of

if TYPE_CHECKING:
    from penstock.broker.schemas import SchemaRegistry

_ID_MAX = (1 << 31) - 1


def with_decoded(
    registry: SchemaRegistry, namespace: str, found: Sequence[FoundMessage]
) -> list[FoundMessage]:
    """The same messages; those that name a schema of the namespace and fit it, with what they
    say."""
    told = list(found)
    values = [each.message.value for each in found]
    for row, (id_, text) in _decoded(registry, namespace, values).items():
        told[row] = msgspec.structs.replace(found[row], schema_id=id_, decoded=text)
    return told


def as_json(
    registry: SchemaRegistry, namespace: str, values: Sequence[bytes | None]
) -> list[bytes | None]:
    """The same values; those that name a schema of the namespace as what they say by it, and None
    for one that does not fit its schema."""
    told = list(values)
    for row, (_, text) in _decoded(registry, namespace, values).items():
        told[row] = None if text is None else text.encode()
    return told


def _decoded(
    registry: SchemaRegistry, namespace: str, values: Sequence[bytes | None]
) -> dict[int, tuple[int, str | None]]:
    """By the rows that name a schema: its id, and what they say by it; None: they do not fit it."""
    rows: dict[int, list[int]] = defaultdict(list)
    for row, value in enumerate(values):
        id_ = schema_id_of(value or b"")
        if id_ is not None and id_ <= _ID_MAX:
            rows[id_].append(row)
    told: dict[int, tuple[int, str | None]] = {}
    for id_, some in rows.items():
        try:
            registry.state.schema(namespace, id_)
            texts = _texts(registry, id_, [values[row] or b"" for row in some])
        except (PenstockError, ImportError):
            continue  # it is no schema's id, or what reads it is not installed
        told |= {row: (id_, text) for row, text in zip(some, texts, strict=True)}
    return told


def _texts(registry: SchemaRegistry, id_: int, values: list[bytes]) -> list[str | None]:
    schema = registry.parsed(id_)
    if schema.kind == "json":
        return [value[PREFIX_BYTES:].decode(errors="replace") for value in values]
    decoded = column_decoder(schema, registry.parsed).decode(values)
    bad = {row for row, _ in decoded.errors}
    return [
        None if row in bad else msgspec.json.encode(value).decode()
        for row, value in enumerate(decoded.column.to_pylist())
    ]
