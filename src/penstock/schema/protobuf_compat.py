"""Whether data of one Protobuf schema can be read with another: what the wire format allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from penstock.schema.definition import Incompatibility

_PROBLEMS_MAX = 50
_T = FieldDescriptor
_ALIKE = (
    {_T.TYPE_INT32, _T.TYPE_UINT32, _T.TYPE_INT64, _T.TYPE_UINT64, _T.TYPE_BOOL, _T.TYPE_ENUM},
    {_T.TYPE_SINT32, _T.TYPE_SINT64},
    {_T.TYPE_FIXED32, _T.TYPE_SFIXED32},
    {_T.TYPE_FIXED64, _T.TYPE_SFIXED64},
)
_NAMES = {
    getattr(_T, name): name.removeprefix("TYPE_").lower()
    for name in dir(_T)
    if name.startswith("TYPE_")
}
_MESSAGES = (_T.TYPE_MESSAGE, _T.TYPE_GROUP)


def compare_files(reader: Any, writer: Any) -> list[Incompatibility]:
    """Why messages of the writer's file cannot be read with the reader's."""
    found = []
    for problem in _files(reader, writer):
        found.append(problem)
        if len(found) == _PROBLEMS_MAX:
            break
    return found


def _files(reader: Any, writer: Any) -> Iterator[Incompatibility]:
    if reader.package != writer.package:
        yield _problem("/", "PACKAGE_CHANGED", f"it was {writer.package!r:.100}")
    wanted, written = list(reader.message_types_by_name), list(writer.message_types_by_name)
    for index, name in enumerate(written):
        if name not in wanted:
            yield _problem(f"/{name}", "MESSAGE_REMOVED", "the message is not there any more")
        elif wanted.index(name) != index:
            yield _problem(
                f"/{name}",
                "MESSAGE_MOVED",
                f"messages say by number which one they are: it was number {index}; add new "
                "messages at the end",
            )
    compared: set[tuple[str, str]] = set()
    waiting = [
        (f"/{name}", reader.message_types_by_name[name], writer.message_types_by_name[name])
        for name in written
        if name in wanted
    ]
    while waiting:
        path, new, old = waiting.pop()
        if (new.full_name, old.full_name) in compared:
            continue
        compared.add((new.full_name, old.full_name))
        yield from _message(path, new, old)
        for field in old.fields:
            other = new.fields_by_number.get(field.number)
            if other is not None and field.type in _MESSAGES and other.type in _MESSAGES:
                waiting.append((f"{path}/{field.name}", other.message_type, field.message_type))
        for name, inner in old.nested_types_by_name.items():
            if name in new.nested_types_by_name:
                waiting.append((f"{path}/{name}", new.nested_types_by_name[name], inner))
            elif not inner.GetOptions().map_entry:
                yield _problem(f"{path}/{name}", "MESSAGE_REMOVED", "it is not there any more")


def _message(path: str, new: Any, old: Any) -> Iterator[Incompatibility]:
    for field in old.fields:
        other = new.fields_by_number.get(field.number)
        if other is None:
            if _is_required(field):
                yield _problem(
                    f"{path}/{field.name}", "REQUIRED_FIELD_REMOVED", "older readers need it"
                )
            continue
        yield from _field(f"{path}/{field.name}", other, field)
    for field in new.fields:
        if _is_required(field) and field.number not in old.fields_by_number:
            yield _problem(
                f"{path}/{field.name}", "REQUIRED_FIELD_ADDED", "older data does not have it"
            )
    for oneof in new.oneofs:
        joined = [
            old.fields_by_number[field.number]
            for field in oneof.fields
            if field.number in old.fields_by_number
        ]
        homes = {_oneof_name(field) for field in joined}
        if len(joined) > 1 and (None in homes or len(homes) > 1):
            yield _problem(
                f"{path}/{oneof.name}",
                "FIELDS_MOVED_TO_ONEOF",
                "older data may have several of its fields, of which one would be left",
            )


def _field(path: str, new: Any, old: Any) -> Iterator[Incompatibility]:
    if not _alike(new.type, old.type):
        yield _problem(
            path,
            "FIELD_KIND_CHANGED",
            f"field {old.number} was {_NAMES[old.type]}, and is {_NAMES[new.type]}",
        )
    elif old.type in _MESSAGES and old.message_type.full_name != new.message_type.full_name:
        yield _problem(
            path,
            "FIELD_TYPE_CHANGED",
            f"field {old.number} was {old.message_type.full_name}, and is "
            f"{new.message_type.full_name}",
        )
    if is_repeated(new) != is_repeated(old) and (
        old.type not in (_T.TYPE_STRING, _T.TYPE_BYTES, *_MESSAGES) or not is_repeated(new)
    ):
        yield _problem(path, "FIELD_LABEL_CHANGED", "repeated and single are not the same")
    if _is_required(new) and not _is_required(old):
        yield _problem(path, "FIELD_MADE_REQUIRED", "older data may lack it")


def _alike(new: int, old: int) -> bool:
    if new == old or (old == _T.TYPE_STRING and new == _T.TYPE_BYTES):
        return True
    return any(new in group and old in group for group in _ALIKE)


def is_repeated(field: Any) -> bool:
    known = getattr(field, "is_repeated", None)  # where `label` is deprecated
    return bool(known) if known is not None else field.label == _T.LABEL_REPEATED


def _is_required(field: Any) -> bool:
    known = getattr(field, "is_required", None)
    return bool(known) if known is not None else field.label == _T.LABEL_REQUIRED


def _oneof_name(field: Any) -> str | None:
    return None if field.containing_oneof is None else str(field.containing_oneof.name)


def _problem(path: str, rule: str, message: str) -> Incompatibility:
    return Incompatibility(path=path, rule=rule, message=message)
