"""What an app is told when it is made wrongly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.worker.handlers import Delivery, Handler
from penstock.worker.jobs import Job


def test_the_names_of_the_worker_app_are_those_of_the_package() -> None:
    assert penstock.App.__module__ == "penstock.worker.app"
    assert penstock.Delivery is Delivery
    assert penstock.Job is Job
    with pytest.raises(AttributeError, match="has no attribute 'Apps'"):
        penstock.Apps  # type: ignore[attr-defined]  # noqa: B018


def test_importing_penstock_loads_no_worker() -> None:
    script = (
        "import sys, penstock; print([m for m in sys.modules if 'worker' in m or m == 'numpy'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"topic": ".orders"}, "topic name"),
        ({"group": "not allowed"}, "group name"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": True}, "concurrency is True"),
        ({"retries": -1}, "retries is -1"),
        ({"visibility": "soon"}, "visibility is 'soon'"),
        ({"backoff": ("1s", 2.0)}, "give the first delay, a factor and the longest delay"),
        ({"backoff": ("9s", 2.0, "1s")}, "the longest at least the first"),
    ],
)
def test_wrong_options_are_refused(how: dict[str, Any], says: str) -> None:
    app = penstock.App("data")
    given = {"topic": "orders", "group": "g"} | how
    with pytest.raises(InvalidInput, match=says):
        app.consumer(given.pop("topic"), **given)(lambda body: None)


def two(body: bytes, more: bytes) -> None: ...


def unknown(body: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "says"),
    [(two, "two takes 'more', too"), (unknown, "'Missing' is not defined")],
)
def test_a_function_that_is_no_handler_is_refused(function: Callable[..., None], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Handler(function)


def test_an_app_that_cannot_run_says_why() -> None:
    with pytest.raises(InvalidInput, match="does not say where it works"):
        penstock.App().run()
    with pytest.raises(InvalidInput, match="has no consumers"):
        penstock.App("data").run()
    with pytest.raises(InvalidInput, match="namespace name"):
        penstock.App("data", namespace="No")
