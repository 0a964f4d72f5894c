"""How many functions of ours an embedded publish and receive pass: each one costs every message.

The counts may fall; a change that adds a call has to be worth it. `python -m
tests.unit.client.test_path_length` prints both paths.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.api import Api
from penstock.client.client import Client
from penstock.client.local_link import LocalLink
from tests.path_length import differs, show, still_broker, usual_path

PUBLISH_MAX, PUBLISH = 15, 15
RECEIVE_MAX, RECEIVE = 25, 25
"""What there may be at most, and what there is."""

_WARM_UP = 20


def publish_path(ps: Client) -> list[str]:
    for _ in range(_WARM_UP):
        ps.publish("orders", b"paid")
    return usual_path(lambda: lambda: ps.publish("orders", b"paid"))


def receive_path(ps: Client) -> list[str]:
    """Of one message, when the frames that hold it are at hand already."""
    for _ in range(3 * _WARM_UP):
        ps.publish("orders", b"paid")
    for _ in range(_WARM_UP):
        ps.receive("orders", group="billing", max_messages=1)
    return usual_path(lambda: lambda: ps.receive("orders", group="billing", max_messages=1))


@contextmanager
def still_client(folder: Path | str) -> Iterator[Client]:
    with still_broker(folder) as broker, Client(LocalLink(Api(broker)), "default") as ps:
        ps.create_topic("orders")
        yield ps


@pytest.fixture
def ps(tmp_path: Path) -> Any:
    with still_client(tmp_path) as ps:
        yield ps


def test_a_publish_passes_no_more_functions_than_before(ps: Client) -> None:
    path = publish_path(ps)
    assert len(path) <= PUBLISH_MAX, show(path)
    assert len(path) == PUBLISH, differs(PUBLISH, path)


def test_a_receive_passes_no_more_functions_than_before(ps: Client) -> None:
    path = receive_path(ps)
    assert len(path) <= RECEIVE_MAX, show(path)
    assert len(path) == RECEIVE, differs(RECEIVE, path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, still_client(folder) as client:
        print("publish:", show(publish_path(client)))
        print("receive:", show(receive_path(client)))
