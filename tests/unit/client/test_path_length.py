"""How many functions of ours an embedded publish and receive pass: each one costs every message.

The counts may fall; a change that adds a call has to be worth it. `python -m
tests.unit.client.test_path_length` prints both paths.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock.client.client import Client

SRC = str(Path(penstock.__file__).parent)

PUBLISH_MAX = 15
RECEIVE_MAX = 25

_WARM_UP = 20


def path_of(call: Callable[[], Any]) -> list[str]:
    """The functions in `src/penstock` that a call enters, in order; comprehensions are none."""
    entered: list[FrameType] = []  # kept alive, so that a generator that goes on is known again

    def enter(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(SRC) and code.co_name[0] != "<"
        if event == "call" and is_ours and not any(frame is each for each in entered):
            entered.append(frame)

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(before)
    return [
        f"{each.f_code.co_filename[len(SRC) + 1 :]}: {each.f_code.co_qualname}" for each in entered
    ]


def publish_path(ps: Client) -> list[str]:
    for _ in range(_WARM_UP):
        ps.publish("orders", b"paid")
    paths = [path_of(lambda: ps.publish("orders", b"paid")) for _ in range(50)]
    return min(paths, key=len)


def receive_path(ps: Client) -> list[str]:
    """Of one message, when the frames that hold it are at hand already."""
    for _ in range(3 * _WARM_UP):
        ps.publish("orders", b"paid")
    for _ in range(_WARM_UP):
        ps.receive("orders", group="billing", max_messages=1)
    paths = [
        path_of(lambda: ps.receive("orders", group="billing", max_messages=1)) for _ in range(5)
    ]
    return min(paths, key=len)


def show(path: list[str]) -> str:
    return f"{len(path)} functions:\n" + "\n".join(path)


@pytest.fixture
def ps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")  # it has a price of its own
    with penstock.connect(tmp_path) as ps:
        ps.create_topic("orders")
        yield ps


def test_a_publish_passes_no_more_functions_than_before(ps: Client) -> None:
    path = publish_path(ps)
    assert len(path) <= PUBLISH_MAX, show(path)


def test_a_receive_passes_no_more_functions_than_before(ps: Client) -> None:
    path = receive_path(ps)
    assert len(path) <= RECEIVE_MAX, show(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, penstock.connect(folder) as client:
        client.create_topic("orders")
        print("publish:", show(publish_path(client)))
        print("receive:", show(receive_path(client)))
