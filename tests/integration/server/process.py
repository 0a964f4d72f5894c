"""A server as a process of its own, on a port that stays the same when it is killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_SCRIPT = """
import sys, msgspec
from penstock.config import ServerConfig
from penstock.server.run import serve
serve(msgspec.json.decode(sys.argv[1], type=ServerConfig), lambda url: print(url, flush=True))
"""


class ServerProcess:
    def __init__(self, folder: Path, **config: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            self.port: int = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._config = {
            "data": os.fspath(folder),
            "port": self.port,
            "log_level": "error",
            "free_bytes_min": 0,
        } | config
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, json.dumps(self._config)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == self.url

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def memory_bytes(self, what: str) -> int:
        """VmRSS is what it has now, VmHWM what it had at the most."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(what):
                return int(line.split()[1]) << 10
        raise AssertionError(what)

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def kill(self) -> None:
        """As a power button that only this process hears."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
