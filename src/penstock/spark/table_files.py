"""Files of lake tables, of staging and of plans, in a folder that all machines see or in an object
store.

A file that is finished is on stable storage under its name. What has to be there whole or not at
all is written by `write`: a rename in a folder, and one put in a store, which has no renames.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.errors import MissingExtra
from penstock.log.files import DiskFiles, write_durably
from penstock.spark.options import in_object_store


class TableFiles:
    """By their paths in the table, or in another folder."""

    def __init__(self, table: str, storage: Mapping[str, str] | None = None) -> None:
        """`storage`: settings of an object store, as `deltalake` takes them; by default from the
        environment."""
        self.table = table
        self.is_local = not in_object_store(table)
        if self.is_local:
            self._files: pafs.FileSystem = pafs.SubTreeFileSystem(table, pafs.LocalFileSystem())
        else:
            self._files = pafs.PyFileSystem(_storage_handler(table, storage))

    def create(self, path: str) -> Any:
        """A stream to write to; `finish` comes when it is closed."""
        if self.is_local:
            DiskFiles().make_folder(os.path.dirname(os.path.join(self.table, path)))
        return self._files.open_output_stream(path)

    def finish(self, path: str) -> int:
        """Bring a file to stable storage; its size. A store has it when the stream is closed."""
        if self.is_local:
            place = os.path.join(self.table, path)
            with open(place, "rb") as file:
                os.fsync(file.fileno())
            DiskFiles().sync_folder(os.path.dirname(place))
        return int(self._files.get_file_info(path).size)

    @contextmanager
    def parquet(self, path: str) -> Iterator[pq.ParquetFile]:
        with closing(self._files.open_input_file(path)) as file, pq.ParquetFile(file) as found:
            yield found

    @contextmanager
    def arrow(self, path: str) -> Iterator[pa.ipc.RecordBatchFileReader]:
        place = os.path.join(self.table, path)
        opened = pa.memory_map(place) if self.is_local else self._files.open_input_file(path)
        with closing(opened) as file, pa.ipc.open_file(file) as found:
            yield found

    def read(self, path: str) -> bytes:
        """FileNotFoundError if it is not there."""
        if self.is_local:
            return DiskFiles().read(os.path.join(self.table, path))
        with closing(self._files.open_input_file(path)) as file:
            return bytes(file.read())

    def write(self, path: str, data: bytes) -> None:
        """All of it or nothing; it takes the place of what is there."""
        if self.is_local:
            place = os.path.join(self.table, path)
            DiskFiles().make_folder(os.path.dirname(place))
            write_durably(DiskFiles(), place, data)
            return
        with closing(self._files.open_output_stream(path)) as file:
            file.write(data)

    def times(self) -> dict[str, float]:
        """When each of the files was written, by its name; not those in folders of this one."""
        selector = pafs.FileSelector("", allow_not_found=True)
        found = self._files.get_file_info(selector)
        return {each.base_name: each.mtime_ns / 1e9 for each in found if each.is_file}

    def remove_tree(self, path: str = "") -> None:
        """A folder with all that is in it, if it is there."""
        if self.is_local:
            shutil.rmtree(os.path.join(self.table, path), ignore_errors=True)
            return
        for found in self._files.get_file_info(pafs.FileSelector(path, True, recursive=True)):
            if found.is_file:
                self._files.delete_file(found.path)

    def exists(self, path: str) -> bool:
        return bool(self._files.get_file_info(path).is_file)

    def remove(self, path: str) -> None:
        """Raises FileNotFoundError in a folder if it is not there; a store does not say."""
        if self.is_local:
            DiskFiles().remove(os.path.join(self.table, path))
        else:
            self._files.delete_file(path)


def _storage_handler(table: str, storage: Mapping[str, str] | None) -> Any:
    try:
        module = import_module("penstock.spark.store_handler")
    except ModuleNotFoundError:
        raise MissingExtra("spark", "a folder in an object store") from None
    return module.StoreHandler(table, dict(storage or {}))
