"""What the `$ref`s of a JSON Schema lead to, without asking anybody, and what checking costs.

A schema can make a validator work without end on a short document: by referring to itself at the
same place, by doubling at each of thirty references, or by trying the same part of a document
twice at each level. `evaluations` counts the worst case, and refuses the first two. For the third
it says how deep a document may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

from penstock.errors import InvalidSchema

Node: TypeAlias = Any
"""A subschema: an object or a boolean."""

EVALUATIONS_MAX = 100_000
DOCUMENT_DEPTH_MAX = 128
_DEPTH_USEFUL = 5
_SUBSCHEMAS_MAX = 10_000

IN_PLACE = ("not", "if", "then", "else")
IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
WILD_NAMES = ("additionalProperties", "unevaluatedProperties", "propertyNames")
WILD_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains")
REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_ANY_NAME, _ANY_ITEM = "*", "[]"


class Located(NamedTuple):
    """A subschema, and against which address its references are meant."""

    node: Node
    base: str


class JsonResources:
    """A schema with all that it may refer to."""

    def __init__(self, root: Node, references: Mapping[str, Node]) -> None:
        self._by_uri: dict[str, Node] = {}
        self._anchors: dict[tuple[str, str], Located] = {}
        self._bases: dict[int, str] = {}
        self._ignores_siblings = False
        """Of a `$ref`, as drafts 4 to 7 do."""
        self._seen = 0
        if isinstance(root, dict):
            draft = str(root.get("$schema", ""))
            self._ignores_siblings = any(f"draft-0{n}" in draft for n in (3, 4, 6, 7))
        for name, document in references.items():
            self._index(document, name)
            self._by_uri.setdefault(name, document)
        base = self._base_of(root, "")
        for name in references:
            self._by_uri.setdefault(urldefrag(urljoin(base, name)).url, self._by_uri[name])
        self._index(root, "")
        self._by_uri[""] = root
        self.root = Located(root, base)

    def document(self, uri: str) -> Node:
        """What lies at an address without fragment. Raises InvalidSchema: nothing is fetched."""
        uri = urldefrag(uri).url
        if uri not in self._by_uri:
            raise InvalidSchema(
                f"the schema refers to {uri!r:.200}, which is not fetched: register that "
                "schema, and name it in `references`"
            )
        return self._by_uri[uri]

    def resolve(self, reference: Any, base: str) -> Located:
        """What a `$ref` leads to."""
        if not isinstance(reference, str):
            raise InvalidSchema(f"$ref is {reference!r:.100}; it must be text")
        uri, fragment = urldefrag(urljoin(base, reference))
        if not reference.partition("#")[0]:
            uri = base
        anchor = self._anchors.get((uri, fragment))
        if anchor is not None:
            return anchor
        document = self.document(uri)
        if fragment and not fragment.startswith("/"):
            raise InvalidSchema(f"the schema has nothing at {reference!r:.200}")
        return self._inside(document, fragment, uri, reference)

    def parts(self, at: Located) -> list[Located]:
        """A subschema as those that all hold: itself without `$ref` and `allOf`, and these."""
        found: list[Located] = []
        waiting = [at]
        seen: set[int] = set()
        while waiting:
            node, base = waiting.pop()
            if not isinstance(node, dict):
                found.append(Located(node, base))
                continue
            if id(node) in seen:
                continue
            seen.add(id(node))
            base = self._bases.get(id(node), base)
            refs = [self.resolve(node[ref], base) for ref in REFS if ref in node]
            waiting += refs
            if "$ref" in node and self._ignores_siblings:
                continue
            waiting += [Located(each, base) for each in _list(node, "allOf")]
            found.append(Located(node, base))
        return found

    def _inside(self, document: Node, fragment: str, uri: str, reference: str) -> Located:
        node, base = document, self._bases.get(id(document), uri)
        for step in fragment.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise InvalidSchema(f"the schema has nothing at {reference!r:.200}")
            base = self._bases.get(id(node), base)
        if not isinstance(node, dict | bool):
            raise InvalidSchema(f"there is no schema at {reference!r:.200}")
        return Located(node, base)

    def _base_of(self, node: Node, base: str) -> str:
        if isinstance(node, dict):
            for name in ("$id", "id"):
                id_ = node.get(name)
                if isinstance(id_, str) and not id_.startswith("#"):
                    return urldefrag(urljoin(base, id_)).url
        return base

    def _index(self, node: Node, base: str) -> None:
        """Remember addresses and anchors."""
        waiting = [(node, base)]
        while waiting:
            node, base = waiting.pop()
            if not isinstance(node, dict):
                continue
            self._seen += 1
            if self._seen > _SUBSCHEMAS_MAX:
                raise InvalidSchema(f"the schema has more than {_SUBSCHEMAS_MAX:,} subschemas")
            base = self._base_of(node, base)
            if self._base_of(node, "") != "":
                self._by_uri[base] = node
            self._bases[id(node)] = base
            for name in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(name), str):
                    self._anchors[base, node[name]] = Located(node, base)
            id_ = node.get("$id", node.get("id"))
            if isinstance(id_, str) and id_.startswith("#"):
                self._anchors[base, id_[1:]] = Located(node, base)
            waiting += [(inner, base) for _, inner in _subschemas(node)]


def document_depth_max(resources: JsonResources) -> int | None:
    """How deep a document may be so that checking it stays cheap; None: as deep as it likes.

    Raises InvalidSchema for a schema that no document should be checked against."""
    expanded: dict[int, tuple[int, Counter[tuple[str, int]]]] = {}
    nodes: dict[int, Located] = {}

    def expand(at: Located, above: frozenset[int]) -> tuple[int, Counter[tuple[str, int]]]:
        """How many subschemas look at the same value, and which look into it, how often."""
        key = id(at.node)
        nodes.setdefault(key, at)
        if not isinstance(at.node, dict):
            return 1, Counter()
        if key in above:
            raise InvalidSchema(
                "the schema refers to itself without going deeper into the document"
            )
        known = expanded.get(key)
        if known is not None:
            return known
        if len(above) > 500:
            raise InvalidSchema("the schema has a chain of more than 500 references")
        own, edges = 1, Counter[tuple[str, int]]()
        base = resources._bases.get(key, at.base)
        for inner in _in_place(resources, at.node, base):
            count, further = expand(inner, above | {key})
            own += count
            for edge, times in further.items():
                edges[edge] += times
            if own + sum(edges.values()) > EVALUATIONS_MAX:
                raise InvalidSchema("the schema makes a single value be checked too often")
        for selector, inner_node in _deeper(at.node):
            nodes.setdefault(id(inner_node), Located(inner_node, base))
            edges[selector, id(inner_node)] += 1
        expanded[key] = own, edges
        return own, edges

    expand(resources.root, frozenset())
    while waiting := [
        at for key, at in nodes.items() if key not in expanded and isinstance(at.node, dict)
    ]:
        for each in waiting:
            expand(each, frozenset())
    return _depth(expanded, id(resources.root.node))


def _depth(expanded: Mapping[int, tuple[int, Counter[tuple[str, int]]]], root: int) -> int | None:
    cost = {key: own for key, (own, _) in expanded.items()}
    for depth in range(1, DOCUMENT_DEPTH_MAX + 1):
        deeper = {key: own + _worst(edges, cost) for key, (own, edges) in expanded.items()}
        if deeper.get(root, 1) > EVALUATIONS_MAX:
            if depth <= _DEPTH_USEFUL:
                raise InvalidSchema("the schema makes each value be checked too often")
            return depth - 1
        if deeper == cost:
            return None
        cost = {key: min(each, 1 << 60) for key, each in deeper.items()}
    return DOCUMENT_DEPTH_MAX


def _worst(edges: Mapping[tuple[str, int], int], cost: Mapping[int, int]) -> int:
    """Of the places one level deeper: what the dearest costs."""
    by_selector: Counter[str] = Counter()
    for (selector, child), times in edges.items():
        by_selector[selector] += times * cost.get(child, 1)
    wild_name, wild_item = by_selector.pop(_ANY_NAME, 0), by_selector.pop(_ANY_ITEM, 0)
    return max(wild_item, wild_name + max(by_selector.values(), default=0))


def _in_place(resources: JsonResources, node: dict[str, Any], base: str) -> Iterator[Located]:
    for ref in REFS:
        if ref in node:
            yield resources.resolve(node[ref], base)
    for name in IN_PLACE:
        if name in node:
            yield Located(node[name], base)
    for name in IN_PLACE_LISTS:
        yield from (Located(each, base) for each in _list(node, name))
    for name in IN_PLACE_MAPS:
        yield from (Located(each, base) for each in _map(node, name).values())


def _deeper(node: dict[str, Any]) -> Iterator[tuple[str, Node]]:
    for name, inner in _map(node, "properties").items():
        yield "." + name, inner
    yield from ((_ANY_NAME, inner) for inner in _map(node, "patternProperties").values())
    yield from ((_ANY_NAME, node[name]) for name in WILD_NAMES if name in node)
    yield from ((_ANY_ITEM, each) for each in _list(node, "prefixItems"))
    for name in WILD_ITEMS:
        if isinstance(node.get(name), list):
            yield from ((_ANY_ITEM, each) for each in _list(node, name))
        elif name in node:
            yield _ANY_ITEM, node[name]


def _subschemas(node: dict[str, Any]) -> Iterator[tuple[str, Node]]:
    """All of them, one level down."""
    yield from _deeper(node)
    for name in ("$defs", "definitions", *IN_PLACE_MAPS):
        yield from _map(node, name).items()
    for name in IN_PLACE:
        if name in node:
            yield name, node[name]
    for name in IN_PLACE_LISTS:
        yield from ((name, each) for each in _list(node, name))


def _map(node: dict[str, Any], name: str) -> dict[str, Any]:
    found = node.get(name)
    if not isinstance(found, dict):
        return {}
    return {key: each for key, each in found.items() if isinstance(each, dict | bool)}


def _list(node: dict[str, Any], name: str) -> list[Any]:
    found = node.get(name)
    return found if isinstance(found, list) else []
