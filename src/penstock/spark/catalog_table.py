"""Tables of Spark's catalog: `CREATE TABLE orders USING penstock OPTIONS (...)`.

Spark tells a Python data source the options of a table when it is created, and nothing when it is
read or written. So they are kept where they come back: in the metadata of the table's first column,
all but the key of a server, which is taken from PENSTOCK_API_KEY. A table is both to be read and to
be written to, so of its options each takes those that it knows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
from pyspark.sql.types import StructField, StructType

from penstock.errors import InvalidInput
from penstock.spark.options import READ_OPTIONS, WRITE_OPTIONS

_KEPT = "penstock.options"
_PREFIX = "option."
_MARKS = {"provider", "owner"}
"""Properties that every table has."""


def options_of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options that somebody wrote, if these are all the properties of a table; otherwise None.

    A table with a `path` has a location instead; one without has a location in the warehouse.
    """
    if not {name.lower() for name in given} & _MARKS:
        return None
    written = {
        name[len(_PREFIX) :]: value for name, value in given.items() if name.startswith(_PREFIX)
    }
    place = given.get("path") or given.get("location")
    names = {name.lower() for name in written}
    if place and not names & {"path", "url"}:
        written["path"] = place
    known = {name.lower() for name in (*READ_OPTIONS, *WRITE_OPTIONS)}
    for name in written:
        if name.lower() not in known:
            raise InvalidInput(f"unknown option {name!r} of a table")
    return written


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The columns of a table, which keep its options."""
    kept = {name: value for name, value in options.items() if name.lower() != "apikey"}
    first, *others = schema.fields
    metadata = {_KEPT: msgspec.json.encode(kept).decode()}
    named = StructField(first.name, first.dataType, first.nullable, metadata)
    return StructType([named, *others])


def kept_options(schema: StructType) -> dict[str, str]:
    """Those of the table that a schema is of; nothing if it is of none."""
    for each in schema.fields:
        if _KEPT in (each.metadata or {}):
            options = msgspec.json.decode(each.metadata[_KEPT], type=dict[str, str])
            if key := os.environ.get("PENSTOCK_API_KEY"):
                options["apiKey"] = key
            return options
    return {}


def for_reading(options: Mapping[str, str]) -> dict[str, str]:
    """Of a table's options those of a read. A table that is only said to be written to a topic is
    read from there."""
    known = {name.lower() for name in READ_OPTIONS}
    taken = {name: value for name, value in options.items() if name.lower() in known}
    if not {name.lower() for name in taken} & {"subscribe", "subscribepattern", "assign"}:
        topics = [value for name, value in options.items() if name.lower() == "topic"]
        if topics:
            taken["subscribe"] = topics[0]
    return taken


def for_writing(options: Mapping[str, str]) -> dict[str, str]:
    """Of a table's options those of a write; into the one topic that is read, if none is named."""
    known = {name.lower() for name in WRITE_OPTIONS} - {"mode", "group"}
    taken = {name: value for name, value in options.items() if name.lower() in known}
    topics = [value for name, value in options.items() if name.lower() == "subscribe"]
    if "topic" not in {name.lower() for name in taken} and topics and "," not in topics[0]:
        taken["topic"] = topics[0]
    return taken


def check_there_are_options(options: Mapping[str, str]) -> None:
    if not options:
        raise InvalidInput(
            "there are no options. A table keeps them if it is created without columns: "
            "CREATE TABLE orders USING penstock OPTIONS (path '...', subscribe 'orders')"
        )
