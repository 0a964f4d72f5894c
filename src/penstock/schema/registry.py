"""Which schemas there are: the fold of the registry's journal, and what may become of it.

A schema has an id that is good for ever, in all namespaces. A subject, of one namespace, is a
list of versions, each of which is a schema. Nothing here does I/O: what is asked for becomes
entries, which the broker stores before they are applied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from penstock.errors import (
    InvalidInput,
    RegistryReadOnly,
    SchemaNotFound,
    SchemaReferenced,
    SchemaVersionNotFound,
    SubjectNotDeleted,
    SubjectNotFound,
)
from penstock.schema.definition import (
    CompatibilityLevel,
    ParsedSchema,
    RegistryMode,
    SchemaReference,
    SchemaType,
)

DEFAULT_LEVEL: CompatibilityLevel = "backward"
ID_MAX = (1 << 31) - 1


class KnownReference(msgspec.Struct, frozen=True):
    """A reference, and the schema that it led to when it was made."""

    name: str
    subject: str
    version: int
    id: int


class SchemaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A schema as the journal has it. Fields may be added, never renamed."""

    id: int
    type: SchemaType
    text: str
    references: list[KnownReference] = []
    fingerprint: bytes
    """Of 16 bytes: of what it says and refers to. The same for what is the same schema."""
    compiled: bytes = b""


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    id: int
    created_us: int
    deleted: bool = False


class VersionAdded(msgspec.Struct, frozen=True, kw_only=True, tag="version"):
    """A subject got a version and, if nobody had it before, the schema with it."""

    namespace: str
    subject: str
    version: VersionRecord
    schema: SchemaRecord | None = None


class VersionsDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="deleted"):
    namespace: str
    subject: str
    versions: list[int]
    permanent: bool = False


class RegistrySet(msgspec.Struct, frozen=True, kw_only=True, tag="set"):
    """A level or a mode; None: that of the namespace again, or its default."""

    namespace: str
    subject: str | None
    level: CompatibilityLevel | None = None
    mode: RegistryMode | None = None


class SubjectState(msgspec.Struct, kw_only=True):
    namespace: str
    name: str
    versions: dict[int, VersionRecord] = {}

    def live(self, *, deleted: bool = False) -> list[VersionRecord]:
        """In order; with those that are deleted but not for ever."""
        found = [each for each in self.versions.values() if deleted or not each.deleted]
        return sorted(found, key=lambda each: each.version)


class RegistrySnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    schemas: list[SchemaRecord]
    subjects: list[SubjectState]
    levels: list[tuple[str, str | None, CompatibilityLevel]]
    modes: list[tuple[str, str | None, RegistryMode]]
    next_id: int


RegistryEntry: TypeAlias = VersionAdded | VersionsDeleted | RegistrySet | RegistrySnapshot


class RegistryState:
    """What the entries so far say."""

    def __init__(self) -> None:
        self.schemas: dict[int, SchemaRecord] = {}
        self.subjects: dict[tuple[str, str], SubjectState] = {}
        self.next_id = 1
        self.text_bytes = 0
        """Of all schemas together."""
        self._by_fingerprint: dict[bytes, int] = {}
        self._places: dict[int, set[tuple[str, str, int]]] = {}
        """The versions, deleted ones too, that are a schema."""
        self._levels: dict[tuple[str, str | None], CompatibilityLevel] = {}
        self._modes: dict[tuple[str, str | None], RegistryMode] = {}

    # The fold.

    def apply(self, entry: RegistryEntry) -> None:
        match entry:
            case VersionAdded():
                self._add(entry)
            case VersionsDeleted():
                self._delete(entry)
            case RegistrySet(namespace=namespace, subject=subject, level=level, mode=mode):
                _put(self._levels, (namespace, subject), level)
                _put(self._modes, (namespace, subject), mode)
            case RegistrySnapshot():
                self.__init__()  # type: ignore[misc]
                for schema in entry.schemas:
                    self._learn(schema)
                for state in entry.subjects:
                    self.subjects[state.namespace, state.name] = state
                    for each in state.versions.values():
                        place = state.namespace, state.name, each.version
                        self._places.setdefault(each.id, set()).add(place)
                self._levels = {(ns, subject): level for ns, subject, level in entry.levels}
                self._modes = {(ns, subject): mode for ns, subject, mode in entry.modes}
                self.next_id = entry.next_id

    def snapshot(self) -> RegistrySnapshot:
        return RegistrySnapshot(
            schemas=list(self.schemas.values()),
            subjects=list(self.subjects.values()),
            levels=[(*where, level) for where, level in self._levels.items()],
            modes=[(*where, mode) for where, mode in self._modes.items()],
            next_id=self.next_id,
        )

    def _add(self, entry: VersionAdded) -> None:
        if entry.schema is not None:
            self._learn(entry.schema)
        key = entry.namespace, entry.subject
        subject = self.subjects.get(key)
        if subject is None:
            subject = SubjectState(namespace=entry.namespace, name=entry.subject, versions={})
            self.subjects[key] = subject
        subject.versions[entry.version.version] = entry.version
        self._places.setdefault(entry.version.id, set()).add((*key, entry.version.version))

    def _learn(self, schema: SchemaRecord) -> None:
        self.schemas[schema.id] = schema
        self._by_fingerprint[schema.fingerprint] = schema.id
        self.next_id = max(self.next_id, schema.id + 1)
        self.text_bytes += len(schema.text) + len(schema.compiled)

    def _delete(self, entry: VersionsDeleted) -> None:
        subject = self.subjects[entry.namespace, entry.subject]
        for number in entry.versions:
            version = subject.versions[number]
            if not entry.permanent:
                subject.versions[number] = msgspec.structs.replace(version, deleted=True)
                continue
            del subject.versions[number]
            places = self._places[version.id]
            places.discard((entry.namespace, entry.subject, number))
            if not places:
                del self._places[version.id]
                schema = self.schemas.pop(version.id)
                del self._by_fingerprint[schema.fingerprint]
                self.text_bytes -= len(schema.text) + len(schema.compiled)
        if not subject.versions:
            del self.subjects[entry.namespace, entry.subject]

    # What is there.

    def subject(self, namespace: str, name: str, *, deleted: bool = False) -> SubjectState:
        """Raises SubjectNotFound."""
        found = self.subjects.get((namespace, name))
        if found is None or not found.live(deleted=deleted):
            raise SubjectNotFound(name)
        return found

    def version(
        self, namespace: str, subject: str, number: int | None, *, deleted: bool = False
    ) -> VersionRecord:
        """None: the newest. Raises SubjectNotFound or SchemaVersionNotFound."""
        found = self.subject(namespace, subject, deleted=deleted)
        if number is None:
            return found.live(deleted=deleted)[-1]
        version = found.versions.get(number)
        if version is None or (version.deleted and not deleted):
            raise SchemaVersionNotFound(subject, number)
        return version

    def schema(self, namespace: str, id_: int) -> SchemaRecord:
        """One that a subject of the namespace has, or had. Raises SchemaNotFound."""
        schema = self.schemas.get(id_)
        if schema is None or not any(self.places(id_, namespace, deleted=True)):
            raise SchemaNotFound(id_)
        return schema

    def by_guid(self, namespace: str, guid: bytes) -> SchemaRecord:
        id_ = self._by_fingerprint.get(guid)
        if id_ is None:
            raise SchemaNotFound(guid.hex())
        return self.schema(namespace, id_)

    def places(
        self, id_: int, namespace: str, *, deleted: bool = False
    ) -> Iterator[tuple[str, int]]:
        """The subjects and versions that are a schema."""
        for where, name, number in sorted(self._places.get(id_, ())):
            if where == namespace and (
                deleted or not self.subjects[where, name].versions[number].deleted
            ):
                yield name, number

    def of_namespace(self, namespace: str) -> tuple[list[SubjectState], list[str | None]]:
        """Its subjects, and which of them have settings of their own; None: the namespace has."""
        subjects = [state for (where, _), state in self.subjects.items() if where == namespace]
        names = {name for where, name in (*self._levels, *self._modes) if where == namespace}
        return subjects, sorted(names, key=lambda name: name or "")

    def known_as(self, fingerprint: bytes) -> int | None:
        """The id of a schema that says the same."""
        return self._by_fingerprint.get(fingerprint)

    def version_of(
        self, namespace: str, subject: str, id_: int, *, deleted: bool = False
    ) -> VersionRecord | None:
        """As which version a subject has a schema: the newest."""
        found = self.subjects.get((namespace, subject))
        if found is None:
            return None
        same = [each for each in found.live(deleted=deleted) if each.id == id_]
        return same[-1] if same else None

    def referrers(
        self, namespace: str, subject: str, version: int, *, deleted: bool = False
    ) -> list[int]:
        """The schemas that refer to a version."""
        return sorted(
            schema.id
            for schema in self.schemas.values()
            if any(
                each.subject == subject and each.version == version for each in schema.references
            )
            and any(self.places(schema.id, namespace, deleted=deleted))
        )

    def level(self, namespace: str, subject: str | None) -> CompatibilityLevel:
        """That which counts."""
        return (
            self._levels.get((namespace, subject))
            or self._levels.get((namespace, None))
            or DEFAULT_LEVEL
        )

    def given_level(self, namespace: str, subject: str | None) -> CompatibilityLevel | None:
        """That which was set for just this."""
        return self._levels.get((namespace, subject))

    def mode(self, namespace: str, subject: str | None) -> RegistryMode:
        return (
            self._modes.get((namespace, subject))
            or self._modes.get((namespace, None))
            or "readwrite"
        )

    def given_mode(self, namespace: str, subject: str | None) -> RegistryMode | None:
        """That which was set for just this."""
        return self._modes.get((namespace, subject))

    # What may become of it.

    def added(
        self,
        namespace: str,
        subject: str,
        record: SchemaRecord,
        now_us: int,
        version: int | None = None,
    ) -> VersionAdded:
        """A schema as the next version of a subject; `record` has the id of one that is known."""
        known = self.subjects.get((namespace, subject))
        newest = max(known.versions, default=0) if known is not None else 0
        if version is not None and known is not None and version in known.versions:
            raise InvalidInput(f"subject {subject!r} has a version {version} already")
        return VersionAdded(
            namespace=namespace,
            subject=subject,
            version=VersionRecord(version=version or newest + 1, id=record.id, created_us=now_us),
            schema=None if record.id in self.schemas else record,
        )

    def id_for(self, fingerprint: bytes, wanted: int | None) -> int:
        """The id of a schema: that which it has, that which is asked for, or the next one."""
        known = self.known_as(fingerprint)
        if wanted is None:
            return self.next_id if known is None else known
        if not 0 < wanted <= ID_MAX:
            raise InvalidInput(f"the id of a schema is a number from 1 to {ID_MAX:,}")
        if known not in (None, wanted) or (known is None and wanted in self.schemas):
            raise InvalidInput(f"id {wanted} is, or would be, another schema's")
        return wanted

    def deleted(
        self, namespace: str, subject: str, number: int | None, *, permanent: bool
    ) -> VersionsDeleted:
        """Delete a version or, with None, all. For ever only what was deleted before."""
        self.check_writable(namespace, subject)
        if number is None:
            versions = self.subject(namespace, subject, deleted=permanent).live(deleted=permanent)
        else:
            versions = [self.version(namespace, subject, number, deleted=permanent)]
        for version in versions:
            if permanent and not version.deleted:
                raise SubjectNotDeleted(subject, version.version)
            number = version.version
            if referrers := self.referrers(namespace, subject, number, deleted=permanent):
                raise SchemaReferenced(subject, number, referrers[0])
        return VersionsDeleted(
            namespace=namespace,
            subject=subject,
            versions=[each.version for each in versions],
            permanent=permanent,
        )

    def check_writable(self, namespace: str, subject: str) -> None:
        """Raises RegistryReadOnly."""
        if self.mode(namespace, subject) == "readonly":
            raise RegistryReadOnly(f"subject {subject!r} is read-only; set its mode to readwrite")

    def check_registers(self, namespace: str, subject: str, *, importing: bool) -> None:
        """Raises RegistryReadOnly. `importing`: with an id that the caller chose."""
        self.check_writable(namespace, subject)
        is_import = self.mode(namespace, subject) == "import"
        if importing and not is_import:
            raise RegistryReadOnly(
                "ids can be chosen in mode import only; leave it to the registry"
            )
        if is_import and not importing:
            raise RegistryReadOnly(f"subject {subject!r} is in mode import: give the id, or end it")

    def check_empty(self, namespace: str, subject: str | None) -> None:
        """Raise InvalidInput if there are versions: ids can be chosen for new subjects only."""
        for (where, name), state in self.subjects.items():
            if where == namespace and subject in (None, name) and state.live():
                raise InvalidInput(f"subject {name!r} has versions; import before there are any")


def fingerprint_of(schema: ParsedSchema, references: Sequence[KnownReference]) -> bytes:
    """Names what a schema says, in 16 bytes; also its GUID."""
    said = [schema.kind, schema.canonical, sorted((each.name, each.id) for each in references)]
    return hashlib.sha256(msgspec.json.encode(said)).digest()[:16]


def plain_references(record: SchemaRecord) -> list[SchemaReference]:
    return [
        SchemaReference(name=each.name, subject=each.subject, version=each.version)
        for each in record.references
    ]


def _put(found: dict, key: tuple[str, str | None], value: object) -> None:  # type: ignore[type-arg]
    if value is None:
        found.pop(key, None)
    else:
        found[key] = value
