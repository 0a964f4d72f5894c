"""JSON values as columns, by a schema that somebody has written: what fits, and what does not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from pyspark.errors import ParseException
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ValuesAs = Literal["columns", "struct"]
CORRUPT = "_penstock_corrupt"
"""A field of what is parsed: the text where it does not fit."""
_BRACE_AND_MORE = r"\}[ \t\r\n]*[^ \t\r\n]"


class Field(NamedTuple):
    """A column that JSON values are decoded to."""

    name: str
    kind: str
    needed: bool
    """Every message has to have it: `not null`."""
    parts_needed: tuple[tuple[str, str], ...] = ()
    """Of what is inside: a condition under which something that has to be there is missing, and its
    name."""


def problem_of_json(frame: DataFrame, fields: list[Field]) -> tuple[DataFrame, str]:
    """With JSON values as the column `_json`, and an expression of what is wrong with each."""
    kinds = "".join(f"{quoted_name(field.name)} {field.kind}, " for field in fields)
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}')"
    made = quoted_text(f"{kinds}{CORRUPT} string")
    parsed = frame.selectExpr("*", f"from_json(cast(value as string), {made}, {options}) as _json")
    checks = [
        "when value is null then 'there is no value'",
        "when _json is null then 'the value is empty'",
        f"when _json.{CORRUPT} is not null then {_misfit(fields)}",
        f"when {_more_behind('cast(value as string)')} then 'there is more behind the JSON'",
    ]
    checks += [
        f"when _json.{quoted_name(field.name)} is null "
        f"then {quoted_text(f'field {field.name} is missing')}"
        for field in fields
        if field.needed
    ]
    checks += [
        f"when {condition} then {quoted_text(f'field {name} is missing')}"
        for field in fields
        for condition, name in field.parts_needed
    ]
    return parsed, f"case {' '.join(checks)} end"


def _more_behind(text: str) -> str:
    """Whether there is more than one value, as an expression; Spark reads the first only.

    As the only item of a list it must be one item, and two with another behind it: a bracket in
    what is behind the value could pass one of the two, not both. Where no brace is followed by
    anything there is no need to look.
    """
    alone = f"size(from_json(concat('[', {text}, ']'), 'array<string>')) = 1"
    followed = f"size(from_json(concat('[', {text}, ',0]'), 'array<string>')) = 2"
    goes_on = f"{text} rlike {quoted_text(_BRACE_AND_MORE)}"
    return f"{goes_on} and not coalesce({alone} and {followed}, false)"


def _misfit(fields: list[Field]) -> str:
    """Why Spark could not make the columns of a value, as an expression."""
    text = f"_json.{CORRUPT}"
    checks = [
        f"when try_parse_json({text}) is null then 'not JSON'",
        f"when ltrim({text}) not like '{{%' then 'JSON, but not an object'",
    ]
    for field in fields:
        path = quoted_text(f"$['{field.name}']")
        checks.append(
            f"when _json.{quoted_name(field.name)} is null "
            f"and get_json_object({text}, {path}) is not null "
            f"then {quoted_text(f'field {field.name} is not {field.kind}')}"
        )
    return f"case {' '.join(checks)} else 'not JSON of the schema' end"


def quoted_name(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


def quoted_text(text: str) -> str:
    """As a literal in SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def parse_fields(schema: str) -> list[Field]:
    """Columns as Spark writes them."""
    try:
        parsed = StructType.fromDDL(schema)
    except ParseException as exc:
        raise InvalidInput(f"the schema {schema!r} cannot be read: {exc.getCondition()}") from None
    if not isinstance(parsed, StructType):
        raise InvalidInput(f"the schema is {schema!r}; give columns, such as 'n int, city string'")
    return [
        Field(
            each.name,
            each.dataType.simpleString(),
            not each.nullable,
            tuple(_parts_needed(each.dataType, f"_json.{quoted_name(each.name)}", each.name)),
        )
        for each in parsed.fields
    ]


def _parts_needed(kind: DataType, value: str, name: str) -> Iterator[tuple[str, str]]:
    """What may be missing inside a value, wherever the value itself is there."""
    if isinstance(kind, StructType):
        for each in kind.fields:
            inner, inner_name = f"{value}.{quoted_name(each.name)}", f"{name}.{each.name}"
            if not each.nullable:
                yield f"{value} is not null and {inner} is null", inner_name
            yield from _parts_needed(each.dataType, inner, inner_name)
    elif isinstance(kind, ArrayType | MapType):
        is_map = isinstance(kind, MapType)
        items = f"map_values({value})" if is_map else value
        item = f"_{len(value)}"  # of another name in each level
        element = kind.valueType if isinstance(kind, MapType) else kind.elementType
        for condition, inner_name in _parts_needed(element, item, f"{name}[]"):
            yield f"coalesce(exists({items}, {item} -> {condition}), false)", inner_name


def number_of_fields(fields: list[Field], values_as: ValuesAs = "columns") -> int:
    """Another one for other fields, by which other rows would be bad, or otherwise in the table."""
    told: list[object] = [field if field.parts_needed else field[:3] for field in fields]
    if values_as != "columns":
        told.append(values_as)
    digest = hashlib.sha256(msgspec.json.encode(told)).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # of 63 bits, as lake tables keep them
