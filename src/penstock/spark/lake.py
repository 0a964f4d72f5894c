"""Which kind of lake table is in a folder, or is to be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, get_args

from penstock.errors import InvalidInput
from penstock.spark.delta_lake import DELTA_LOG, DeltaLake
from penstock.spark.iceberg_lake import IcebergLake
from penstock.spark.lake_table import Lake
from penstock.spark.options import in_object_store, lake_folder
from penstock.spark.table_files import TableFiles

LakeFormat = Literal["delta", "iceberg"]

_FORMER_LOG = "_penstock"
"""What tables of plain Parquet had in a version before this one."""


def open_lake(
    folder: str, lake_format: LakeFormat = "delta", storage: Mapping[str, str] | None = None
) -> Lake:
    """A table that is there or is to be. InvalidInput if it is there and of the other kind."""
    if lake_format not in get_args(LakeFormat):
        raise InvalidInput(f"lake format {lake_format!r} is not one of delta, iceberg")
    folder = lake_folder(folder)
    delta, iceberg = DeltaLake(folder, storage), IcebergLake(folder, storage)
    lake, other = (delta, iceberg) if lake_format == "delta" else (iceberg, delta)
    if _may_be(other) and other.exists():
        raise InvalidInput(
            f"{folder} is a table of {other.kind}; choose the format {other.kind}, or another "
            "folder"
        )
    _refuse_former(folder)
    return lake


def found_lake(folder: str, storage: Mapping[str, str] | None = None) -> Lake:
    """A table that is there, whichever kind it is."""
    folder = lake_folder(folder)
    for kind in (DeltaLake, IcebergLake):
        lake: Lake = kind(folder, storage)
        if _may_be(lake) and lake.exists():
            return lake
    _refuse_former(folder)
    raise InvalidInput(f"there is no lake table in {folder}")


def table_of(lake: str, topic: str) -> str:
    """The folder of a topic's table in a lake, by the topic's full name."""
    return os.path.join(lake, *topic.split("/"))


def remove_garbage(lake: Lake, older_s: float = 24 * 3600) -> int:
    """Remove files of attempts that failed, and that were replaced, long ago; how many."""
    paths = lake.garbage(older_s) if lake.exists() else []
    files = TableFiles(lake.folder, lake.storage)
    removed = 0
    for path in paths:
        with suppress(FileNotFoundError):  # somebody else removes them too
            files.remove(path)
            removed += 1
    return removed


def _may_be(lake: Lake) -> bool:
    """Whether it is worth a look, for which a library has to be loaded."""
    if isinstance(lake, IcebergLake):
        return lake.may_exist()
    return in_object_store(lake.folder) or os.path.isdir(os.path.join(lake.folder, DELTA_LOG))


def _refuse_former(folder: str) -> None:
    if os.path.isdir(os.path.join(folder, _FORMER_LOG)):
        raise InvalidInput(
            f"{folder} is a Parquet table of an earlier version, which is not written to any more: "
            "its files can be read as they are; archive to another folder"
        )
