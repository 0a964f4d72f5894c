"""Runs a command again whenever the source code changes: for development."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

_logger = logging.getLogger("penstock.worker")
_LOOK_S = 0.3
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


class Reloader:
    """A child process, and the files that it was started from.

    The child has a session of its own, so that Ctrl-C reaches it once, through us.
    """

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self._command = [sys.executable, "-m", "penstock", *arguments]
        self._folder = folder
        self._signals = 0
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Until a signal; the exit code of the last child."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._pass_on)
        while True:
            seen = modified_times(self._folder)
            child = self._child = subprocess.Popen(self._command, start_new_session=True)
            while not self._signals and modified_times(self._folder) == seen:
                if child.poll() is not None and child.returncode == 0:
                    return 0  # it was told to stop by somebody else
                time.sleep(_LOOK_S)
            if not self._signals:
                _logger.warning("files have changed; starting again")
                child.terminate()
            code = child.wait()
            if self._signals:
                return code

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)


def modified_times(folder: Path) -> dict[Path, int]:
    """Of every Python file below a folder, hidden folders and caches left out."""
    found: dict[Path, int] = {}
    folders = [folder]
    while folders:
        for path in _entries(folders.pop()):
            if path.name.startswith(".") or path.name in _SKIPPED or path.is_symlink():
                continue
            if path.is_dir():
                folders.append(path)
            elif path.suffix == ".py":
                try:
                    found[path] = path.stat().st_mtime_ns
                except FileNotFoundError:
                    continue  # removed a moment ago
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # gone, or not ours to read
