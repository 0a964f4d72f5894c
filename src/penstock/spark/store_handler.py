"""Object stores as file systems of Arrow, through deltalake: by the same settings."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler


class StoreHandler(DeltaStorageHandler):
    """Its streams take bytes alone, and Arrow hands over buffers of its own."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
        return pa.PythonFile(_AsBytes(self._handler.open_output_stream(path, metadata)))


class _AsBytes:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data))
        return len(data)
