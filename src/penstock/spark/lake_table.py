"""Lake tables: folders of Parquet files by date, and what is in them, as one truth.

A table is committed to by whole files, together with how far the log is in it: for each partition
of the topic the next offset. Both change at once or not at all, so a pipeline that is killed goes
on where the table says, and nothing is in it twice. When a commit returns, its files are on stable
storage: retention may drop from the log what they hold.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Container, Iterable, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from penstock.errors import InvalidInput, LakeConflict


class LakeFile(msgspec.Struct, frozen=True):
    """A Parquet file, by its path in the table."""

    path: str
    date: str
    size_bytes: int
    rows: int
    offset_min: int = 0
    offset_max: int = 0


class TableChange(msgspec.Struct, frozen=True):
    """What one commit does to a table."""

    schema: pa.Schema
    added: Sequence[LakeFile] = ()
    removed: Sequence[str] = ()
    """Paths of files that the others replace."""
    topic: str = ""
    """By its full name."""
    ends: dict[int, int] = {}
    """Up to which offset of each partition of the topic the table has everything then."""
    rules: int | None = None
    """A number for the rules by which good rows were told from bad ones, if there were any."""

    def marks(self) -> dict[str, int]:
        """What the table is to keep, by name."""
        marks = {mark_of(self.topic, partition): end for partition, end in self.ends.items()}
        return marks if self.rules is None else {**marks, rules_mark_of(self.topic): self.rules}


class Lake(Protocol):
    """One table."""

    folder: str

    def exists(self) -> bool: ...

    def archived(self, topic: str, partitions: Iterable[int]) -> dict[int, int | None]:
        """The next offset that is not in the table, at one moment; None of what never was in it."""
        ...

    def rules(self, topic: str) -> int | None:
        """By which rules the last rows of a topic were told from the others, if that is known."""
        ...

    def files(self) -> list[LakeFile]: ...

    def commit(self, change: TableChange) -> None:
        """All of it or nothing. LakeConflict if since the last look at the table somebody else has
        brought the same partitions on, or replaced the same files."""
        ...

    def sync(self) -> None:
        """See to it that what the table says is on stable storage, also if who wrote it was killed
        before it did that. Nothing that was read from a table may be told to others before."""
        ...

    def make_room_for(self, schema: pa.Schema) -> None:
        """Add the columns that are new. InvalidInput if one that is known has another type."""
        ...

    def staged_folder(self) -> str:
        """Where files wait that are to be committed."""
        ...

    def garbage(self, older_s: float) -> list[str]:
        """Files that no reader of this long ago, and nobody since, has a use for."""
        ...


def new_file_name(date: str) -> str:
    return os.path.join(f"date={date}", f"part-{uuid.uuid4().hex}.parquet")


def is_ours(path: str) -> bool:
    """Whether a path in a table is such a name: further down there may be the table of another
    topic."""
    return re.fullmatch(r"date=[^/]+/part-[0-9a-f]{32}\.parquet", path) is not None


def mark_of(topic: str, partition: int) -> str:
    """The name under which a table keeps how far a partition is in it."""
    return f"penstock:{topic}:{partition}"


def rules_mark_of(topic: str) -> str:
    return f"penstock:{topic}:rules"


def changed_type(folder: str, column: str, known: object, given: object) -> InvalidInput:
    return InvalidInput(
        f"column {column!r} of the table {folder} is of type {known}, not {given}: keep the type, "
        "or archive to another table"
    )


def check_removed(folder: str, removed: Sequence[str], known: Container[str]) -> None:
    if not all(path in known for path in removed):
        raise LakeConflict(f"{folder}: another pipeline has replaced these files. Try again.")
