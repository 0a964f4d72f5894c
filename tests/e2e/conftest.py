"""A server in a process of its own, and one Chromium for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from tests.e2e.browser import CHROMIUM, MISSING, chromium
from tests.integration.server.process import ServerProcess

WAIT_MS = 15_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if CHROMIUM is None and "tests/e2e" in str(item.path):
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="module")  # while it is there, the thread cannot run an event loop
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("data"), auto_create=True) as server:
        yield server


@pytest.fixture
def ps(server: ServerProcess) -> Iterator[Any]:
    with penstock.connect(server.url) as client:
        yield client


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """A page in a context of its own. What it complains of fails the test."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def open_(url: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | options)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: _complain(said, complaints))
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(open_page: Callable[..., Any], server: ServerProcess) -> Any:
    return open_page(f"{server.url}/")


_EXPECTED = ("Failed to load resource", "WebSocket connection to")


def _complain(said: Any, complaints: list[str]) -> None:
    """Also of what the policy of the page forbids. That an answer was an error, or that a server
    was gone, the test sees."""
    if said.type in ("error", "warning") and not said.text.startswith(_EXPECTED):
        complaints.append(said.text)
