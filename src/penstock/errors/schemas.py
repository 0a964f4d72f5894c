"""The registry of schemas, and messages that do not fit."""

from __future__ import annotations

from penstock.errors.base import InvalidInput, PenstockError
from penstock.errors.server import NotFound


class InvalidSchema(InvalidInput):
    """A schema is not valid, or exceeds a limit."""

    code = "invalid_schema"


class SubjectNotFound(NotFound):
    """The registry has no such subject."""

    code = "subject_not_found"

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"there is no subject {subject!r:.300}; register a schema under it first")


class SchemaVersionNotFound(NotFound):
    """A subject has no such version."""

    code = "schema_version_not_found"

    def __init__(self, subject: str, version: int) -> None:
        self.subject = subject
        self.version = version
        super().__init__(f"subject {subject!r:.300} has no version {version}")


class SchemaNotFound(NotFound):
    """The registry has no such schema."""

    code = "schema_not_found"

    def __init__(self, schema: object) -> None:
        super().__init__(f"there is no schema {schema}")


class SchemaIncompatible(PenstockError):
    """A schema is not compatible with what is there, as the level of its subject asks for."""

    code = "schema_incompatible"


class SchemaReferenced(PenstockError):
    """Other schemas refer to this one. Delete them first."""

    code = "schema_referenced"

    def __init__(self, subject: str, version: int, id_: int) -> None:
        self.subject = subject
        self.version = version
        super().__init__(
            f"schema {id_} refers to version {version} of {subject!r:.300}: delete that first"
        )


class SubjectNotDeleted(PenstockError):
    """Only what is deleted already can be deleted permanently."""

    code = "subject_not_deleted"

    def __init__(self, subject: str, version: int) -> None:
        self.subject = subject
        self.version = version
        super().__init__(
            f"version {version} of {subject!r:.300} is in use; delete it first, then permanently"
        )


class RegistryReadOnly(PenstockError):
    """The mode of the registry, or of a subject, allows no changes."""

    code = "registry_read_only"


class SchemaMismatch(InvalidInput):
    """A message does not fit the schema of its topic. Nothing was stored."""

    code = "schema_mismatch"

    def __init__(
        self,
        topic: str,
        subject: str,
        *,
        row: int,
        field: str,
        version: int | None,
        reason: str,
        count: int = 1,
    ) -> None:
        self.topic = topic
        self.subject = subject
        self.row = row
        self.field = field
        self.version = version
        self.count = count
        where = f"row {row}" + (f", {field}" if field else "")
        of = subject if version is None else f"{subject} version {version}"
        more = f"; {count - 1:,} more do not, either" if count > 1 else ""
        super().__init__(f"{where} does not fit {of} of topic {topic}: {reason}{more}")
