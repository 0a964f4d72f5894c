"""Whether messages fit the schema of their topic: the one place where that is decided.

`broker.publish`, `broker.delay` and `broker.check` ask here before anything is written, and so does
everything that is built on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np

from penstock.broker.schemas import SchemaRegistry
from penstock.errors import SchemaMismatch
from penstock.model.dead_letters import ORIGIN_HEADER, SCHEMA_REASON, Origin
from penstock.model.names import TopicName
from penstock.model.published import CallId, Placed
from penstock.model.settings import TopicSettings
from penstock.record.batch import Batch
from penstock.record.schema import BITS
from penstock.schema.definition import Mismatch
from penstock.schema.framing import (
    GUID_BYTES,
    PREFIX_BYTES,
    SCHEMA_HEADER,
    guid_of,
    schema_id_of,
)
from penstock.schema.registry import RegistryState, VersionRecord

if TYPE_CHECKING:
    from penstock.broker.publish_calls import PublishCalls
    from penstock.broker.topic import Topic

T = TypeVar("T")

_HEADERS = BITS["headers"]


class RefusedRow(NamedTuple):
    """A message that does not fit, and what it was compared with."""

    mismatch: Mismatch
    version: int | None


class Admitted(NamedTuple):
    """Messages of a batch, and where they were in it."""

    batch: Batch
    rows: Sequence[int] | None
    """None: they are all."""
    refused: Sequence[Placed]
    """The others, which are dead letters."""

    def of_rows(self, given: Sequence[T]) -> Sequence[T]:
        """Of something for each message of the batch, what is for these."""
        return given if self.rows is None else [given[row] for row in self.rows]

    def placed(self, placed: list[Placed]) -> list[Placed]:
        """Where all messages of the batch are, given where these are."""
        if self.rows is None:
            return placed
        rows = self.rows
        moved = [
            msgspec.structs.replace(each, rows=[rows[row] for row in each.rows]) for each in placed
        ]
        return sorted([*moved, *self.refused], key=lambda each: each.rows[0])


def subject_of(name: TopicName, settings: TopicSettings) -> str:
    """Whose versions the messages of a topic are checked against."""
    return settings.schema_subject or f"{name.topic}-value"


def check_schema(
    registry: SchemaRegistry, name: TopicName, settings: TopicSettings, batch: Batch
) -> None:
    """Raise SchemaMismatch for messages that their topic refuses."""
    if settings.schema_check != "none" and settings.schema_on_error == "refuse":
        refused = refused_rows(registry, name, settings, batch)
        if refused:
            raise _mismatch(name, settings, refused)


def admit(
    broker: PublishCalls,
    topic: Topic,
    batch: Batch,
    *,
    dedup_ids: Sequence[str | bytes | None] | None = None,
    dedup_window_ms: int = 0,
    call: CallId | None = None,
    whole: bool = False,
) -> Admitted:
    """What a topic takes of a batch. What does not fit is refused, and nothing happens; or, where
    the topic says so, it is a dead letter when this returns. `whole`: all messages or none."""
    name, settings = topic.name, topic.settings
    refused = refused_rows(broker.schemas, name, settings, batch)
    if not refused:
        return Admitted(batch, None, ())
    if whole or settings.schema_on_error == "refuse" or not settings.dead_letters:
        raise _mismatch(name, settings, refused)
    bad = [row.mismatch.row for row in refused]
    letters = _letters(name, settings, batch.take(bad), refused, broker.clock.wall_ns() // 1000)
    ids = None if dedup_ids is None else [dedup_ids[row] for row in bad]
    placed = broker.publish_letters(name, letters, ids, dedup_window_ms, call)
    moved = [
        msgspec.structs.replace(
            each, first_offset=-1, rows=[bad[row] for row in each.rows], dead_letter=True
        )
        for each in placed
    ]
    good = np.setdiff1d(np.arange(len(batch)), bad).tolist()
    return Admitted(batch.take(good), good, moved)


def refused_rows(
    registry: SchemaRegistry, name: TopicName, settings: TopicSettings, batch: Batch
) -> list[RefusedRow]:
    """The messages that do not fit, in order. Those without a value, which delete a key, fit.

    Raises SubjectNotFound if there is no schema yet."""
    state, subject = registry.state, subject_of(name, settings)
    newest = state.version(name.namespace, subject, None)
    is_bare_json = settings.schema_check == "full" and state.schemas[newest.id].type == "json"
    values: list[bytes | None] = batch.values.to_pylist()
    first = values[0]
    if is_bare_json and not batch.columns & _HEADERS and first is not None and first[:1] != b"\0":
        # The usual case, in one go; anything else is looked at below.
        some = [value for value in values if value is not None]
        if registry.parsed(newest.id).accepts(some):
            return []
    refused: list[RefusedRow] = []
    for id_, rows in _by_schema(state, name.namespace, batch, values).items():
        payloads = [values[row] or b"" for row in rows]
        if id_ is None and is_bare_json:
            refused += _checked(registry, newest, payloads, rows)
            continue
        version = None if id_ is None else state.version_of(name.namespace, subject, id_)
        if version is None:
            reason = "it does not begin with the id of a schema"
            if id_ is not None:
                reason = f"schema {id_} is no version of the subject"
            refused += [RefusedRow(Mismatch(row, "", reason), None) for row in rows]
        elif settings.schema_check == "full":
            refused += _checked(registry, version, payloads, rows)
    refused.sort(key=lambda each: each.mismatch.row)
    return refused


def _by_schema(
    state: RegistryState, namespace: str, batch: Batch, values: list[bytes | None]
) -> dict[int | None, list[int]]:
    """The rows of each schema; None: those that name none. Of the values only the data is left."""
    found: dict[int | None, list[int]] = {}
    heads = _heads(batch)
    for row, value in enumerate(values):
        if value is None:
            continue
        head = heads.get(row)
        if head is None:
            id_ = schema_id_of(value)
            if id_ is not None:
                values[row] = value[PREFIX_BYTES:]
        else:
            id_, indexes = _of_header(state, namespace, head)
            values[row] = indexes + value
        found.setdefault(id_, []).append(row)
    return found


def _heads(batch: Batch) -> dict[int, bytes]:
    """The headers that name a schema, by row."""
    if not batch.columns & _HEADERS:
        return {}
    found = {}
    for row, headers in enumerate(batch.headers.to_pylist()):
        for header in headers or ():
            if header["key"] == SCHEMA_HEADER and header["value"]:
                found[row] = header["value"]
    return found


def _of_header(state: RegistryState, namespace: str, head: bytes) -> tuple[int | None, bytes]:
    """The schema that a header names, and what it says before the data."""
    guid = guid_of(head)
    if guid is None:
        return schema_id_of(head), head[PREFIX_BYTES:]
    return state.known_as(guid[:GUID_BYTES]), guid[GUID_BYTES:]


def _checked(
    registry: SchemaRegistry, version: VersionRecord, payloads: Sequence[bytes], rows: Sequence[int]
) -> list[RefusedRow]:
    return [
        RefusedRow(each._replace(row=rows[each.row]), version.version)
        for each in registry.parsed(version.id).check(payloads)
    ]


def _mismatch(
    name: TopicName, settings: TopicSettings, refused: Sequence[RefusedRow]
) -> SchemaMismatch:
    (row, field, reason), version = refused[0]
    return SchemaMismatch(
        str(name),
        subject_of(name, settings),
        row=row,
        field=field,
        version=version,
        reason=reason,
        count=len(refused),
    )


def _letters(
    name: TopicName,
    settings: TopicSettings,
    batch: Batch,
    refused: Sequence[RefusedRow],
    now_us: int,
) -> Batch:
    """Messages that were not stored as the dead letters that they become."""
    headers: list[dict[str, bytes | str | None]] = []
    messages = batch.messages()
    for message, each in zip(messages, refused, strict=True):
        origin = Origin(
            topic=name.topic,
            partition=-1,
            offset=-1,
            id="",
            group="",
            reason=SCHEMA_REASON,
            attempts=0,
            published_at_us=now_us,
            error=str(_mismatch(name, settings, [each])),
        )
        headers.append({**message.headers, ORIGIN_HEADER: msgspec.json.encode(origin)})
    return Batch.build(
        [m.value for m in messages],
        keys=[m.key for m in messages],
        headers=headers,
        priority=[m.priority for m in messages],
    )
