"""The registry of schemas: `ps.schemas`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.client.base import AsyncCalls, SyncCalls
from penstock.errors import InvalidInput
from penstock.model import calls
from penstock.model.schemas import (
    CompatibilityReport,
    RegisteredSchema,
    SchemaById,
    SchemaSettings,
    SubjectDescription,
    SubjectPage,
)
from penstock.schema.definition import (
    CompatibilityLevel,
    RegistryMode,
    SchemaReference,
    SchemaType,
)

SchemaGiven = str | bytes | dict[str, Any] | list[Any] | bool
"""A schema as text or, of those that are JSON, as what it says."""
ReferenceGiven = SchemaReference | tuple[str, str, int]
"""The name that a schema has for another one, and the subject and version of that."""

_PAGE = 1000


class _SchemaRequests:
    """The calls, for threads and event loops."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def _register(
        self,
        subject: str,
        schema: SchemaGiven,
        type: SchemaType,
        references: Sequence[ReferenceGiven],
        id: int | None,
        version: int | None,
    ) -> calls.RegisterSchema:
        given = self._given(subject, schema, type, references)
        return calls.RegisterSchema(**given, id=id, version=version)

    def _given(
        self,
        subject: str,
        schema: SchemaGiven,
        type: SchemaType,
        references: Sequence[ReferenceGiven],
    ) -> dict[str, Any]:
        return {
            "namespace": self._namespace,
            "subject": subject,
            "schema": _text(schema),
            "type": type,
            "references": [_reference(each) for each in references],
        }

    def _get(self, subject: str, version: int | str) -> calls.GetSchema:
        return calls.GetSchema(namespace=self._namespace, subject=subject, version=str(version))

    def _page(self, prefix: str, deleted: bool, after: str | None) -> calls.ListSubjects:
        return calls.ListSubjects(
            namespace=self._namespace, prefix=prefix, deleted=deleted, after=after, limit=_PAGE
        )

    def _check(
        self,
        subject: str,
        schema: SchemaGiven,
        type: SchemaType,
        references: Sequence[ReferenceGiven],
        version: int | str | None,
    ) -> calls.CheckSchema:
        return calls.CheckSchema(
            **self._given(subject, schema, type, references),
            version=None if version is None else str(version),
        )

    def _delete_version(
        self, subject: str, version: int | str, permanent: bool
    ) -> calls.DeleteSchemaVersion:
        return calls.DeleteSchemaVersion(
            namespace=self._namespace, subject=subject, version=str(version), permanent=permanent
        )


class Schemas(_SchemaRequests):
    """The registry of schemas of a namespace."""

    def __init__(self, client: SyncCalls) -> None:
        super().__init__(client._namespace)
        self._ask = client._ask

    def register(
        self,
        subject: str,
        schema: SchemaGiven,
        type: SchemaType = "json",
        references: Sequence[ReferenceGiven] = (),
        *,
        id: int | None = None,
        version: int | None = None,
    ) -> RegisteredSchema:
        """Make a schema the next version of a subject, unless it is a version already.

        `type`: "json", "avro" or "protobuf". `references`: the name that the schema has for another
        one, and the subject and version of that. It has to be compatible with those that are there,
        as `compatibility` says: otherwise SchemaIncompatible tells what is in the way. `id` and
        `version` are for the mode "import".
        """
        return self._ask(self._register(subject, schema, type, references, id, version))

    def get(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        """A version of a subject. Raises SubjectNotFound or SchemaVersionNotFound."""
        return self._ask(self._get(subject, version))

    def get_by_id(self, id: int) -> SchemaById:
        """The schema whose id a message begins with. Raises SchemaNotFound."""
        return self._ask(calls.GetSchemaById(namespace=self._namespace, id=id))

    def find(
        self,
        subject: str,
        schema: SchemaGiven,
        type: SchemaType = "json",
        references: Sequence[ReferenceGiven] = (),
    ) -> RegisteredSchema:
        """Which version of a subject a schema is. Raises SchemaNotFound."""
        return self._ask(calls.FindSchema(**self._given(subject, schema, type, references)))

    def check(
        self,
        subject: str,
        schema: SchemaGiven,
        type: SchemaType = "json",
        references: Sequence[ReferenceGiven] = (),
        *,
        version: int | str | None = None,
    ) -> CompatibilityReport:
        """Whether a schema could be the next version of a subject, and what is in the way; with
        `version` compared with that one only."""
        return self._ask(self._check(subject, schema, type, references, version))

    def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[SubjectDescription]:
        """By name, each with its newest version."""
        found: list[SubjectDescription] = []
        after: str | None = None
        while True:
            page: SubjectPage = self._ask(self._page(prefix, deleted, after))
            found += page.subjects
            after = page.next
            if after is None:
                return found

    def describe(self, subject: str, *, deleted: bool = False) -> SubjectDescription:
        """A subject with all its versions. Raises SubjectNotFound."""
        return self._ask(
            calls.DescribeSubject(namespace=self._namespace, subject=subject, deleted=deleted)
        )

    def versions(self, subject: str) -> list[int]:
        """The numbers of the versions of a subject."""
        return [each.version for each in self.describe(subject).versions]

    def delete(
        self, subject: str, version: int | str | None = None, *, permanent: bool = False
    ) -> list[int]:
        """Delete a version or, without one, all; which they were. Their ids stay known.
        `permanent`: for ever, what was deleted before."""
        if version is not None:
            return self._ask(self._delete_version(subject, version, permanent)).versions
        call = calls.DeleteSubject(namespace=self._namespace, subject=subject, permanent=permanent)
        return self._ask(call).versions

    def settings(self, subject: str | None = None) -> SchemaSettings:
        """The compatibility and the mode that count for a subject or, without one, by default."""
        return self._ask(calls.GetSchemaSettings(namespace=self._namespace, subject=subject))

    def set_compatibility(
        self, level: CompatibilityLevel | None, subject: str | None = None
    ) -> SchemaSettings:
        """Of a subject or, without one, of those that have no level of their own. None: that of
        the namespace again, or "backward"."""
        return self._ask(
            calls.SetSchemaCompatibility(namespace=self._namespace, subject=subject, level=level)
        )

    def set_mode(
        self, mode: RegistryMode | None, subject: str | None = None, *, force: bool = False
    ) -> SchemaSettings:
        """ "readwrite", "readonly" or "import", in which ids are given; `force`: although there are
        versions."""
        return self._ask(
            calls.SetSchemaMode(namespace=self._namespace, subject=subject, mode=mode, force=force)
        )


class AsyncSchemas(_SchemaRequests):
    """The registry of schemas of a namespace."""

    def __init__(self, client: AsyncCalls) -> None:
        super().__init__(client._namespace)
        self._ask = client._ask

    async def register(
        self,
        subject: str,
        schema: SchemaGiven,
        type: SchemaType = "json",
        references: Sequence[ReferenceGiven] = (),
        *,
        id: int | None = None,
        version: int | None = None,
    ) -> RegisteredSchema:
        """Make a schema the next version of a subject, unless it is a version already.

        `type`: "json", "avro" or "protobuf". `references`: the name that the schema has for another
        one, and the subject and version of that. It has to be compatible with those that are there,
        as `compatibility` says: otherwise SchemaIncompatible tells what is in the way. `id` and
        `version` are for the mode "import".
        """
        return await self._ask(self._register(subject, schema, type, references, id, version))

    async def get(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        """A version of a subject. Raises SubjectNotFound or SchemaVersionNotFound."""
        return await self._ask(self._get(subject, version))

    async def get_by_id(self, id: int) -> SchemaById:
        """The schema whose id a message begins with. Raises SchemaNotFound."""
        return await self._ask(calls.GetSchemaById(namespace=self._namespace, id=id))

    async def find(
        self,
        subject: str,
        schema: SchemaGiven,
        type: SchemaType = "json",
        references: Sequence[ReferenceGiven] = (),
    ) -> RegisteredSchema:
        """Which version of a subject a schema is. Raises SchemaNotFound."""
        return await self._ask(calls.FindSchema(**self._given(subject, schema, type, references)))

    async def check(
        self,
        subject: str,
        schema: SchemaGiven,
        type: SchemaType = "json",
        references: Sequence[ReferenceGiven] = (),
        *,
        version: int | str | None = None,
    ) -> CompatibilityReport:
        """Whether a schema could be the next version of a subject, and what is in the way; with
        `version` compared with that one only."""
        return await self._ask(self._check(subject, schema, type, references, version))

    async def subjects(
        self, prefix: str = "", *, deleted: bool = False
    ) -> list[SubjectDescription]:
        """By name, each with its newest version."""
        found: list[SubjectDescription] = []
        after: str | None = None
        while True:
            page: SubjectPage = await self._ask(self._page(prefix, deleted, after))
            found += page.subjects
            after = page.next
            if after is None:
                return found

    async def describe(self, subject: str, *, deleted: bool = False) -> SubjectDescription:
        """A subject with all its versions. Raises SubjectNotFound."""
        return await self._ask(
            calls.DescribeSubject(namespace=self._namespace, subject=subject, deleted=deleted)
        )

    async def versions(self, subject: str) -> list[int]:
        """The numbers of the versions of a subject."""
        return [each.version for each in (await self.describe(subject)).versions]

    async def delete(
        self, subject: str, version: int | str | None = None, *, permanent: bool = False
    ) -> list[int]:
        """Delete a version or, without one, all; which they were. Their ids stay known.
        `permanent`: for ever, what was deleted before."""
        if version is not None:
            return (await self._ask(self._delete_version(subject, version, permanent))).versions
        call = calls.DeleteSubject(namespace=self._namespace, subject=subject, permanent=permanent)
        return (await self._ask(call)).versions

    async def settings(self, subject: str | None = None) -> SchemaSettings:
        """The compatibility and the mode that count for a subject or, without one, by default."""
        return await self._ask(calls.GetSchemaSettings(namespace=self._namespace, subject=subject))

    async def set_compatibility(
        self, level: CompatibilityLevel | None, subject: str | None = None
    ) -> SchemaSettings:
        """Of a subject or, without one, of those that have no level of their own. None: that of
        the namespace again, or "backward"."""
        return await self._ask(
            calls.SetSchemaCompatibility(namespace=self._namespace, subject=subject, level=level)
        )

    async def set_mode(
        self, mode: RegistryMode | None, subject: str | None = None, *, force: bool = False
    ) -> SchemaSettings:
        """ "readwrite", "readonly" or "import", in which ids are given; `force`: although there are
        versions."""
        return await self._ask(
            calls.SetSchemaMode(namespace=self._namespace, subject=subject, mode=mode, force=force)
        )


class SchemaTheme(SyncCalls):
    @property
    def schemas(self) -> Schemas:
        """The registry of schemas of the namespace."""
        return Schemas(self)


class AsyncSchemaTheme(AsyncCalls):
    @property
    def schemas(self) -> AsyncSchemas:
        """The registry of schemas of the namespace."""
        return AsyncSchemas(self)


def _text(schema: SchemaGiven) -> str:
    if isinstance(schema, str):
        return schema
    if isinstance(schema, bytes):
        return schema.decode()
    try:
        return msgspec.json.encode(schema).decode()
    except TypeError as exc:
        raise InvalidInput(f"a schema is text, or what its JSON says: {exc}") from None


def _reference(given: ReferenceGiven) -> SchemaReference:
    if isinstance(given, SchemaReference):
        return given
    name, subject, version = given
    return SchemaReference(name=name, subject=subject, version=version)
