"""The OpenAPI 3.1 description, made from the structs that parse the requests."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import UnionType
from typing import Any

import msgspec

from penstock import __version__
from penstock.model.names import TOPIC_PATTERN
from penstock.model.problem import PROBLEM_TYPE, Problem
from penstock.server.http.answers import JSON_TYPE
from penstock.server.http.endpoints import Endpoint, paths
from penstock.wire.columns import ARROW_TYPE

_REF = "#/components/schemas/{name}"
_BINARY = {"type": "string", "format": "binary"}

_TEXT = {"type": "string", "minLength": 1}
_PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    "namespace": {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,63}$"},
    "topic": {"type": "string", "pattern": rf"^{TOPIC_PATTERN}(\.dlq)?$"},
    "group": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
    "schedule": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
    "producer": {"type": "string", "minLength": 1, "maxLength": 256},
    "webhook": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
    "partition": {"type": "integer", "minimum": 0, "maximum": 9999},
    "place": {"type": "string", "pattern": "^[0-9]{1,4}-[0-9]{1,18}$"},
}


def describe(endpoints: list[Endpoint], root: str = "") -> bytes:
    """The whole description, as JSON. `root`: under which prefix it is all mounted."""
    types = list(dict.fromkeys(_types(endpoints)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    found = dict(zip(types, schemas, strict=True))
    _add_texts(types, components)
    described: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        for path in paths(endpoint):
            described.setdefault(path, {})[endpoint.method.lower()] = _operation(
                endpoint, path, found
            )
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Penstock",
                "version": __version__,
                "description": (
                    "A durable message queue. Errors are RFC 9457 problem details; their `code` "
                    "is stable. Where keys are in use, send one as `Authorization: Bearer <key>`."
                ),
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            **({"servers": [{"url": root}]} if root else {}),
            "paths": described,
            "components": {
                "schemas": components,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _types(endpoints: list[Endpoint]) -> Iterator[Any]:
    yield Problem
    for endpoint in endpoints:
        for kind in (endpoint.body_schema, endpoint.options, *_choices(endpoint.result)):
            if kind is not None:
                yield kind
        if endpoint.options is not None:
            for field in msgspec.structs.fields(endpoint.options):
                yield field.type


def _operation(endpoint: Endpoint, path: str, schemas: dict[Any, Any]) -> dict[str, Any]:
    in_namespace = "{namespace}" in path
    operation: dict[str, Any] = {
        "operationId": endpoint.name + ("_in_namespace" if in_namespace else ""),
        "tags": [endpoint.tag],
        "summary": endpoint.summary.partition(". ")[0].rstrip("."),
        "description": endpoint.summary,
        "parameters": [*_path_parameters(path), *_query_parameters(endpoint, schemas)],
        "responses": {
            str(endpoint.status): _success(endpoint, schemas),
            "default": {
                "description": "A problem",
                "content": {PROBLEM_TYPE: {"schema": schemas[Problem]}},
            },
        },
        # An empty requirement: as long as there is no key, none is asked for.
        "security": [] if endpoint.right is None else [{"key": []}, {}],
    }
    if endpoint.body is not None:
        content = {JSON_TYPE: {"schema": schemas[endpoint.body_schema]}}
        content |= {kind: {"schema": _BINARY} for kind in endpoint.other_bodies}
        operation["requestBody"] = {"required": not endpoint.body_optional, "content": content}
    if endpoint.right is not None:
        operation["x-right"] = endpoint.right
    return operation


def _success(endpoint: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    choices = [schemas[kind] for kind in _choices(endpoint.result)]
    if choices:
        content[JSON_TYPE] = {"schema": choices[0] if len(choices) == 1 else {"anyOf": choices}}
    for kind in endpoint.result_types:
        content[kind.partition(";")[0]] = {"schema": _BINARY if kind == ARROW_TYPE else {}}
    answer: dict[str, Any] = {"description": "Done"}
    return {**answer, "content": content} if content else answer


def _choices(result: Any) -> tuple[Any, ...]:
    """The kinds of an answer that may be one of several."""
    if result is None:
        return ()
    return result.__args__ if isinstance(result, UnionType) else (result,)


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", path):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _PATH_PARAMETERS.get(name, _TEXT),
        }


def _query_parameters(endpoint: Endpoint, schemas: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    if endpoint.options is None:
        return
    texts = _texts(endpoint.options)
    for field in msgspec.structs.fields(endpoint.options):
        schema = _without_null(schemas[field.type])
        if field.default is not msgspec.NODEFAULT and field.default is not None:
            schema = {**schema, "default": field.default}
        described = {
            "name": field.name,
            "in": "query",
            "required": field.required,
            "schema": schema,
        }
        if field.name in texts:
            described["description"] = texts[field.name]
        yield described


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: what is not given is left out."""
    choices = schema.get("anyOf")
    if choices is None:
        return schema
    left = [choice for choice in choices if choice != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**rest, **left[0]} if len(left) == 1 else {**rest, "anyOf": left}


def _add_texts(types: list[Any], components: dict[str, Any]) -> None:
    """The docstrings of fields, which only the source has."""
    pending = [kind for kind in types if isinstance(kind, type)]
    pending += [arg for kind in types for arg in getattr(kind, "__args__", ())]
    seen: set[Any] = set()
    while pending:
        kind = pending.pop()
        pending += [arg for arg in getattr(kind, "__args__", ()) if arg not in seen]
        if kind in seen or not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            continue
        seen.add(kind)
        properties = components.get(kind.__name__, {}).get("properties", {})
        for name, text in _texts(kind).items():
            if name in properties:
                properties[name] = {**properties[name], "description": text}
        pending += [field.type for field in msgspec.structs.fields(kind)]


def _texts(kind: type) -> dict[str, str]:
    """The docstrings of a struct's fields, or of those of the call that it was made from."""
    kind = getattr(kind, "described_by", kind)
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found |= _texts_of_module(base.__module__).get(base.__name__, {})
    return found


@cache
def _texts_of_module(name: str) -> dict[str, dict[str, str]]:
    """By class, the docstrings of fields. A module is read once: it takes a while."""
    try:
        source = inspect.getsource(import_module(name))
    except (OSError, TypeError):  # it was made, not written
        return {}
    return {
        node.name: dict(_texts_of_fields(node))
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


def _texts_of_fields(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    field = None
    for line in definition.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            field = line.target.id
        elif field is not None and isinstance(line, ast.Expr):
            yield field, " ".join(str(ast.literal_eval(line.value)).split())
            field = None
