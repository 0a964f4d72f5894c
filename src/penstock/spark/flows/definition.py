"""What a flow is, as people write it in YAML or in Python."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import yaml

from penstock.errors import InvalidInput
from penstock.spark.options import folder_or_store, size
from penstock.spark.table_files import TableFiles

OnFail = Literal["warn", "drop", "quarantine", "fail"]
DecodeFormat = Literal["none", "json", "debezium", "registry"]
TargetKind = Literal["append", "current", "history", "aggregate", "topic"]
TableFormat = Literal["delta", "iceberg"]
Measure = Literal["count", "sum", "min", "max"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MEASURE = re.compile(r"(count|sum|min|max)\((.+)\)")
_ABOUT_FILES = ("format", "statistics")
OWN = "_"
"""How columns begin that a flow adds by itself."""


class FlowSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where messages come from."""

    place: str
    """A data folder or the URL of a server."""
    topic: str
    namespace: str = "default"
    skip_lost: bool = False
    """Go on without what retention took, and with a topic that was made again."""
    round_bytes: str = "128m"
    """About so much of the log is worked on at once."""


class Decode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a value becomes `data`."""

    format: DecodeFormat = "none"
    schema: str = ""
    """Of JSON and Debezium: columns as Spark writes them, "id int not null, city string"."""
    subject: str = ""
    """Of a registry's schema: JSON, Avro or Protobuf."""
    version: int | None = None
    """By default the latest."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a row should be like."""

    name: str
    check: str
    """A condition in SQL; null is no."""
    on_fail: OnFail = "quarantine"


class FlowTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where rows go, and what they do there."""

    kind: TargetKind = "append"
    table: str = ""
    """A folder, or the address of an object store; in a database its name."""
    database: str = ""
    """A URL of PostgreSQL, such as "postgresql://shop@db/shop"; `$NAME` is of the environment."""
    topic: str = ""
    place: str = ""
    """Of a topic: where, by default where the flow reads."""
    key: list[str] = []
    """Of `current` and `history`: columns that name a thing."""
    order_by: str = ""
    """Which row of a key is later; by default the one that was published later."""
    delete_when: str = ""
    """Rows that remove their key; null values and Debezium's deletes do in any case."""
    window: str = ""
    """Of `aggregate`: how long, such as "1 minute"; of `on`."""
    on: str = "timestamp"
    group_by: list[str] = []
    measures: dict[str, str] = {}
    """Of `aggregate`: name to `count(*)`, `sum(x)`, `min(x)` or `max(x)`."""
    partition_by: list[str] = []
    properties: dict[str, str] = {}
    """Of the table, when it is made."""
    format: TableFormat = "delta"
    """Of the table."""
    statistics: list[str] = []
    """Columns of which the table says what is in each file; by default what its library does."""


class Flow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One declared pipeline."""

    name: str
    source: FlowSource
    decode: Decode = Decode()
    columns: dict[str, str] = {}
    """Name to an expression in SQL on `data` and the columns of a message; by default all of
    `data`, or the message as it is."""
    expectations: list[Expectation] = []
    target: FlowTarget
    state: str = ""
    """A folder, or an object store, for what is planned; by default beside the table."""
    storage: dict[str, str] = {}
    """Options of the object store, as deltalake takes them; by default from the environment."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"the flow is named {self.name!r}; names are made of letters, digits, '.', '_', '-'"
            )
        size({"round_bytes": self.source.round_bytes}, "round_bytes")
        _check_decode(self.decode)
        _check_target(self.target)
        own = [name for name in self.columns if name.startswith(OWN)]
        if own:
            raise InvalidInput(f"column {own[0]!r}: names that begin with '_' are the flow's own")
        if self.target.database and not self.state:
            raise InvalidInput("a flow to a database needs 'state', a folder for its plans")

    @property
    def round_bytes(self) -> int:
        return size({"round_bytes": self.source.round_bytes}, "round_bytes") or 0

    @property
    def group(self) -> str:
        """Whose progress it is, for retention and lag."""
        return f"flow-{self.name}"

    @property
    def state_folder(self) -> str:
        if self.state:
            return folder_or_store(self.state, "state")
        if self.target.kind == "topic":
            place = self.target.place or self.source.place
            if "://" in place:
                raise InvalidInput("a flow to a topic of a server needs 'state', a folder")
            return os.path.join(os.path.abspath(place), "spark", "flows", self.name)
        table = folder_or_store(self.target.table, "the table")
        return os.path.join(os.path.dirname(table), "_flows", self.name)

    @property
    def state_files(self) -> TableFiles:
        return TableFiles(self.state_folder, self.storage)

    @property
    def number(self) -> int:
        """Another one for rows that are decoded or checked otherwise; of 63 bits."""
        target = msgspec.to_builtins(self.target)
        for name in _ABOUT_FILES:  # which make no other rows
            del target[name]
        told = [self.decode, self.columns, self.expectations, target]
        digest = hashlib.sha256(msgspec.json.encode(told)).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def measures(self) -> dict[str, tuple[Measure, str]]:
        return {name: _measure(name, text) for name, text in self.target.measures.items()}


def load_flow(given: str | Mapping[str, Any] | Flow) -> Flow:
    """A flow: the path of a YAML file, what such a file holds, or one that is made already."""
    if isinstance(given, Flow):
        return given
    where = "the flow"
    if isinstance(given, str):
        where = given
        try:
            with open(given, encoding="utf-8") as file:
                given = yaml.safe_load(file)
        except OSError as exc:
            raise InvalidInput(f"{where} cannot be read: {exc.strerror}") from exc
        except (yaml.YAMLError, UnicodeDecodeError) as exc:
            raise InvalidInput(f"{where} is no YAML: {exc}") from exc
    try:
        return msgspec.convert(given, Flow)
    except InvalidInput:
        raise
    except msgspec.ValidationError as exc:
        cause = exc.__cause__
        raise InvalidInput(
            f"{where}: {cause if isinstance(cause, InvalidInput) else exc}"
        ) from None


def _check_decode(decode: Decode) -> None:
    if decode.format in ("json", "debezium") and not decode.schema:
        raise InvalidInput(
            f"decode {decode.format} needs a 'schema', such as 'id int, city string'"
        )
    if decode.format == "registry" and not decode.subject:
        raise InvalidInput("decode registry needs the 'subject' of a schema")


def _check_target(target: FlowTarget) -> None:
    if (target.kind == "topic") != bool(target.topic) or (target.kind == "topic") == bool(
        target.table
    ):
        raise InvalidInput(f"the target {target.kind} needs one of 'table' and 'topic', its own")
    if target.format != "delta" and (target.database or target.topic):
        raise InvalidInput("'format' is for a table of a lake")
    if (target.kind in ("current", "history")) != bool(target.key):
        raise InvalidInput("a 'key' is for targets of kind current and history, and they need one")
    if (target.kind == "aggregate") != bool(target.measures):
        raise InvalidInput("'measures' are for a target of kind aggregate, and it needs some")
    for name, text in target.measures.items():
        _measure(name, text)


def _measure(name: str, text: str) -> tuple[Measure, str]:
    match = _MEASURE.fullmatch(text.strip())
    if not match:
        raise InvalidInput(
            f"the measure {name!r} is {text!r}; it is count(*), sum(x), min(x) or max(x): what can "
            "be added up later"
        )
    found: Any = match[1]
    return found, match[2]
