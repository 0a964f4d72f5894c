"""What the README shows at a shell works as it is printed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

README = (Path(__file__).parents[3] / "README.md").read_text("utf-8")


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_example_with_curl_is_answered(server_url: str) -> None:
    commands = re.findall(r"^curl .+$", README, re.MULTILINE)
    answers = []
    for command in commands:
        assert "localhost:8080" in command
        here = command.replace("localhost:8080", server_url.removeprefix("http://"))
        done = subprocess.run(
            ["bash", "-c", here.replace("curl ", "curl --silent --fail-with-body --noproxy '*' ")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        answers.append(json.loads(done.stdout))
    assert [answer.get("offset") for answer in answers] == [None, 0]
