"""A broker to talk to: the server of a URL, or whoever is at work on a data folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import penstock
from penstock.errors import DataFolderInUse, InvalidInput
from penstock.spark.options import Target

_PATIENCE_S = 10.0  # for a program that has the folder for itself alone


@contextmanager
def connected(target: Target, patience_s: float | None = None) -> Iterator[Any]:
    """A client of the target, closed at the end.

    A folder that another process works on is reached through that process, unless that wants it for
    itself alone: then the error says so.
    """
    client = _connect(target, _PATIENCE_S if patience_s is None else patience_s)
    try:
        yield client
    finally:
        client.close()


def _connect(target: Target, patience_s: float) -> Any:
    if target.url:
        return _connect_url(target, target.url)
    if not os.path.isdir(target.path):
        raise InvalidInput(f"there is no data folder {target.path}")
    if not any(os.path.exists(os.path.join(target.path, name)) for name in ("LOCK", "topics")):
        raise InvalidInput(f"{target.path} is no data folder")  # and is not made one
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return penstock.connect(target.path, namespace=target.namespace)
        except DataFolderInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _connect_url(target: Target, url: str) -> Any:
    more: dict[str, Any] = {"api_key": target.api_key} if target.api_key else {}
    return penstock.connect(url, namespace=target.namespace, **more)
