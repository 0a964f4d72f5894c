"""What `connect` takes for a folder or a server, and what it tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.errors import InvalidInput


@pytest.mark.parametrize("target", ["localhost:8080", "queue.example.org:80", "[::1]:8080", "a:1/"])
def test_a_server_without_its_scheme_is_told(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="http://") as caught:
        penstock.connect(target)
    assert f"http://{target}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_such_a_name_can_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    penstock.connect("./data:1").close()
    penstock.connect(Path("data:2")).close()
    penstock.connect("data:1").close()  # it is there now
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data:1", "data:2"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"api_key": b"x"}, "api_key must be text, not bytes"),
        ({"api_key": 5}, "api_key must be text"),
        ({"tls_ca": 5}, "tls_ca must be a path"),
        ({"timeout": "soon"}, "timeout"),
        ({"retry_for": -1}, "retry_for"),
        ({"auto_create": 1}, "auto_create"),
        ({"namespace": 5}, "namespace|name"),
    ],
)
def test_options_of_another_type_are_told(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        penstock.connect("http://localhost:1", **options)


def test_a_client_that_was_not_awaited_says_so(tmp_path: Path) -> None:
    connecting: Any = penstock.aio.connect(tmp_path / "data")
    with pytest.raises(AttributeError, match=r"no publish before .* await"):
        connecting.publish("orders", "x")
    assert not hasattr(connecting, "__fspath__")
