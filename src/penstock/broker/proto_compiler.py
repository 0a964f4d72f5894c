"""Compiles .proto text in a process of its own, which has little time and memory for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from tempfile import TemporaryDirectory

from penstock.errors import InvalidSchema, MissingExtra, Unavailable
from penstock.schema.definition import shortened

_CPU_S_MAX = 10
_WALL_S_MAX = 30
_AT_ONCE = threading.BoundedSemaphore(2)


def compile_proto(text: str, known_files: bytes) -> bytes:
    """The `FileDescriptorSet` of a schema. `known_files`: that of all it may import. Raises
    InvalidSchema with what the compiler says."""
    if find_spec("grpc_tools") is None:
        raise MissingExtra("schemas", "a .proto schema")
    if not _AT_ONCE.acquire(timeout=_WALL_S_MAX):
        raise Unavailable("too many .proto schemas are being compiled; try again")
    try:
        with TemporaryDirectory(prefix="penstock-protoc-") as folder:
            _write(folder, "schema.proto", text.encode())
            _write(folder, "known.bin", known_files)
            return _run(folder)
    finally:
        _AT_ONCE.release()


def _run(folder: str) -> bytes:
    command = [sys.executable, "-I", "-m", "penstock.schema.protoc", folder, str(_CPU_S_MAX)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=folder,
            timeout=_WALL_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidSchema("compiling the schema takes too long") from None
    compiled = os.path.join(folder, "compiled.bin")
    if done.returncode != 0 or not os.path.exists(compiled):
        said = done.stderr.decode("utf-8", "replace").replace(folder + os.sep, "")
        reason = shortened(said) or f"the compiler ended with {done.returncode}"
        raise InvalidSchema(f"this is no .proto schema: {reason}")
    with open(compiled, "rb") as file:
        return file.read()


def _write(folder: str, name: str, data: bytes) -> None:
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)
