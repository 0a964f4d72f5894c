"""The registry of schemas of a broker: its journal, and the schemas that were parsed.

What is registered is durable when the call returns, and messages may carry its id from then on: no
crash gives the id to another schema. The journal is made with the first schema.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.broker.journal import LazyJournal
from penstock.broker.proto_compiler import compile_proto
from penstock.clock import Clock
from penstock.errors import (
    DiskFull,
    InvalidInput,
    InvalidSchema,
    SchemaIncompatible,
    SchemaNotFound,
)
from penstock.model.schemas import SCHEMAS_BYTES_MAX, SCHEMAS_MAX, VERSIONS_MAX, subject_name
from penstock.schema.definition import (
    REFERENCES_MAX,
    CompatibilityLevel,
    Incompatibility,
    ParsedSchema,
    RegistryMode,
    SchemaReference,
    SchemaType,
    levels_of,
)
from penstock.schema.kinds import compiled_file, file_set, is_compiled, parse_schema
from penstock.schema.registry import (
    KnownReference,
    RegistryEntry,
    RegistrySet,
    RegistryState,
    SchemaRecord,
    SubjectState,
    VersionRecord,
    VersionsDeleted,
    fingerprint_of,
)

_logger = logging.getLogger("penstock.broker")

_CHECKPOINT_BYTES = 1 << 20
_PARSED_MAX = 1000
_PARSED_BYTES_MAX = 32 << 20

_entries: msgspec.json.Decoder[RegistryEntry] = msgspec.json.Decoder(RegistryEntry)


class GivenSchema(NamedTuple):
    """A schema that somebody brings."""

    type: SchemaType
    text: str
    references: Sequence[SchemaReference] = ()


class _Understood(NamedTuple):
    """A schema that somebody brings, parsed."""

    parsed: ParsedSchema
    references: list[KnownReference]
    fingerprint: bytes


class SchemaRegistry:
    """Any thread may call. Reading takes no lock."""

    def __init__(self, journal: LazyJournal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._lock = threading.RLock()
        self._parsed: dict[int, ParsedSchema] = {}
        self._parsed_bytes = 0
        self.state = RegistryState()
        for entry in journal.entries():
            self.state.apply(_entries.decode(entry))

    def register(
        self,
        namespace: str,
        subject: str,
        given: GivenSchema,
        *,
        id_: int | None = None,
        version: int | None = None,
    ) -> VersionRecord:
        """A schema as a version of a subject: the one that it is already, or the next."""
        subject_name(subject)
        understood = self._understand(namespace, given)
        with self._lock:
            state = self.state
            known = state.known_as(understood.fingerprint)
            if known is not None:
                same = state.version_of(namespace, subject, known)
                if same is not None and id_ in (None, known) and version in (None, same.version):
                    return same
            state.check_registers(namespace, subject, importing=id_ is not None)
            self._check_references(namespace, understood.references)
            if id_ is None:
                problems = self.problems(namespace, subject, understood.parsed)
                if problems:
                    raise _incompatible(subject, state.level(namespace, subject), problems)
            record = SchemaRecord(
                id=state.id_for(understood.fingerprint, id_),
                type=given.type,
                text=understood.parsed.text,
                references=understood.references,
                fingerprint=understood.fingerprint,
                compiled=understood.parsed.compiled,
            )
            self._check_room(namespace, subject, record)
            now_us = self._clock.wall_ns() // 1000
            added = state.added(namespace, subject, record, now_us, version)
            self._store(added)
            self._keep(record.id, understood.parsed)
            return added.version

    def check(
        self, namespace: str, subject: str, given: GivenSchema, version: int | None, *, every: bool
    ) -> list[Incompatibility]:
        """Why a schema could not be registered; `every`: compare as its level says, else with one
        version, None being the newest."""
        subject_name(subject)
        parsed = self._understand(namespace, given).parsed
        if every:
            return self.problems(namespace, subject, parsed)
        against = self.state.version(namespace, subject, version)
        return self._compared(namespace, subject, parsed, [against])

    def find(
        self, namespace: str, subject: str, given: GivenSchema, *, deleted: bool = False
    ) -> tuple[int | None, VersionRecord | None]:
        """The id of a schema, and which version of a subject it is. Raises SubjectNotFound."""
        self.state.subject(namespace, subject, deleted=deleted)
        known = self.state.known_as(self._understand(namespace, given).fingerprint)
        if known is None:
            return None, None
        return known, self.state.version_of(namespace, subject, known, deleted=deleted)

    def delete(
        self, namespace: str, subject: str, number: int | None, *, permanent: bool
    ) -> list[int]:
        """Versions, so that nobody finds them by their subject; `permanent`: for ever."""
        with self._lock:
            entry = self.state.deleted(namespace, subject, number, permanent=permanent)
            self._store(entry)
            self._drop_parsed()
            return entry.versions

    def forget(self, namespace: str) -> bool:
        """Delete all that a namespace has, for ever, whatever it refers to or is set to; False:
        there was nothing."""
        with self._lock:
            subjects, settings = self.state.of_namespace(namespace)
            # The newest first: what refers to others is gone before these are, also in a crash.
            for each in sorted(subjects, key=_newest_id, reverse=True):
                self._store(
                    VersionsDeleted(
                        namespace=namespace,
                        subject=each.name,
                        versions=list(each.versions),
                        permanent=True,
                    )
                )
            for name in settings:
                self._set(RegistrySet(namespace=namespace, subject=name, level=None, mode=None))
            self._drop_parsed()
            return bool(subjects or settings)

    def set_level(
        self, namespace: str, subject: str | None, level: CompatibilityLevel | None
    ) -> None:
        """None: that of the namespace again, or the default."""
        with self._lock:
            mode = self.state.given_mode(namespace, subject)
            self._set(RegistrySet(namespace=namespace, subject=subject, level=level, mode=mode))

    def set_mode(
        self, namespace: str, subject: str | None, mode: RegistryMode | None, *, force: bool = False
    ) -> None:
        with self._lock:
            if mode == "import" and not force:
                self.state.check_empty(namespace, subject)
            level = self.state.given_level(namespace, subject)
            self._set(RegistrySet(namespace=namespace, subject=subject, level=level, mode=mode))

    def parsed(self, id_: int) -> ParsedSchema:
        """A schema that is there."""
        found = self._parsed.get(id_)
        if found is None:
            record = self.state.schemas.get(id_)
            if record is None:
                raise SchemaNotFound(id_)
            inner = self._closure(record.type, record.references)
            found = parse_schema(record.type, record.text, inner, record.compiled)
            with self._lock:
                self._keep(id_, found)
        return found

    def problems(self, namespace: str, subject: str, parsed: ParsedSchema) -> list[Incompatibility]:
        """Why a schema may not be the next version of a subject."""
        level = self.state.level(namespace, subject)
        known = self.state.subjects.get((namespace, subject))
        versions = known.live() if known is not None else []
        if not levels_of(level)[2]:
            versions = versions[-1:]
        return self._compared(namespace, subject, parsed, versions)

    def close(self) -> None:
        self._journal.close()

    # Inside.

    def _compared(
        self, namespace: str, subject: str, parsed: ParsedSchema, versions: Sequence[VersionRecord]
    ) -> list[Incompatibility]:
        backward, forward, _ = levels_of(self.state.level(namespace, subject))
        found = []
        for version in reversed(versions):
            old = self.parsed(version.id)
            if not backward and not forward:
                break
            if old.kind != parsed.kind:
                problems = [
                    Incompatibility(
                        path="/",
                        rule="TYPE_CHANGED",
                        message=f"it was {old.kind}, not {parsed.kind}",
                    )
                ]
            else:
                problems = parsed.unreadable(old) if backward else []
                problems += old.unreadable(parsed) if forward else []
            found += [msgspec.structs.replace(each, version=version.version) for each in problems]
        return found

    def _understand(self, namespace: str, given: GivenSchema) -> _Understood:
        references = self._references(namespace, given.references)
        inner = self._closure(given.type, references)
        compiled = b""
        if given.type == "protobuf" and not is_compiled(given.text):
            compiled = compiled_file(compile_proto(given.text, file_set(inner)))
        parsed = parse_schema(given.type, given.text, inner, compiled)
        return _Understood(parsed, references, fingerprint_of(parsed, references))

    def _references(self, namespace: str, given: Sequence[SchemaReference]) -> list[KnownReference]:
        if len(given) > REFERENCES_MAX:
            raise InvalidSchema(f"a schema refers to {REFERENCES_MAX} others at most")
        found = []
        for each in given:
            number = None if each.version == -1 else each.version
            version = self.state.version(namespace, each.subject, number)
            found.append(KnownReference(each.name, each.subject, version.version, version.id))
        return found

    def _check_references(self, namespace: str, references: Sequence[KnownReference]) -> None:
        """They may have been deleted since they were looked up."""
        for each in references:
            self.state.version(namespace, each.subject, each.version)

    def _closure(
        self, kind: SchemaType, references: Sequence[KnownReference]
    ) -> dict[str, ParsedSchema]:
        """All that is referred to, by name, the innermost first."""
        found: dict[str, ParsedSchema] = {}
        ids: dict[str, int] = {}

        def visit(reference: KnownReference) -> None:
            name = reference.name
            if ids.get(name) == reference.id:
                return
            if name in ids:
                raise InvalidSchema(f"two schemas are referred to as {name!r:.100}")
            ids[name] = reference.id
            if len(ids) > REFERENCES_MAX:
                raise InvalidSchema(f"a schema refers to {REFERENCES_MAX} others at most, in all")
            record = self.state.schemas.get(reference.id)
            if record is None:
                raise SchemaNotFound(reference.id)
            if record.type != kind:
                raise InvalidSchema(f"{name!r:.100} is a schema of type {record.type}, not {kind}")
            for inner in record.references:
                visit(inner)
            found[name] = self.parsed(reference.id)

        for each in references:
            visit(each)
        return found

    def _check_room(self, namespace: str, subject: str, record: SchemaRecord) -> None:
        state = self.state
        known = state.subjects.get((namespace, subject))
        if known is not None and len(known.versions) >= VERSIONS_MAX:
            raise InvalidInput(f"subject {subject!r} has {VERSIONS_MAX:,} versions, the limit")
        if record.id in state.schemas:
            return
        if len(state.schemas) >= SCHEMAS_MAX:
            raise InvalidInput(f"there are {SCHEMAS_MAX:,} schemas, which is the limit")
        if state.text_bytes + len(record.text) + len(record.compiled) > SCHEMAS_BYTES_MAX:
            raise InvalidInput(f"all schemas together have {SCHEMAS_BYTES_MAX >> 20} MiB at most")

    def _drop_parsed(self) -> None:
        """Those that are there no more."""
        for id_ in list(self._parsed):
            if id_ not in self.state.schemas:
                self._parsed_bytes -= len(self._parsed.pop(id_).text)

    def _set(self, entry: RegistrySet) -> None:
        if entry.subject is not None:
            subject_name(entry.subject)
        self._store(entry)

    def _store(self, entry: RegistryEntry) -> None:
        """Appended, durable, believed."""
        journal = self._journal.made()
        journal.append(msgspec.json.encode(entry)).result()
        self.state.apply(entry)
        if journal.bytes_since_checkpoint > max(_CHECKPOINT_BYTES, journal.checkpoint_bytes):
            try:
                journal.checkpoint(msgspec.json.encode(self.state.snapshot()))
            except DiskFull as exc:
                _logger.warning("no checkpoint of the schemas: %s", exc)

    def _keep(self, id_: int, parsed: ParsedSchema) -> None:
        """The lock is held. What was parsed first is forgotten first."""
        if id_ in self._parsed or id_ not in self.state.schemas:
            return
        self._parsed_bytes += len(parsed.text)
        self._parsed[id_] = parsed
        while len(self._parsed) > _PARSED_MAX or self._parsed_bytes > _PARSED_BYTES_MAX:
            oldest = next(iter(self._parsed))
            if oldest == id_:
                break
            self._parsed_bytes -= len(self._parsed.pop(oldest).text)


def _newest_id(subject: SubjectState) -> int:
    return max(version.id for version in subject.versions.values())


def _incompatible(
    subject: str, level: CompatibilityLevel, problems: Sequence[Incompatibility]
) -> SchemaIncompatible:
    shown = "; ".join(
        f"{p.path}: {p.message} ({p.rule}, version {p.version})" for p in problems[:3]
    )
    more = f"; {len(problems) - 3} more" if len(problems) > 3 else ""
    return SchemaIncompatible(f"not {level} compatible with {subject!r:.100}: {shown}{more}")
