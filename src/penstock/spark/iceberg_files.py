"""Files of an Iceberg table in a folder, on stable storage when they are closed.

pyiceberg leaves that to the system. But its catalog names them right afterwards, and that is on
stable storage: after a power cut it would name files that are empty.
"""

from __future__ import annotations

import io
import os
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from penstock.log.files import DiskFiles


class SyncedFiles(PyArrowFileIO):
    """pyiceberg makes one by its name."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _SyncedOutput(location, path, self.fs_by_scheme(scheme, netloc))


class _SyncedOutput(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        DiskFiles().make_folder(os.path.dirname(self._path))
        return io.BufferedWriter(_SyncedFile(self._path, "w" if overwrite else "x"))


class _SyncedFile(io.FileIO):
    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            DiskFiles().sync_folder(os.path.dirname(str(self.name)))
