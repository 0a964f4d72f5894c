"""Walks over Avro data without making anything of it: says where it is wrong, and how deep it is.

It is slower than fastavro, which says neither, and which a long chain of nested records ends the
process with. So it goes first where a schema is recursive, and last where fastavro has refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import InvalidSchema
from penstock.schema.definition import pointer

DATA_DEPTH_MAX = 200
_VALUES_MAX = 100_000
_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class DataRefused(Exception):
    """The bytes are no datum of the schema."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(reason)


class AvroWalk:
    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self._schema = schema
        self._named = named
        self._known: dict[int, tuple[int, int]] = {}
        self.is_recursive = self._find_cycle()

    def check_bounded(self) -> None:
        """Raise InvalidSchema for what lets a few bytes stand for any number of items."""
        waiting, seen = [self._schema], set[int]()
        while waiting:
            node = self._resolved(waiting.pop())
            if isinstance(node, list):
                waiting += node
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            self._sizes(node)
            if node["type"] == "array" and self._sizes(node["items"])[0] == 0:
                raise InvalidSchema(
                    "the schema has an array of items that take no bytes, of which a short message "
                    "could hold any number"
                )
            waiting += _inner(node)

    def skip(self, data: bytes) -> None:
        """Raises DataRefused, with the field at which the data goes wrong."""
        stop = _Walker(data, self)
        stop.over(self._schema, [])
        if stop.at != len(data):
            raise DataRefused("", f"{len(data) - stop.at:,} bytes are left over behind the datum")

    def _resolved(self, node: Any) -> Any:
        if isinstance(node, str) and node in self._named:
            return self._named[node]
        return node

    def _sizes(self, node: Any) -> tuple[int, int]:
        """How many bytes a datum takes at least, and of how many values it consists at least."""
        node = self._resolved(node)
        if isinstance(node, list):
            return 1, 1
        kind = node if isinstance(node, str) else node["type"]
        if kind == "fixed":
            return int(node["size"]), 1
        if kind not in ("record", "error"):
            return self._sizes(kind) if isinstance(kind, dict | list) else (_BYTES.get(kind, 1), 1)
        known = self._known.get(id(node))
        if known is None:
            self._known[id(node)] = 1, 1  # of itself inside, which no data could fit
            inner = [self._sizes(field["type"]) for field in node["fields"]]
            known = sum(size for size, _ in inner), 1 + sum(count for _, count in inner)
            if known[1] > _VALUES_MAX:
                raise InvalidSchema(f"a {node['name']} has more than {_VALUES_MAX:,} values")
            self._known[id(node)] = known
        return known

    def _find_cycle(self) -> bool:
        state: dict[int, bool] = {}  # True: done, False: above

        def visit(node: Any) -> bool:
            node = self._resolved(node)
            if isinstance(node, list):
                return any(map(visit, node))
            if not isinstance(node, dict):
                return False
            if id(node) in state:
                return not state[id(node)]
            state[id(node)] = False
            found = any(map(visit, _inner(node)))
            state[id(node)] = True
            return found

        return visit(self._schema)


def _inner(node: dict[str, Any]) -> list[Any]:
    kind = node["type"]
    if kind in ("record", "error"):
        return [field["type"] for field in node["fields"]]
    if kind == "array":
        return [node["items"]]
    if kind == "map":
        return [node["values"]]
    return [kind] if isinstance(kind, dict | list) else []


class _Walker:
    def __init__(self, data: bytes, schema: AvroWalk) -> None:
        self._data = data
        self._schema = schema
        self.at = 0

    def over(self, node: Any, path: list[object]) -> None:
        """Over one datum. `path` says where it is."""
        node = self._schema._resolved(node)
        if len(path) > DATA_DEPTH_MAX:
            raise DataRefused("", f"it is nested deeper than {DATA_DEPTH_MAX} levels")
        if isinstance(node, list):
            branch = self._long(path)
            if not 0 <= branch < len(node):
                self._refuse(path, f"it says type {branch} of a union of {len(node)}")
            self.over(node[branch], path)
            return
        kind = node if isinstance(node, str) else node["type"]
        match kind:
            case "record" | "error":
                for field in node["fields"]:
                    self.over(field["type"], [*path, field["name"]])
            case "array" | "map":
                self._blocks(node, kind, path)
            case "string" | "bytes":
                self._bytes(path, kind)
            case "int" | "long":
                self._long(path)
            case "enum":
                number = self._long(path)
                if not 0 <= number < len(node["symbols"]):
                    self._refuse(path, f"the enum has no symbol {number}")
            case "fixed":
                self._pass(node["size"], path)
            case dict() | list():
                self.over(kind, path)
            case _:
                self._pass(_BYTES.get(kind, 0), path)

    def _blocks(self, node: dict[str, Any], kind: str, path: list[object]) -> None:
        number = 0
        while count := self._long(path):
            if count < 0:
                count = -count
                self._long(path)  # its bytes
            for _ in range(count):
                if kind == "map":
                    name = self._bytes(path, "string")
                    self.over(node["values"], [*path, name.decode("utf-8", "replace")])
                else:
                    self.over(node["items"], [*path, number])
                number += 1

    def _bytes(self, path: list[object], kind: str) -> bytes:
        length = self._long(path)
        if length < 0:
            self._refuse(path, f"its length is {length}")
        start = self.at
        self._pass(length, path)
        found = self._data[start : self.at]
        if kind == "string":
            try:
                found.decode()
            except UnicodeDecodeError:
                self._refuse(path, "it is no UTF-8")
        return found

    def _long(self, path: list[object]) -> int:
        value, shift = 0, 0
        while True:
            if self.at >= len(self._data):
                self._refuse(path, "the data ends before it")
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value >> 1 ^ -(value & 1)
            shift += 7
            if shift > 63:
                self._refuse(path, "its number is longer than 64 bits")

    def _pass(self, count: int, path: list[object]) -> None:
        if self.at + count > len(self._data):
            self._refuse(path, "the data ends before it does")
        self.at += count

    def _refuse(self, path: list[object], reason: str) -> None:
        raise DataRefused(pointer(path), reason)
