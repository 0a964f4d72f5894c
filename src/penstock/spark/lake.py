"""Which kind of lake table is in a folder, or is to be."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Literal, get_args

from penstock.errors import InvalidInput
from penstock.spark.delta_lake import DELTA_LOG, DeltaLake
from penstock.spark.lake_table import Lake
from penstock.spark.options import local_folder
from penstock.spark.parquet_lake import COMMITS, ParquetLake

LakeFormat = Literal["delta", "parquet"]


def open_lake(folder: str, lake_format: LakeFormat = "delta") -> Lake:
    """A table that is there or is to be. InvalidInput if it is there and of the other kind."""
    if lake_format not in get_args(LakeFormat):
        raise InvalidInput(f"lake format {lake_format!r} is not one of delta, parquet")
    folder = lake_folder(folder)
    for other, mark in (("delta", DELTA_LOG), ("parquet", COMMITS)):
        if other != lake_format and os.path.isdir(os.path.join(folder, mark)):
            raise InvalidInput(
                f"{folder} is a {other} table; choose the format {other}, or another folder"
            )
    return DeltaLake(folder) if lake_format == "delta" else ParquetLake(folder)


def found_lake(folder: str) -> Lake:
    """A table that is there, whichever kind it is."""
    folder = lake_folder(folder)
    for kind in (DeltaLake, ParquetLake):
        lake: Lake = kind(folder)
        if lake.exists():
            return lake
    raise InvalidInput(f"there is no lake table in {folder}")


def lake_folder(text: str) -> str:
    """The folder of a lake or of a table, as a path. InvalidInput if it is in an object store."""
    return local_folder(text, "the lake")


def table_of(lake: str, topic: str) -> str:
    """The folder of a topic's table in a lake, by the topic's full name."""
    return os.path.join(lake, *topic.split("/"))


def remove_garbage(lake: Lake, older_s: float = 24 * 3600) -> int:
    """Remove files of attempts that failed, and that were replaced, long ago; how many."""
    paths = lake.garbage(older_s) if lake.exists() else []
    removed = 0
    for path in paths:
        with suppress(FileNotFoundError):  # somebody else removes them too
            os.unlink(path)
            removed += 1
    return removed
