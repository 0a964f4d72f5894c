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


class Change(msgspec.Struct, frozen=True):
    """What one commit does to a table."""

    schema: pa.Schema
    added: Sequence[LakeFile] = ()
    removed: Sequence[str] = ()
    """Paths of files that the others replace."""
    topic: str = ""
    ends: dict[int, int] = {}
    """Up to which offset of each partition of the topic the table has everything then."""


class Lake(Protocol):
    """One table."""

    folder: str

    def exists(self) -> bool: ...

    def archived(self, topic: str, partitions: Iterable[int]) -> dict[int, int | None]:
        """The next offset that is not in the table, at one moment; None of what never was in it."""
        ...

    def files(self) -> list[LakeFile]: ...

    def commit(self, change: Change) -> None:
        """All of it or nothing. LakeConflict if since the last look at the table somebody else has
        brought the same partitions on, or replaced the same files."""
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
    """Whether a file has such a name."""
    return re.fullmatch(r"part-[0-9a-f]{32}\.parquet", os.path.basename(path)) is not None


def mark_of(topic: str, partition: int) -> str:
    """The name under which a table keeps how far a partition is in it."""
    return f"penstock:{topic}:{partition}"


def changed_type(folder: str, column: str, known: object, given: object) -> InvalidInput:
    return InvalidInput(
        f"column {column!r} of the table {folder} is of type {known}, not {given}: keep the type, "
        "or archive to another table"
    )


def check_removed(folder: str, removed: Sequence[str], known: Container[str]) -> None:
    if not all(path in known for path in removed):
        raise LakeConflict(f"{folder}: another pipeline has replaced these files. Try again.")
