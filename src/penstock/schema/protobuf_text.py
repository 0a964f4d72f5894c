"""A file descriptor as the .proto text that it could have been made from, without comments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor

_T = FieldDescriptor
_SCALARS = {
    getattr(_T, name): name.removeprefix("TYPE_").lower()
    for name in dir(_T)
    if name.startswith("TYPE_") and name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}
_LABELS = {1: "optional ", 2: "required ", 3: "repeated "}
_FIELD_MAX = (1 << 29) - 1


def proto_text(file: Any) -> str:
    """`file` is a `FileDescriptorProto`."""
    syntax = file.syntax or "proto2"
    edition = descriptor_pb2.Edition.Name(file.edition).removeprefix("EDITION_")
    parts = [f'edition = "{edition}";' if syntax == "editions" else f'syntax = "{syntax}";']
    if file.package:
        parts.append(f"package {file.package};")
    imports = []
    for number, name in enumerate(file.dependency):
        kind = "public " if number in file.public_dependency else ""
        imports.append(f'import {kind}"{name}";')
    if imports:
        parts.append("\n".join(imports))
    options = [f"option {name} = {value};" for name, value in _options(file.options)]
    if options:
        parts.append("\n".join(options))
    writer = _Text(syntax, file.package)
    parts += ["\n".join(writer.enum(each, "")) for each in file.enum_type]
    parts += ["\n".join(writer.message(each, "")) for each in file.message_type]
    parts += ["\n".join(writer.extensions(file.extension, ""))] if file.extension else []
    parts += ["\n".join(_service(each)) for each in file.service]
    return "\n\n".join(parts) + "\n"


class _Text:
    def __init__(self, syntax: str, package: str) -> None:
        self._says_no_label = syntax != "proto2"
        self._package = package

    def message(self, message: Any, indent: str) -> Iterator[str]:
        inner = indent + "  "
        yield f"{indent}message {message.name} {{"
        yield from self._body(message, inner)
        yield f"{indent}}}"

    def enum(self, enum: Any, indent: str) -> Iterator[str]:
        inner = indent + "  "
        yield f"{indent}enum {enum.name} {{"
        yield from (f"{inner}option {n} = {v};" for n, v in _options(enum.options))
        for value in enum.value:
            yield f"{inner}{value.name} = {value.number}{_bracket(_options(value.options))};"
        yield from _reserved(
            [(each.start, each.end) for each in enum.reserved_range], enum.reserved_name, inner
        )
        yield f"{indent}}}"

    def extensions(self, fields: Any, indent: str) -> Iterator[str]:
        for field in fields:
            yield f"{indent}extend {field.extendee} {{"
            yield f"{indent}  {self._field(field, {})}"
            yield f"{indent}}}"

    def _body(self, message: Any, indent: str) -> Iterator[str]:
        yield from (f"{indent}option {n} = {v};" for n, v in _options(message.options))
        maps = {each.name: each for each in message.nested_type if each.options.map_entry}
        written: set[int] = set()
        for field in message.field:
            in_oneof = field.HasField("oneof_index") and not field.proto3_optional
            if not in_oneof:
                yield indent + self._field(field, maps)
            elif field.oneof_index not in written:
                written.add(field.oneof_index)
                yield f"{indent}oneof {message.oneof_decl[field.oneof_index].name} {{"
                for each in message.field:
                    if each.HasField("oneof_index") and each.oneof_index == field.oneof_index:
                        yield f"{indent}  {self._field(each, maps, label=False)}"
                yield f"{indent}}}"
        yield from _reserved(
            [(each.start, each.end - 1) for each in message.reserved_range],
            message.reserved_name,
            indent,
        )
        for each in message.extension_range:
            yield f"{indent}extensions {_range(each.start, each.end - 1)};"
        for each in message.enum_type:
            yield from self.enum(each, indent)
        groups = {field.type_name.rpartition(".")[2] for field in message.field if field.type == 10}
        for each in message.nested_type:
            if not each.options.map_entry and each.name not in groups:
                yield from self.message(each, indent)
        yield from self.extensions(message.extension, indent)

    def _field(self, field: Any, maps: dict[str, Any], *, label: bool = True) -> str:
        entry = maps.get(field.type_name.rpartition(".")[2])
        extra = dict(_options(field.options))
        if field.HasField("default_value"):
            extra["default"] = _default(field)
        if field.json_name and field.json_name != json_name(field.name):
            extra["json_name"] = _quoted(field.json_name)
        tail = f"{field.name} = {field.number}{_bracket(extra.items())};"
        if entry is not None and field.label == 3:
            key, value = entry.field
            return f"map<{_type(key)}, {_type(value)}> {tail}"
        return f"{self._label(field) if label else ''}{_type(field)} {tail}"

    def _label(self, field: Any) -> str:
        if self._says_no_label and field.label == 1 and not field.proto3_optional:
            return ""
        return _LABELS[field.label]


def _service(service: Any) -> Iterator[str]:
    yield f"service {service.name} {{"
    for each in service.method:
        asked = ("stream " if each.client_streaming else "") + each.input_type
        answer = ("stream " if each.server_streaming else "") + each.output_type
        yield f"  rpc {each.name}({asked}) returns ({answer});"
    yield "}"


def _type(field: Any) -> str:
    return _SCALARS.get(field.type) or str(field.type_name)


def _default(field: Any) -> str:
    if field.type in (_T.TYPE_STRING, _T.TYPE_BYTES):
        return _quoted(field.default_value)
    return str(field.default_value)


def _reserved(ranges: list[tuple[int, int]], names: Any, indent: str) -> Iterator[str]:
    if ranges:
        yield f"{indent}reserved {', '.join(_range(*each) for each in ranges)};"
    if names:
        yield f"{indent}reserved {', '.join(map(_quoted, names))};"


def _range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last >= _FIELD_MAX else last}"


def _options(options: Any) -> Iterator[tuple[str, str]]:
    """Those that the language has; what strangers added is not shown."""
    for field, value in options.ListFields():
        if field.is_extension or field.name in ("map_entry", "uninterpreted_option"):
            continue
        if field.type == _T.TYPE_BOOL:
            yield field.name, str(value).lower()
        elif field.type == _T.TYPE_ENUM:
            if isinstance(value, int):
                yield field.name, field.enum_type.values_by_number[value].name
        elif field.type == _T.TYPE_STRING and isinstance(value, str):
            yield field.name, _quoted(value)


def _bracket(options: Any) -> str:
    inner = ", ".join(f"{name} = {value}" for name, value in options)
    return f" [{inner}]" if inner else ""


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def json_name(name: str) -> str:
    """As protoc makes it of the name of a field."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
