"""A data folder with a broker on it, as fixtures of the tests that share it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.client import Client


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture
def ps(folder: str) -> Iterator[Client]:
    with penstock.connect(folder) as client:
        yield client
