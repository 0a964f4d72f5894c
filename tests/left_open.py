"""For tests of clients that leave sockets open."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def left_open() -> Iterator[None]:
    """What they leave goes when the module is done, and not in the middle of other tests."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
