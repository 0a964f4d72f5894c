"""Lake tables: Parquet files, and what is in them, as one truth.

A table is committed to by whole files, together with how far the log is in it: for each partition
of the topic the next offset. Both change at once or not at all, so a pipeline that is killed goes
on where the table says, and nothing is in it twice. When a commit returns, its files are on stable
storage: retention may drop from the log what they hold.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.table_layout import DATE, ColumnRange, TableLayout, check_layout


class LakeFile(msgspec.Struct, frozen=True):
    """A Parquet file, by its path in the table."""

    path: str
    partition: dict[str, str | None]
    """What its rows have in the columns by which the table is partitioned."""
    size_bytes: int
    rows: int
    offset_min: int = 0
    offset_max: int = 0
    ranges: dict[str, ColumnRange] = {}
    """Of columns that the table is to have statistics of, if it is new."""

    @property
    def date(self) -> str:
        """Empty if the table is not partitioned by it."""
        return self.partition.get(DATE) or ""

    @property
    def incarnation(self) -> str:
        """Of the topic that its rows are of; its name says so."""
        match = _NAME.fullmatch(self.path)
        return match[1] or "" if match else ""


class TableChange(msgspec.Struct, frozen=True):
    """What one commit does to a table."""

    schema: pa.Schema
    """Of its files; a table that is partitioned by `date` has that, too."""
    added: Sequence[LakeFile] = ()
    removed: Sequence[str] = ()
    """Paths of files that the others replace."""
    topic: str = ""
    """As `topic_mark` writes it."""
    ends: dict[int, int] = {}
    """Up to which offset of each partition of the topic the table has everything then."""
    rules: int | None = None
    """A number for the rules by which good rows were told from bad ones, if there were any."""
    adopted: bool = False
    """The table has rows of this topic from a version that did not note of which it was."""
    compacted: str = ""
    """The mark under which the table is to keep which files a compaction has left."""
    noted: dict[str, int] = {}
    """More that the table is to keep."""
    layout: TableLayout = msgspec.field(default_factory=TableLayout)
    """If this is the first commit."""
    rewrites: bool = False
    """All files of a Delta table are replaced, and columns may be of wider types then."""

    def columns(self) -> pa.Schema:
        """Those of the table."""
        if self.layout.has_dated_paths and DATE not in self.schema.names:
            return self.schema.append(pa.field(DATE, pa.date32()))
        return self.schema

    def marks(self) -> dict[str, int]:
        """What the table is to keep, by name."""
        marks = {mark_of(self.topic, partition): end for partition, end in self.ends.items()}
        marks |= self.noted
        if self.rules is not None:
            marks[rules_mark_of(self.topic)] = self.rules
        if self.ends:
            name, incarnation = _parted(self.topic)
            marks[incarnation_mark_of(name)] = _number_of(incarnation)
            if self.adopted:
                marks[adopted_mark_of(self.topic)] = 1
        if self.compacted:
            marks[self.compacted] = number_of_files(self.added)
        return marks

    def collides(self, before: Mapping[str, int], now: Mapping[str, int]) -> bool:
        """Whether somebody else has since changed a mark that this changes, to something else."""
        return any(
            now.get(name) != before.get(name) and (now.get(name) != value or name in self._own())
            for name, value in self.marks().items()
        )

    def _own(self) -> set[str]:
        """Marks that nobody else may change, not even to the same."""
        return {mark_of(self.topic, partition) for partition in self.ends}


class Marked(Protocol):
    """What keeps marks."""

    def marks(self, names: Iterable[str]) -> dict[str, int]:
        """What it keeps under these names, at one moment."""
        ...


class Lake(Marked, Protocol):
    """One table."""

    folder: str
    storage: dict[str, str]
    """Settings of the object store that it lies in."""

    @property
    def kind(self) -> Literal["delta", "iceberg"]: ...

    def exists(self) -> bool: ...

    def files(self) -> list[LakeFile]: ...

    def schema(self) -> pa.Schema:
        """The columns, also those by which it is partitioned."""
        ...

    def commit(self, change: TableChange) -> None:
        """All of it or nothing. LakeConflict if since the last look at the table somebody else has
        brought the same partitions on, or replaced the same files."""
        ...

    def sync(self) -> None:
        """See to it that what the table says is on stable storage, also if who wrote it was killed
        before it did that. Nothing that was read from a table may be told to others before."""
        ...

    def layout(self) -> TableLayout | None:
        """None: there is no table yet."""
        ...

    def describe(self, statistics: Sequence[str]) -> None:
        """Have these columns in the statistics from now on."""
        ...

    def make_room_for(self, schema: pa.Schema) -> None:
        """Add the columns that are new. InvalidInput if one that is known has another type, and
        cannot get this one."""
        ...

    def garbage(self, older_s: float) -> list[str]:
        """Files, by their paths in the table, that no reader of this long ago, and nobody since,
        has a use for."""
        ...


class TableStand(NamedTuple):
    """How far the archive of a topic is in a table."""

    ends: dict[int, int | None]
    """The next offset that is not in the table; None of what never was in it."""
    is_other: bool = False
    """The table has rows of this name, but of a topic that was deleted since."""
    is_adopted: bool = False
    """Some of its rows were written by a version that did not note of which topic they are."""


def stand_of(lake: Marked, name: str, incarnation: str, partitions: Iterable[int]) -> TableStand:
    """Marks of a version that knew no incarnations are believed to be of the topic that is there,
    as long as there are no others."""
    partitions = list(partitions)
    topic, which = topic_mark(name, incarnation), incarnation_mark_of(name)
    own = {each: mark_of(topic, each) for each in partitions}
    plain = {each: mark_of(name, each) for each in partitions}
    found = lake.marks([*own.values(), *plain.values(), which, adopted_mark_of(topic)])
    latest = found.get(which)
    is_adopted = adopted_mark_of(topic) in found
    if incarnation and latest is None:
        is_adopted = any(mark in found for mark in plain.values())
    ends = {
        each: found.get(own[each], found.get(plain[each]) if is_adopted else None)
        for each in partitions
    }
    return TableStand(ends, latest not in (None, _number_of(incarnation)), is_adopted)


def archived(lake: Lake, topic: str, partitions: Iterable[int]) -> dict[int, int | None]:
    """The next offset of a topic, as `topic_mark` writes it, that is not in the table."""
    return stand_of(lake, *_parted(topic), partitions).ends


def rules_of(lake: Lake, topic: str) -> int | None:
    """By which rules the last rows of a topic were told from the others, if that is known."""
    return lake.marks([rules_mark_of(topic)]).get(rules_mark_of(topic))


_NAME = re.compile(r"(?:date=[^/]+/)?part-(?:([0-9a-z]+)-)?[0-9a-f]{32}\.parquet")


def new_file_name(date: str | None, incarnation: str = "") -> str:
    """With the incarnation of the topic that the rows are of: their offsets mean nothing else.
    `date`: None if that is in the file, as other columns are by which a table is partitioned."""
    of = f"{incarnation}-" if incarnation else ""
    name = f"part-{of}{uuid.uuid4().hex}.parquet"
    return name if date is None else os.path.join(f"{DATE}={date}", name)


def is_ours(path: str) -> bool:
    """Whether a path in a table is such a name: further down there may be the table of another
    topic."""
    return _NAME.fullmatch(path) is not None


def message_column(name: str, columns: Container[str]) -> str:
    """Under which name a table has a column of a message: a field of its values may have that."""
    aside = f"message_{name}"
    return aside if aside in columns else name


def fits(known: pa.DataType, given: pa.DataType) -> bool:
    """Whether a column of a known type takes what is of another: new fields inside, or a number
    that is narrower."""
    if known == given:
        return True
    if pa.types.is_struct(known) and pa.types.is_struct(given):
        both = {each.name for each in known} & {each.name for each in given}
        return all(_alike(known.field(name).type, given.field(name).type) for name in both)
    if pa.types.is_list(known) and pa.types.is_list(given):
        return _alike(known.value_type, given.value_type)
    if pa.types.is_map(known) and pa.types.is_map(given):
        return known.key_type == given.key_type and _alike(known.item_type, given.item_type)
    return is_narrower(given, known)


def _alike(known: pa.DataType, given: pa.DataType) -> bool:
    return fits(known, given) and not is_narrower(given, known)


def is_narrower(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether all numbers of one type are of the other."""
    for kind in (pa.types.is_signed_integer, pa.types.is_floating):
        if kind(one) and kind(other):
            return bool(one.bit_width < other.bit_width)
    return False


def topic_mark(name: str, incarnation: str) -> str:
    """A topic in marks: its full name, and which of that name it is. No name has an @."""
    return f"{name}@{incarnation}" if incarnation else name


def incarnation_of(topic: str) -> str:
    """That of a topic as `topic_mark` writes it."""
    return topic.partition("@")[2]


def mark_of(topic: str, partition: int) -> str:
    """The name under which a table keeps how far a partition is in it."""
    return f"penstock:{topic}:{partition}"


def rules_mark_of(topic: str) -> str:
    return f"penstock:{topic}:rules"


def incarnation_mark_of(name: str) -> str:
    """Under which a table keeps a number for the last topic of a name that was archived."""
    return f"penstock:{name}:incarnation"


def adopted_mark_of(topic: str) -> str:
    return f"penstock:{topic}:adopted"


def number_of_files(files: Iterable[LakeFile]) -> int:
    """Another one for other files."""
    return _number_of("\n".join(sorted(file.path for file in files)))


def _parted(topic: str) -> tuple[str, str]:
    name, _, incarnation = topic.partition("@")
    return name, incarnation


def _number_of(text: str) -> int:
    """Of 63 bits, as lake tables keep marks; 0 of nothing."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1 if text else 0


def lay_out(
    lake: Lake,
    schema: pa.Schema,
    partition_by: Sequence[str] | None = None,
    statistics: Sequence[str] | None = None,
) -> TableLayout:
    """Make room for columns; how the table is laid out, or is to be when it is made. InvalidInput
    if it cannot be as it is wanted."""
    there = lake.layout()
    layout, known = there or TableLayout(), schema
    if partition_by is not None and [*partition_by] != layout.partition_by:
        if there is not None:
            raise InvalidInput(
                f"the table {lake.folder} is partitioned by {_names(there.partition_by)}, not by "
                f"{_names(partition_by)}, and stays so: write to another table"
            )
        layout = msgspec.structs.replace(layout, partition_by=[*partition_by])
    if statistics is not None:
        layout = msgspec.structs.replace(layout, statistics=[*statistics])
    if layout != there:
        if there is not None:
            more = [each for each in lake.schema() if each.name not in schema.names]
            known = pa.schema([*schema, *more])
        check_layout(layout, known)
    lake.make_room_for(schema)
    if there is not None and layout != there:
        lake.describe(layout.statistics)
    return layout


def _names(columns: Sequence[str]) -> str:
    return ", ".join(columns) or "nothing"


def changed_type(
    folder: str, column: str, known: object, given: object, *, is_wider: bool = False
) -> InvalidInput:
    widen = f", widen it (pipeline run compact --from {folder} --widen)" if is_wider else ""
    return InvalidInput(
        f"column {column!r} of the table {folder} is of type {known}, not {given}: keep the type"
        f"{widen}, or archive to another table"
    )


def check_removed(folder: str, removed: Sequence[str], known: Container[str]) -> None:
    if not all(path in known for path in removed):
        raise LakeConflict(f"{folder}: another pipeline has replaced these files. Try again.")


def check_all_removed(folder: str, removed: Sequence[str], known: Iterable[str]) -> None:
    """What has come since would go, and nobody has it."""
    if {*removed} != {*known}:
        raise LakeConflict(f"{folder}: another pipeline has written to it meanwhile. Try again.")


def check_partitions(folder: str, change: TableChange, partition_by: Sequence[str]) -> None:
    """Somebody else may have made the table since, and partitioned it otherwise."""
    if change.added and [*partition_by] != change.layout.partition_by:
        raise LakeConflict(f"{folder}: another pipeline made it, by {_names(partition_by)}")
