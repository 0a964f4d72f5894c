"""The registry of schemas: what it is asked for, and what it tells."""

from __future__ import annotations

import re

import msgspec

from penstock.errors import InvalidInput
from penstock.schema.definition import (
    CompatibilityLevel,
    Incompatibility,
    RegistryMode,
    SchemaReference,
    SchemaType,
)

SCHEMAS_MAX = 100_000
SCHEMAS_BYTES_MAX = 48 << 20
VERSIONS_MAX = 10_000
"""Of one subject."""

_SUBJECT = re.compile(r"[A-Za-z0-9_.~@:+$-]{1,255}")


class RegisteredSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schema, and as which version a subject has it."""

    id: int
    """Good for ever, in all namespaces; what messages begin with."""
    type: SchemaType
    schema: str
    references: list[SchemaReference] = []
    compiled: bytes | None = None
    """Of Protobuf, its file descriptor."""
    guid: str = ""
    """The same in every registry that has the schema."""
    subject: str = ""
    version: int = 0
    created_us: int = 0
    deleted: bool = False


class SchemaPlace(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    version: int


class SchemaById(RegisteredSchema, frozen=True, kw_only=True, omit_defaults=True):
    """A schema, and which versions are it."""

    places: list[SchemaPlace] = []


class SubjectVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: int
    id: int
    type: SchemaType
    created_us: int
    deleted: bool = False


class SubjectDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subject and its versions, the oldest first."""

    subject: str
    compatibility: CompatibilityLevel
    """That which counts for it."""
    mode: RegistryMode
    versions: list[SubjectVersion]


class SubjectPage(msgspec.Struct, frozen=True, kw_only=True):
    subjects: list[SubjectDescription]
    """Each with its newest version only."""
    next: str | None
    """The `after` of the next page; null: that was all."""


class CompatibilityReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a schema could be registered."""

    compatible: bool
    level: CompatibilityLevel
    problems: list[Incompatibility]


class SchemaIds(msgspec.Struct, frozen=True, kw_only=True):
    ids: list[int]


class DeletedVersions(msgspec.Struct, frozen=True, kw_only=True):
    versions: list[int]


class SchemaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What counts for a subject or, without one, for those that have nothing of their own."""

    compatibility: CompatibilityLevel
    mode: RegistryMode
    own_compatibility: CompatibilityLevel | None
    """What was set for just this subject, or for the namespace."""
    own_mode: RegistryMode | None


def subject_name(name: str) -> str:
    """Raises InvalidInput."""
    if not isinstance(name, str) or not _SUBJECT.fullmatch(name):
        raise InvalidInput(
            f"subject name {name!r:.100} is not allowed; it is made of letters, digits, '.', '_', "
            "'-', ':', '~', '@', '+', '$'; 255 at most"
        )
    return name


def version_number(version: str | int) -> int | None:
    """None: the newest. Raises InvalidInput."""
    text = str(version)
    if text in ("latest", "-1"):
        return None
    if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0:
        return int(text)
    raise InvalidInput(f"version is {text!r:.100}; it is a number from 1 up, or 'latest'")
