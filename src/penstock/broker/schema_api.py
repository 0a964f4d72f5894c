"""The calls of the API that are about schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.api_part import ApiPart, namespace_of
from penstock.broker.schemas import GivenSchema, SchemaRegistry
from penstock.errors import InvalidInput, SchemaNotFound
from penstock.model import calls
from penstock.model.schemas import (
    CompatibilityReport,
    DeletedVersions,
    RegisteredSchema,
    SchemaById,
    SchemaIds,
    SchemaPlace,
    SchemaSettings,
    SubjectDescription,
    SubjectPage,
    SubjectVersion,
    subject_name,
    version_number,
)
from penstock.schema.registry import SubjectState, VersionRecord, plain_references

if TYPE_CHECKING:
    pass


class SchemaApi(ApiPart):
    """Schemas, as doors see them."""

    @property
    def _registry(self) -> SchemaRegistry:
        return self._broker.schemas

    def list_subjects(self, call: calls.ListSubjects) -> SubjectPage:
        namespace = namespace_of(call)
        found = sorted(
            name
            for (where, name), state in self._registry.state.subjects.copy().items()
            if where == namespace
            and name.startswith(call.prefix)
            and (call.after is None or name > call.after)
            and state.live(deleted=call.deleted)
        )
        shown = found[: call.limit]
        return SubjectPage(
            subjects=[self._subject(namespace, name, call.deleted, newest=True) for name in shown],
            next=shown[-1] if len(found) > len(shown) else None,
        )

    def describe_subject(self, call: calls.DescribeSubject) -> SubjectDescription:
        return self._subject(namespace_of(call), subject_name(call.subject), call.deleted)

    def register_schema(self, call: calls.RegisterSchema) -> RegisteredSchema:
        namespace = namespace_of(call)
        version = self._registry.register(
            namespace, call.subject, _given(call), id_=call.id, version=call.version
        )
        return self._version(namespace, call.subject, version)

    def find_schema(self, call: calls.FindSchema) -> RegisteredSchema:
        namespace = namespace_of(call)
        given = _given(call)
        _, version = self._registry.find(namespace, call.subject, given, deleted=call.deleted)
        if version is None:
            raise SchemaNotFound(f"like this under subject {call.subject!r}")
        return self._version(namespace, call.subject, version)

    def check_schema(self, call: calls.CheckSchema) -> CompatibilityReport:
        namespace = namespace_of(call)
        number = None if call.version is None else version_number(call.version)
        problems = self._registry.check(
            namespace, call.subject, _given(call), number, every=call.version is None
        )
        return CompatibilityReport(
            compatible=not problems,
            level=self._registry.state.level(namespace, call.subject),
            problems=problems,
        )

    def get_schema(self, call: calls.GetSchema) -> RegisteredSchema:
        namespace = namespace_of(call)
        number = version_number(call.version)
        state = self._registry.state
        found = state.version(namespace, subject_name(call.subject), number, deleted=call.deleted)
        return self._version(namespace, call.subject, found)

    def get_schema_by_id(self, call: calls.GetSchemaById) -> SchemaById:
        namespace, state = namespace_of(call), self._registry.state
        record = state.schema(namespace, call.id)
        return SchemaById(
            id=record.id,
            type=record.type,
            schema=record.text,
            references=plain_references(record),
            compiled=record.compiled or None,
            guid=_guid(record.fingerprint),
            places=[
                SchemaPlace(subject=subject, version=version)
                for subject, version in state.places(record.id, namespace, deleted=call.deleted)
            ],
        )

    def get_schema_by_guid(self, call: calls.GetSchemaByGuid) -> SchemaById:
        namespace = namespace_of(call)
        try:
            guid = bytes.fromhex(call.guid.replace("-", ""))
        except ValueError:
            raise InvalidInput(f"{call.guid!r:.100} is no GUID") from None
        record = self._registry.state.by_guid(namespace, guid)
        return self.get_schema_by_id(calls.GetSchemaById(namespace=namespace, id=record.id))

    def list_schema_references(self, call: calls.ListSchemaReferences) -> SchemaIds:
        namespace, state = namespace_of(call), self._registry.state
        found = state.version(
            namespace, subject_name(call.subject), version_number(call.version), deleted=True
        )
        return SchemaIds(ids=state.referrers(namespace, call.subject, found.version))

    def delete_subject(self, call: calls.DeleteSubject) -> DeletedVersions:
        versions = self._registry.delete(
            namespace_of(call), subject_name(call.subject), None, permanent=call.permanent
        )
        return DeletedVersions(versions=versions)

    def delete_schema_version(self, call: calls.DeleteSchemaVersion) -> DeletedVersions:
        namespace, state = namespace_of(call), self._registry.state
        number = version_number(call.version)
        if number is None:
            number = state.version(namespace, call.subject, None, deleted=call.permanent).version
        versions = self._registry.delete(
            namespace, subject_name(call.subject), number, permanent=call.permanent
        )
        return DeletedVersions(versions=versions)

    def get_schema_settings(self, call: calls.GetSchemaSettings) -> SchemaSettings:
        namespace, state = namespace_of(call), self._registry.state
        return SchemaSettings(
            compatibility=state.level(namespace, call.subject),
            mode=state.mode(namespace, call.subject),
            own_compatibility=state.given_level(namespace, call.subject),
            own_mode=state.given_mode(namespace, call.subject),
        )

    def set_schema_compatibility(self, call: calls.SetSchemaCompatibility) -> SchemaSettings:
        self._registry.set_level(namespace_of(call), call.subject, call.level)
        return self._settings(call)

    def set_schema_mode(self, call: calls.SetSchemaMode) -> SchemaSettings:
        self._registry.set_mode(namespace_of(call), call.subject, call.mode, force=call.force)
        return self._settings(call)

    def _settings(self, call: calls.SetSchemaCompatibility | calls.SetSchemaMode) -> SchemaSettings:
        asked = calls.GetSchemaSettings(namespace=call.namespace, subject=call.subject)
        return self.get_schema_settings(asked)

    def _subject(
        self, namespace: str, name: str, deleted: bool, *, newest: bool = False
    ) -> SubjectDescription:
        state = self._registry.state
        found: SubjectState = state.subject(namespace, name, deleted=deleted)
        versions = found.live(deleted=deleted)
        return SubjectDescription(
            subject=name,
            compatibility=state.level(namespace, name),
            mode=state.mode(namespace, name),
            versions=[
                SubjectVersion(
                    version=each.version,
                    id=each.id,
                    type=state.schemas[each.id].type,
                    created_us=each.created_us,
                    deleted=each.deleted,
                )
                for each in (versions[-1:] if newest else versions)
            ],
        )

    def _version(self, namespace: str, subject: str, version: VersionRecord) -> RegisteredSchema:
        record = self._registry.state.schema(namespace, version.id)
        return RegisteredSchema(
            id=record.id,
            type=record.type,
            schema=record.text,
            references=plain_references(record),
            compiled=record.compiled or None,
            guid=_guid(record.fingerprint),
            subject=subject,
            version=version.version,
            created_us=version.created_us,
            deleted=version.deleted,
        )


def _given(call: calls.RegisterSchema | calls.FindSchema | calls.CheckSchema) -> GivenSchema:
    subject_name(call.subject)
    return GivenSchema(call.type, call.schema, call.references)


def _guid(fingerprint: bytes) -> str:
    text = fingerprint.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
