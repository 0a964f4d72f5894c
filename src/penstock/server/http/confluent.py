"""The registry of schemas as Confluent's clients ask for it, at `/schema-registry`.

Their serializers and `SchemaRegistryClient` work unmodified, with the key as a bearer token or as
the password of Basic. It translates to the calls of the API and back, and says errors by the
numbers that these clients know. Subjects are those of the namespace in the path, by default
"default".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, get_args

import msgspec

from penstock.errors import (
    InvalidInput,
    InvalidSchema,
    PenstockError,
    RegistryReadOnly,
    SchemaIncompatible,
    SchemaNotFound,
    SchemaReferenced,
    SchemaVersionNotFound,
    SubjectNotDeleted,
    SubjectNotFound,
)
from penstock.model import calls
from penstock.model.calls import Call, Right
from penstock.model.problem import problem_of
from penstock.model.schemas import RegisteredSchema, version_number
from penstock.schema.definition import (
    CompatibilityLevel,
    RegistryMode,
    SchemaReference,
    SchemaType,
)
from penstock.server.http.answers import JSON_TYPE, Answer
from penstock.server.http.endpoints import Endpoint, HttpRequest

PREFIX = "/schema-registry"
DIALECT_TYPE = "application/vnd.schemaregistry.v1+json"
_BODY_TYPES = (DIALECT_TYPE, "application/vnd.schemaregistry+json", "application/octet-stream")

_TYPES: dict[str, SchemaType] = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
_LEVELS = [level.upper() for level in get_args(CompatibilityLevel)]
_MODES = [mode.upper() for mode in get_args(RegistryMode)]

_ERRORS: dict[type[PenstockError], tuple[int, int]] = {
    SubjectNotFound: (404, 40401),
    SchemaVersionNotFound: (404, 40402),
    SchemaNotFound: (404, 40403),
    SubjectNotDeleted: (404, 40405),
    SchemaIncompatible: (409, 409),
    InvalidSchema: (422, 42201),
    RegistryReadOnly: (422, 42205),
    SchemaReferenced: (422, 42206),
}
_INVALID_VERSION, _INVALID_LEVEL, _INVALID_MODE = 42202, 42203, 42204
_NO_LEVEL, _NO_MODE = 40408, 40409


class DialectOptions(msgspec.Struct, frozen=True, rename="camel"):
    """What may stand in a query; clients send more, which means nothing here."""

    deleted: bool = False
    permanent: bool = False
    verbose: bool = False
    force: bool = False
    default_to_global: bool = False
    format: str = ""
    subject: str = ""
    subject_prefix: str = ""


class DialectReference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


class DialectSchema(msgspec.Struct, frozen=True, rename="camel"):
    schema: str
    schema_type: str | None = None
    references: list[DialectReference] | None = None
    id: int | None = None
    version: int | None = None


class DialectLevel(msgspec.Struct, frozen=True):
    compatibility: str | None = None


class DialectMode(msgspec.Struct, frozen=True):
    mode: str | None = None


class _Refused(Exception):
    """An answer by the numbers of the dialect."""

    def __init__(self, status: int, number: int, message: str) -> None:
        self.status = status
        self.number = number
        self.message = message


class _Asked(NamedTuple):
    """One request, taken apart."""

    http: HttpRequest
    parts: dict[str, str]

    @property
    def options(self) -> DialectOptions:
        options: DialectOptions = self.http.options
        return options

    @property
    def subject(self) -> str:
        return self.parts["subject"]

    @property
    def version(self) -> str:
        """As the API takes it."""
        text = self.parts["version"]
        try:
            version_number(text)
        except InvalidInput as exc:
            raise _Refused(422, _INVALID_VERSION, str(exc)) from None
        return text

    async def ask(
        self, kind: Callable[..., Call[Any]], right: Right = "describe", **fields: Any
    ) -> Any:
        self.http.check(right, self.http.namespace)
        call = kind(namespace=self.http.namespace, **fields)
        return await self.http.door.aside(self.http.api.ask, call)

    def body(self, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(self.http.request.body or b"{}", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise _Refused(422, 422, f"body: {exc}") from None

    def schema(self) -> dict[str, Any]:
        """The fields of a call that bring a schema."""
        given: DialectSchema = self.body(DialectSchema)
        kind = (given.schema_type or "AVRO").upper()
        if kind not in _TYPES:
            raise _Refused(422, 42201, f"schemaType is {kind:.100}; known: {', '.join(_TYPES)}")
        references = [
            SchemaReference(name=each.name, subject=each.subject, version=each.version)
            for each in given.references or ()
        ]
        found = {"schema": given.schema, "type": _TYPES[kind], "references": references}
        return {"subject": self.subject, **found}


_Handler = Callable[[_Asked], Awaitable[Any]]
_ROUTES: list[tuple[str, re.Pattern[str], _Handler]] = []


def _route(method: str, path: str) -> Callable[[_Handler], _Handler]:
    pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))

    def note(handler: _Handler) -> _Handler:
        _ROUTES.append((method, pattern, handler))
        return handler

    return note


async def handle(call: HttpRequest) -> Answer:
    """Anything below the prefix."""
    rest = call.parameters["rest"].rstrip("/")
    try:
        for method, pattern, handler in _ROUTES:
            found = pattern.fullmatch(rest) if method == call.request.method else None
            if found is not None:
                return _answer(200, await handler(_Asked(call, found.groupdict())))
        raise _Refused(404, 404, f"there is nothing at {call.request.path:.200}")
    except _Refused as exc:
        return _answer(exc.status, {"error_code": exc.number, "message": exc.message})
    except PenstockError as exc:
        for kind, (status, number) in _ERRORS.items():
            if isinstance(exc, kind):
                return _answer(status, {"error_code": number, "message": str(exc)})
        problem = problem_of(exc)
        status = 422 if problem.status == 400 else problem.status
        return _answer(status, {"error_code": status, "message": problem.detail})


ENDPOINTS = {
    method: Endpoint(
        name="confluent_schema_registry",
        method=method,
        path=PREFIX,
        handler=handle,
        right="describe",
        tag="schemas",
        summary="The registry of schemas as Confluent's clients ask for it.",
        options=DialectOptions,
        no_options=DialectOptions(),
        body=msgspec.Raw if method in ("POST", "PUT") else None,
        body_schema=None,
        body_optional=True,
        items_in=0,
        other_bodies=_BODY_TYPES,
        result=None,
        result_types=(JSON_TYPE,),
        status=200,
        in_namespaces=True,
    )
    for method in ("GET", "POST", "PUT", "DELETE")
}


# Schemas.


@_route("GET", "")
async def root(asked: _Asked) -> Any:
    return {}


@_route("GET", "/schemas/types")
async def types(asked: _Asked) -> Any:
    return list(_TYPES)


@_route("GET", "/contexts")
async def contexts(asked: _Asked) -> Any:
    return ["."]


@_route("GET", "/associations/.*")
async def associations(asked: _Asked) -> Any:
    raise _Refused(404, 404, "there are no associations; subjects are named after topics")


@_route("GET", "/schemas/ids/{id}")
async def by_id(asked: _Asked) -> Any:
    return _shown(await _by_id(asked), asked.options, subject=False)


@_route("GET", "/schemas/ids/{id}/schema")
async def text_by_id(asked: _Asked) -> Any:
    return _text(await _by_id(asked), asked.options)


@_route("GET", "/schemas/ids/{id}/versions")
async def versions_by_id(asked: _Asked) -> Any:
    return (await _by_id(asked)).places


@_route("GET", "/schemas/ids/{id}/subjects")
async def subjects_by_id(asked: _Asked) -> Any:
    return sorted({place.subject for place in (await _by_id(asked)).places})


@_route("GET", "/schemas/guids/{guid}")
async def by_guid(asked: _Asked) -> Any:
    found = await asked.ask(calls.GetSchemaByGuid, guid=asked.parts["guid"])
    return _shown(found, asked.options, subject=False)


async def _by_id(asked: _Asked) -> Any:
    text = asked.parts["id"]
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise _Refused(404, 40403, f"there is no schema {text:.100}")
    return await asked.ask(calls.GetSchemaById, id=int(text), deleted=asked.options.deleted)


# Subjects.


@_route("GET", "/subjects")
async def subjects(asked: _Asked) -> Any:
    prefix = asked.options.subject_prefix.removeprefix(":*:")
    found: list[str] = []
    after: str | None = None
    while True:
        page = await asked.ask(
            calls.ListSubjects,
            prefix=prefix,
            deleted=asked.options.deleted,
            after=after,
            limit=10_000,
        )
        found += [each.subject for each in page.subjects]
        after = page.next
        if after is None:
            return found


@_route("POST", "/subjects/{subject}")
async def lookup(asked: _Asked) -> Any:
    found = await asked.ask(calls.FindSchema, **asked.schema(), deleted=asked.options.deleted)
    return _shown(found, asked.options)


@_route("DELETE", "/subjects/{subject}")
async def delete_subject(asked: _Asked) -> Any:
    found = await asked.ask(
        calls.DeleteSubject, "manage", subject=asked.subject, permanent=asked.options.permanent
    )
    return found.versions


@_route("GET", "/subjects/{subject}/versions")
async def versions(asked: _Asked) -> Any:
    found = await asked.ask(
        calls.DescribeSubject, subject=asked.subject, deleted=asked.options.deleted
    )
    return [each.version for each in found.versions]


@_route("POST", "/subjects/{subject}/versions")
async def register(asked: _Asked) -> Any:
    given: DialectSchema = asked.body(DialectSchema)
    chosen = None if given.id in (None, -1, 0) else given.id
    version = None if given.version in (None, -1, 0) or chosen is None else given.version
    found = await asked.ask(
        calls.RegisterSchema, "publish", **asked.schema(), id=chosen, version=version
    )
    # Without the schema: a client would remember another form of it than it asks for later.
    return {"id": found.id, "guid": found.guid, "version": found.version}


@_route("GET", "/subjects/{subject}/versions/{version}")
async def version(asked: _Asked) -> Any:
    return _shown(await _version(asked), asked.options)


@_route("GET", "/subjects/{subject}/versions/{version}/schema")
async def text_of_version(asked: _Asked) -> Any:
    return _text(await _version(asked), asked.options)


@_route("GET", "/subjects/{subject}/versions/{version}/referencedby")
async def referenced_by(asked: _Asked) -> Any:
    found = await asked.ask(
        calls.ListSchemaReferences, subject=asked.subject, version=asked.version
    )
    return found.ids


@_route("DELETE", "/subjects/{subject}/versions/{version}")
async def delete_version(asked: _Asked) -> Any:
    found = await asked.ask(
        calls.DeleteSchemaVersion,
        "manage",
        subject=asked.subject,
        version=asked.version,
        permanent=asked.options.permanent,
    )
    return found.versions[0]


async def _version(asked: _Asked) -> Any:
    return await asked.ask(
        calls.GetSchema,
        subject=asked.subject,
        version=asked.version,
        deleted=asked.options.deleted,
    )


# Compatibility and mode.


@_route("POST", "/compatibility/subjects/{subject}/versions/{version}")
async def check_with_version(asked: _Asked) -> Any:
    found = await asked.ask(calls.CheckSchema, **asked.schema(), version=asked.version)
    return _report(found, asked.options)


@_route("POST", "/compatibility/subjects/{subject}/versions")
async def check_with_all(asked: _Asked) -> Any:
    return _report(await asked.ask(calls.CheckSchema, **asked.schema()), asked.options)


@_route("GET", "/config")
async def level(asked: _Asked) -> Any:
    found = await asked.ask(calls.GetSchemaSettings)
    return {"compatibilityLevel": found.compatibility.upper()}


@_route("GET", "/config/{subject}")
async def level_of_subject(asked: _Asked) -> Any:
    found = await asked.ask(calls.GetSchemaSettings, subject=asked.subject)
    if found.own_compatibility is None and not asked.options.default_to_global:
        raise _Refused(404, _NO_LEVEL, f"subject {asked.subject!r} has no level of its own")
    return {"compatibilityLevel": found.compatibility.upper()}


@_route("PUT", "/config")
@_route("PUT", "/config/{subject}")
async def set_level(asked: _Asked) -> Any:
    given = (asked.body(DialectLevel).compatibility or "").upper()
    if given not in _LEVELS:
        raise _Refused(422, _INVALID_LEVEL, f"compatibility is one of {', '.join(_LEVELS)}")
    await asked.ask(
        calls.SetSchemaCompatibility,
        "manage",
        subject=asked.parts.get("subject"),
        level=given.lower(),
    )
    return {"compatibility": given}


@_route("DELETE", "/config")
@_route("DELETE", "/config/{subject}")
async def delete_level(asked: _Asked) -> Any:
    subject = asked.parts.get("subject")
    before = await asked.ask(calls.GetSchemaSettings, subject=subject)
    await asked.ask(calls.SetSchemaCompatibility, "manage", subject=subject)
    return {"compatibilityLevel": before.compatibility.upper()}


@_route("GET", "/mode")
async def mode(asked: _Asked) -> Any:
    return {"mode": (await asked.ask(calls.GetSchemaSettings)).mode.upper()}


@_route("GET", "/mode/{subject}")
async def mode_of_subject(asked: _Asked) -> Any:
    found = await asked.ask(calls.GetSchemaSettings, subject=asked.subject)
    if found.own_mode is None and not asked.options.default_to_global:
        raise _Refused(404, _NO_MODE, f"subject {asked.subject!r} has no mode of its own")
    return {"mode": found.mode.upper()}


@_route("PUT", "/mode")
@_route("PUT", "/mode/{subject}")
async def set_mode(asked: _Asked) -> Any:
    given = (asked.body(DialectMode).mode or "").upper()
    if given not in _MODES:
        raise _Refused(422, _INVALID_MODE, f"mode is one of {', '.join(_MODES)}")
    await asked.ask(
        calls.SetSchemaMode,
        "manage",
        subject=asked.parts.get("subject"),
        mode=given.lower(),
        force=asked.options.force,
    )
    return {"mode": given}


@_route("DELETE", "/mode/{subject}")
async def delete_mode(asked: _Asked) -> Any:
    before = await asked.ask(calls.GetSchemaSettings, subject=asked.subject)
    await asked.ask(calls.SetSchemaMode, "manage", subject=asked.subject)
    return {"mode": before.mode.upper()}


def _report(found: Any, options: DialectOptions) -> dict[str, Any]:
    answer: dict[str, Any] = {"is_compatible": found.compatible}
    if options.verbose:
        answer["messages"] = [
            f"{each.path}: {each.message} ({each.rule}, version {each.version})"
            for each in found.problems
        ]
    return answer


def _shown(found: RegisteredSchema, options: DialectOptions, *, subject: bool = True) -> Any:
    answer: dict[str, Any] = {"id": found.id, "guid": found.guid}
    if subject:
        answer |= {"subject": found.subject, "version": found.version}
    if found.type != "avro":
        answer["schemaType"] = found.type.upper()
    if found.references:
        answer["references"] = found.references
    return {**answer, "schema": _text(found, options)}


def _text(found: RegisteredSchema, options: DialectOptions) -> str:
    """Protobuf as text or, if that is asked for, as its descriptor."""
    if found.type == "protobuf" and options.format == "serialized":
        return base64.b64encode(found.compiled or b"").decode()
    return found.schema


def _answer(status: int, found: Any) -> Answer:
    return Answer(status, DIALECT_TYPE, msgspec.json.encode(found))
