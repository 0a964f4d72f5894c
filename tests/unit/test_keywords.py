"""A misspelt argument of `connect` says which one was meant."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.errors import InvalidInput

both = pytest.mark.parametrize("connect", [penstock.connect, penstock.aio.connect])


@both
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"namspace": "shop"}, r"knows no 'namspace'; did you mean 'namespace'\?"),
        ({"fsnyc": "always"}, r"it takes target, namespace, .*create_topic\(\)"),
    ],
)
def test_the_nearest_known_name_is_told(
    connect: Any, wrong: dict[str, Any], says: str, tmp_path: Any
) -> None:
    with pytest.raises(InvalidInput, match=says):
        connect(tmp_path / "data", **wrong)
    assert not (tmp_path / "data").exists()


@both
def test_its_arguments_are_still_seen(connect: Any) -> None:
    assert list(inspect.signature(connect).parameters)[:3] == ["target", "namespace", "auto_create"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'target'"):
        connect()
