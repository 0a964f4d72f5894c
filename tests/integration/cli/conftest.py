"""Where the commands are tried: on a data folder and on a server."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.integration.cli.shell import COMMAND, Shell, environment, stop_all

_numbers = count()


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    stop_all()


@pytest.fixture
def folder(tmp_path: Path) -> Shell:
    """A shell whose commands open the folder `data`."""
    return Shell("--data", str(tmp_path / "data"), cwd=tmp_path)


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for all tests; each has a namespace of its own."""
    data = tmp_path_factory.mktemp("served")
    server = subprocess.Popen(
        [*COMMAND, "serve", "--data", str(data), "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert server.stderr is not None
    url = ""
    for line in server.stderr:
        message = json.loads(line)["message"]
        if message.startswith("listening on "):
            url = message.removeprefix("listening on ")
            break
    assert url, "the server did not start"
    yield url
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    server.stderr.close()


@pytest.fixture(params=["folder", "server"])
def sh(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    """A shell on a folder and then, for the same test, on a server."""
    if request.param == "folder":
        return Shell("--data", str(tmp_path / "data"), cwd=tmp_path)
    url = request.getfixturevalue("server_url")
    return Shell("--url", url, "--namespace", f"test-{next(_numbers)}", cwd=tmp_path)
