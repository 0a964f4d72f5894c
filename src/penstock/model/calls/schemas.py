"""The registry of schemas."""

from __future__ import annotations

from typing import Annotated, Generic

import msgspec

from penstock.model.calls.base import Call, T_co, route
from penstock.model.schemas import (
    CompatibilityReport,
    DeletedVersions,
    RegisteredSchema,
    SchemaById,
    SchemaIds,
    SchemaSettings,
    SubjectDescription,
    SubjectPage,
)
from penstock.model.values import Small
from penstock.schema.definition import CompatibilityLevel, RegistryMode, SchemaReference, SchemaType


class SubjectCall(Call[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question about one subject of the registry of schemas."""

    subject: str


class SchemaCall(
    SubjectCall[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A question about a schema that comes with it."""

    schema: str
    """JSON Schema and Avro as JSON; Protobuf as .proto text, or a file descriptor in base64."""
    type: SchemaType = "json"
    references: list[SchemaReference] = []
    """Registered schemas that it refers to, each by the name that it has for it."""


@route("GET", "/schemas/subjects", "describe", SubjectPage, tag="schemas")
class ListSubjects(Call[SubjectPage], frozen=True, kw_only=True):
    """The subjects of a namespace by name, each with its newest version, page by page."""

    prefix: str = ""
    deleted: bool = False
    """Also what is deleted, but not permanently."""
    after: Annotated[str, msgspec.Meta(max_length=300)] | None = None
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000


@route("GET", "/schemas/subjects/{subject}", "describe", SubjectDescription, tag="schemas")
class DescribeSubject(SubjectCall[SubjectDescription], frozen=True, kw_only=True):
    """The versions of a subject, and the compatibility that new ones have to have."""

    deleted: bool = False
    """Also versions that are deleted, but not permanently."""


@route(
    "POST",
    "/schemas/subjects/{subject}/versions",
    "publish",
    RegisteredSchema,
    tag="schemas",
    repeatable=True,
)
class RegisterSchema(SchemaCall[RegisteredSchema], frozen=True, kw_only=True):
    """Make a schema the next version of a subject, unless it is a version already. It has to be
    compatible with those that are there."""

    id: int | None = None
    """In mode `import`: the id that the schema has elsewhere."""
    version: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] | None = None
    """In mode `import`: the version that it is elsewhere."""


@route(
    "POST",
    "/schemas/subjects/{subject}/lookup",
    "describe",
    RegisteredSchema,
    tag="schemas",
    repeatable=True,
)
class FindSchema(SchemaCall[RegisteredSchema], frozen=True, kw_only=True):
    """Which version of a subject a schema is."""

    deleted: bool = False


@route(
    "POST",
    "/schemas/subjects/{subject}/check",
    "describe",
    CompatibilityReport,
    tag="schemas",
    repeatable=True,
)
class CheckSchema(SchemaCall[CompatibilityReport], frozen=True, kw_only=True):
    """Whether a schema could be the next version of a subject, and what is in the way."""

    version: str | None = None
    """Compare with this version, or "latest"; by default with those that its level asks for."""


@route(
    "GET",
    "/schemas/subjects/{subject}/versions/{version}",
    "describe",
    RegisteredSchema,
    tag="schemas",
)
class GetSchema(SubjectCall[RegisteredSchema], frozen=True, kw_only=True):
    """A version of a subject: its number, or `latest`."""

    version: str
    deleted: bool = False


@route(
    "GET",
    "/schemas/subjects/{subject}/versions/{version}/referenced-by",
    "describe",
    SchemaIds,
    tag="schemas",
)
class ListSchemaReferences(SubjectCall[SchemaIds], frozen=True, kw_only=True):
    """The ids of the schemas that refer to a version."""

    version: str


@route("GET", "/schemas/ids/{id}", "describe", SchemaById, tag="schemas")
class GetSchemaById(Call[SchemaById], frozen=True, kw_only=True):
    """A schema by the id that messages begin with, and which versions are it."""

    id: Small
    deleted: bool = False
    """Also versions that are deleted, but not permanently."""


@route("GET", "/schemas/guids/{guid}", "describe", SchemaById, tag="schemas")
class GetSchemaByGuid(Call[SchemaById], frozen=True, kw_only=True):
    """A schema by its GUID, which it has in every registry."""

    guid: str


@route(
    "DELETE",
    "/schemas/subjects/{subject}",
    "manage",
    DeletedVersions,
    tag="schemas",
)
class DeleteSubject(SubjectCall[DeletedVersions], frozen=True, kw_only=True):
    """Delete all versions of a subject. Their ids stay known, so that messages can be read."""

    permanent: bool = False
    """Delete them permanently, with the schemas that no other version is: only what was deleted
    before."""


@route(
    "DELETE",
    "/schemas/subjects/{subject}/versions/{version}",
    "manage",
    DeletedVersions,
    tag="schemas",
)
class DeleteSchemaVersion(SubjectCall[DeletedVersions], frozen=True, kw_only=True):
    """Delete a version of a subject. Its id stays known, so that messages can be read."""

    version: str
    permanent: bool = False
    """Delete it permanently, with the schema if no other version is it: only what was deleted
    before."""


@route("GET", "/schemas/settings", "describe", SchemaSettings, tag="schemas")
class GetSchemaSettings(Call[SchemaSettings], frozen=True, kw_only=True):
    """The compatibility and the mode of a subject or, without one, of the namespace."""

    subject: str | None = None


@route("PUT", "/schemas/compatibility", "manage", SchemaSettings, tag="schemas", repeatable=True)
class SetSchemaCompatibility(Call[SchemaSettings], frozen=True, kw_only=True):
    """Which data new versions have to be able to read, or to be read by."""

    subject: str | None = None
    """By default all that have no level of their own."""
    level: CompatibilityLevel | None = None
    """Null: that of the namespace again, or `backward`."""


@route("PUT", "/schemas/mode", "manage", SchemaSettings, tag="schemas", repeatable=True)
class SetSchemaMode(Call[SchemaSettings], frozen=True, kw_only=True):
    """What may be done: `readwrite`, `readonly`, or `import`, where ids are given."""

    subject: str | None = None
    """By default all that have no mode of their own."""
    mode: RegistryMode | None = None
    """Null: that of the namespace again, or `readwrite`."""
    force: bool = False
    """`import` although there are versions."""
