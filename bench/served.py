"""A data folder behind a server of its own process, for as long as somebody measures."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def served(data: str) -> Iterator[str]:
    """The URL of a server on a free port of this machine."""
    command = [sys.executable, "-m", "penstock", "serve", "--data", data, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"https?://127\.0\.0\.1:\d+", line):
                yield found[0]
                return
        raise RuntimeError("the server did not start: " + "".join(said))
    finally:
        process.terminate()
        process.wait(30)
