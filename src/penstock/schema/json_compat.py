"""Whether one JSON Schema accepts every document that another one accepts.

The answer errs on the side of refusing: what cannot be decided by looking at keywords one by one,
such as a changed `not`, counts as incompatible. So a schema that passes reads all old data.

The writer's schema is kept as the list of its parts that all hold (`JsonResources.parts`): each
part can only narrow what is written, so that one part that satisfies the reader is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import jsonschema_rs

from penstock.schema.definition import Incompatibility, pointer
from penstock.schema.json_resources import JsonResources, Located
from penstock.schema.json_text import canonical_json

_Parts: TypeAlias = Sequence[Located]
_Path: TypeAlias = tuple[str, ...]

_COMPARED_MAX = 20_000
_PROBLEMS_MAX = 20
_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_CLOSE_IT = (
    "the older schema allows any property of that name, because it is open: close a schema with "
    '"additionalProperties": false before properties are added to it'
)
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_ABOUT = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"), "number"),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), "string"),
    **dict.fromkeys(("minItems", "maxItems", "uniqueItems", "contains", "minContains"), "array"),
    **dict.fromkeys(("maxContains", "unevaluatedItems"), "array"),
    **dict.fromkeys(("minProperties", "maxProperties", "propertyNames"), "object"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), "object"),
    "unevaluatedProperties": "object",
    "multipleOf": "number",
}
_EQUAL_ONLY = (
    "not",
    "if",
    "contains",
    "minContains",
    "maxContains",
    "pattern",
    "multipleOf",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
)
"""Keywords of a reader that the writer has to have, too, as they are."""
_BESIDE = {
    "if": ("if", "then", "else"),
    "contains": ("contains", "minContains", "maxContains"),
    "minContains": ("contains", "minContains"),
    "maxContains": ("contains", "maxContains"),
    "unevaluatedProperties": None,
    "unevaluatedItems": None,
}
"""What else has to be equal; None: all of the subschema."""


class _TooMuch(Exception):
    """The comparison takes too long."""


class JsonComparison:
    def __init__(self, reader: JsonResources, writer: JsonResources) -> None:
        self._reader = reader
        self._writer = writer
        self._under_way: set[tuple[int, tuple[int, ...]]] = set()
        self._compared = 0
        self._kept: list[Any] = []
        """Nodes that were made here: they are told apart by their ids while they live."""

    def problems(self) -> list[Incompatibility]:
        """Why the reader does not accept all that the writer does; empty: it does."""
        writer = self._writer.parts(self._writer.root)
        try:
            found = []
            for problem in self._accepts(self._reader.root, writer, ()):
                found.append(problem)
                if len(found) == _PROBLEMS_MAX:
                    break
            return found
        except (_TooMuch, RecursionError):
            return [_problem((), "TOO_COMPLEX", "the two schemas are too large to compare")]

    def _accepts(self, at: Located, writer: _Parts, path: _Path) -> Iterator[Incompatibility]:
        if any(part.node is False for part in writer):
            return
        for part in self._reader.parts(at):
            yield from self._accepts_part(part, writer, path)

    def _accepts_part(
        self, reader: Located, writer: _Parts, path: _Path
    ) -> Iterator[Incompatibility]:
        node = reader.node
        if node is True or node == {}:
            return
        if node is False:
            yield _problem(path, "REMOVED", "nothing is allowed there any more")
            return
        self._compared += 1
        if self._compared > _COMPARED_MAX:
            raise _TooMuch
        key = id(node), tuple(id(part.node) for part in writer)
        if key in self._under_way:  # of a recursive schema: so it was assumed one level up
            return
        self._under_way.add(key)
        try:
            cases = self._cases(writer)
            if cases is not None and not self._has_choice(reader, writer):
                for case in cases:
                    yield from self._accepts_part(reader, case, path)
                return
            yield from self._accepts_keywords(reader, writer, path)
        finally:
            self._under_way.discard(key)

    def _cases(self, writer: _Parts) -> list[_Parts] | None:
        """What a writer with a choice may write: each alternative with all the rest."""
        for number, part in enumerate(writer):
            for name in ("anyOf", "oneOf"):
                choices = part.node.get(name) if isinstance(part.node, dict) else None
                if isinstance(choices, list):
                    rest = {k: v for k, v in part.node.items() if k != name}
                    others = [*writer[:number], *writer[number + 1 :]]
                    if rest:
                        self._kept.append(rest)
                        others.append(Located(rest, part.base))
                    return [
                        [*others, *self._writer.parts(Located(choice, part.base))]
                        for choice in choices
                    ]
        return None

    def _has_choice(self, reader: Located, writer: _Parts) -> bool:
        """Whether a choice of the reader is one of the writer's, so that both choose alike."""
        return any(
            name in reader.node and self._has_equal(reader, writer, (name,))
            for name in ("anyOf", "oneOf")
        )

    def _accepts_keywords(
        self, reader: Located, writer: _Parts, path: _Path
    ) -> Iterator[Incompatibility]:
        node = reader.node
        types = _types(writer)
        wanted = _types([reader])
        lost = {t for t in types - wanted if not (t == "integer" and "number" in wanted)}
        if lost:
            names = ", ".join(sorted(lost))
            yield _problem(path, "TYPE_NARROWED", f"{names} is not accepted any more")
            return
        yield from self._values(node, writer, path)
        for name in (*_LEAST, *_MOST):
            if name in node and _applies(name, types):
                yield from self._bound(name, node[name], writer, path)
        if (
            node.get("uniqueItems") is True
            and "array" in types
            and not _any(writer, "uniqueItems", True)
        ):
            yield _problem(path, "UNIQUE_ITEMS_ADDED", "items have to be unique now")
        for name in _EQUAL_ONLY:
            if name in node and _applies(name, types):
                beside = _BESIDE.get(name, (name,))
                if not self._has_equal(reader, writer, beside):
                    yield _problem(path, f"{_upper(name)}_CHANGED", f"{name} is another, or new")
        yield from self._choices(reader, writer, path)
        if "object" in types:
            yield from self._object(reader, writer, path)
        if "array" in types:
            yield from self._array(reader, writer, path)

    def _values(self, node: Any, writer: _Parts, path: _Path) -> Iterator[Incompatibility]:
        accepted = _enumerated(node)
        if accepted is None:
            return
        written = [each for part in writer if (each := _enumerated(part.node)) is not None]
        if not any(each <= accepted for each in written):
            gone = set[str]().union(*written) - accepted
            what = f"{min(gone)} is not accepted any more" if gone else "only some values are"
            yield _problem(path, "ENUM_NARROWED", f"of the values, {what:.200}")

    def _bound(
        self, name: str, limit: Any, writer: _Parts, path: _Path
    ) -> Iterator[Incompatibility]:
        is_least = name in _LEAST
        given = [part.node.get(name) for part in writer if isinstance(part.node, dict)]
        if isinstance(limit, bool):  # exclusiveMinimum of draft 4
            if limit and limit not in given:
                yield _problem(path, f"{_upper(name)}_ADDED", f"{name} is new")
            return
        numbers = [each for each in given if isinstance(each, int | float) and each is not True]
        if is_least and limit <= 0 and name.startswith("min") and name != "minimum":
            return
        if any(each >= limit if is_least else each <= limit for each in numbers):
            return
        if not numbers:
            yield _problem(path, f"{_upper(name)}_ADDED", f"{name} {limit} is new")
        else:
            yield _problem(
                path, f"{_upper(name)}_NARROWED", f"{name} was {numbers[0]}, and is {limit}"
            )

    def _has_equal(self, reader: Located, writer: _Parts, names: Sequence[str] | None) -> bool:
        """Whether the writer has the same keywords, and they mean the same."""
        wanted = _only(reader.node, names)
        text = canonical_json(wanted)
        if "Ref" in text or '"$ref"' in text:
            return self._same_documents() and any(
                canonical_json(_only(part.node, names)) == text for part in writer
            )
        return any(canonical_json(_only(part.node, names)) == text for part in writer)

    def _same_documents(self) -> bool:
        """Whether a `$ref` leads to the same on both sides."""
        mine, other = self._reader.root.node, self._writer.root.node
        return all(
            canonical_json(mine.get(name)) == canonical_json(other.get(name))
            for name in ("$defs", "definitions", "$id", "id")
            if isinstance(mine, dict) and isinstance(other, dict)
        )

    def _choices(self, reader: Located, writer: _Parts, path: _Path) -> Iterator[Incompatibility]:
        for name in ("anyOf", "oneOf"):
            choices = reader.node.get(name)
            if not isinstance(choices, list) or self._has_equal(reader, writer, (name,)):
                continue
            located = [Located(choice, reader.base) for choice in choices]
            fits = [
                n
                for n, choice in enumerate(located)
                if next(self._accepts(choice, writer, path), None) is None
            ]
            if not fits:
                yield _problem(path, "SUM_TYPE_NARROWED", f"no alternative of {name} accepts it")
            elif name == "oneOf":
                kinds = [_types(self._reader.parts(choice)) for choice in located]
                written = _types(writer)
                others = [n for n in range(len(located)) if n != fits[0]]
                if any(_overlap(kinds[n], written) for n in others):
                    yield _problem(
                        path,
                        "SUM_TYPE_AMBIGUOUS",
                        "several alternatives of oneOf may accept it; use anyOf, or other types",
                    )

    def _object(self, reader: Located, writer: _Parts, path: _Path) -> Iterator[Incompatibility]:
        node = reader.node
        written = set[str]().union(*(_names(part.node, "required") for part in writer))
        for name in sorted(_names(node, "required") - written):
            yield _problem(
                (*path, name), "REQUIRED_ADDED", "it is required now, and older data may lack it"
            )
        own = _map(node, "properties")
        listed = {*own, *(name for part in writer for name in _map(part.node, "properties"))}
        for name in sorted(listed):
            parts = self._property(writer, name)
            for schema in _of_property(node, name):
                problems = list(self._accepts(Located(schema, reader.base), parts, (*path, name)))
                known = any(name in _map(part.node, "properties") for part in writer)
                if problems and name in own and not known:
                    yield _problem((*path, name), "PROPERTY_ADDED_TO_OPEN_MODEL", _CLOSE_IT)
                elif problems and name not in own and schema is False:
                    yield _problem((*path, name), "PROPERTY_REMOVED", "it is not allowed any more")
                else:
                    yield from problems
        patterns = _map(node, "patternProperties")
        for pattern, schema in patterns.items():
            parts = self._unlisted(writer, pattern)
            yield from self._accepts(Located(schema, reader.base), parts, (*path, pattern))
        rest = node.get("additionalProperties", True)
        if rest is not True:
            parts = self._unlisted(writer, None, frozenset(patterns))
            for problem in self._accepts(Located(rest, reader.base), parts, (*path, "*")):
                yield _problem((*path, "*"), "ADDITIONAL_PROPERTIES_NARROWED", problem.message)
                return

    def _property(self, writer: _Parts, name: str) -> _Parts:
        """What a writer puts under a name."""
        found: list[Located] = []
        for part in writer:
            if isinstance(part.node, dict):
                for schema in _of_property(part.node, name):
                    found += self._writer.parts(Located(schema, part.base))
        return found

    def _unlisted(
        self, writer: _Parts, pattern: str | None, known: frozenset[str] = frozenset()
    ) -> _Parts:
        """What a writer puts under names that are not listed: those of a pattern, or those that
        no known pattern fits."""
        found: list[Located] = []
        for part in writer:
            if not isinstance(part.node, dict):
                continue
            own = _map(part.node, "patternProperties")
            schema: Any = True
            if pattern is not None and pattern in own:
                schema = own[pattern]
            elif own.keys() <= known:
                schema = part.node.get("additionalProperties", True)
            found += self._writer.parts(Located(schema, part.base))
        return found

    def _array(self, reader: Located, writer: _Parts, path: _Path) -> Iterator[Incompatibility]:
        first = max(len(_prefix(reader.node)), *(len(_prefix(part.node)) for part in writer), 0)
        most = [_whole(part.node, "maxItems") for part in writer]
        longest = min((each for each in most if each is not None), default=None)
        for number in range(first + 1):
            if longest is not None and number >= longest:
                return
            parts: list[Located] = []
            for part in writer:
                if isinstance(part.node, dict):
                    schema = _item(part.node, number)
                    parts += self._writer.parts(Located(schema, part.base))
            where = str(number) if number < first else "-"
            wanted = Located(_item(reader.node, number), reader.base)
            yield from self._accepts(wanted, parts, (*path, where))


def _problem(path: _Path, rule: str, message: str) -> Incompatibility:
    return Incompatibility(path=pointer(path) or "/", rule=rule, message=message)


def _types(parts: _Parts) -> frozenset[str]:
    """The types of all values that these parts accept together."""
    types = _TYPES
    for part in parts:
        if not isinstance(part.node, dict):
            continue
        given = part.node.get("type")
        names = set(given) if isinstance(given, list) else {given} if given else set(_TYPES)
        if "number" in names:
            names.add("integer")
        values = _enumerated(part.node)
        if values is not None:
            names &= set().union(*(_kinds(text) for text in values)) if values else set()
        types &= names
    return types


def _kinds(text: str) -> set[str]:
    """The types of a value, by its canonical JSON."""
    starts = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean"}
    if text == "null":
        return {"null"}
    kind = starts.get(text[0])
    if kind is None:
        kind = "integer" if text.lstrip("-").isdigit() else "number"
    return {kind}


def _overlap(a: frozenset[str], b: frozenset[str]) -> bool:
    return bool(a & b)


def _enumerated(node: Any) -> set[str] | None:
    """The values of `enum` and `const`, as JSON; None: there is neither."""
    if not isinstance(node, dict):
        return None
    found: set[str] | None = None
    if isinstance(node.get("enum"), list):
        found = {canonical_json(_plain(each)) for each in node["enum"]}
    if "const" in node:
        const = {canonical_json(_plain(node["const"]))}
        found = const if found is None else found & const
    return found


def _plain(value: Any) -> Any:
    """Numbers that are equal to JSON Schema as the same text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value


def _applies(name: str, types: frozenset[str]) -> bool:
    about = _ABOUT.get(name)
    return about is None or about in types or (about == "number" and "integer" in types)


def _any(writer: _Parts, name: str, value: object) -> bool:
    return any(isinstance(part.node, dict) and part.node.get(name) is value for part in writer)


def _only(node: Any, names: Sequence[str] | None) -> Any:
    if names is None or not isinstance(node, dict):
        return node
    return {name: node[name] for name in names if name in node}


def _map(node: Any, name: str) -> dict[str, Any]:
    found = node.get(name) if isinstance(node, dict) else None
    return found if isinstance(found, dict) else {}


def _names(node: Any, name: str) -> set[str]:
    found = node.get(name) if isinstance(node, dict) else None
    return set(found) if isinstance(found, list) else set()


def _of_property(node: dict[str, Any], name: str) -> list[Any]:
    """All schemas of an object's that a property of that name has to fit."""
    found = [schema for listed, schema in _map(node, "properties").items() if listed == name]
    for pattern, schema in _map(node, "patternProperties").items():
        if jsonschema_rs.is_valid(
            {"pattern": pattern}, name, pattern_options=jsonschema_rs.RegexOptions()
        ):
            found.append(schema)
    return found or [node.get("additionalProperties", True)]


def _prefix(node: Any) -> list[Any]:
    if not isinstance(node, dict):
        return []
    items = node.get("prefixItems", node.get("items"))
    return items if isinstance(items, list) else []


def _item(node: dict[str, Any], number: int) -> Any:
    prefix = _prefix(node)
    if number < len(prefix):
        return prefix[number]
    if isinstance(node.get("items"), list):
        return node.get("additionalItems", True)
    return node.get("items", True)


def _whole(node: Any, name: str) -> int | None:
    found = node.get(name) if isinstance(node, dict) else None
    return found if isinstance(found, int) else None


def _upper(name: str) -> str:
    return "".join(f"_{c}" if c.isupper() else c.upper() for c in name).upper()
