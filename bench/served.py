"""A data folder behind a server of its own process, for as long as somebody measures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def served(data: str, **environ: str) -> Iterator[str]:
    """The URL of a server on a free port of this machine."""
    command = [sys.executable, "-m", "penstock", "serve", "--data", data, "--port", "0"]
    # Not stdout: nobody reads the line that it writes there for each request.
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=os.environ | environ,
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"https?://127\.0\.0\.1:\d+", line):
                yield found[0]
                return
        raise RuntimeError("the server did not start: " + "".join(said))
    finally:
        process.terminate()
        process.wait(30)
