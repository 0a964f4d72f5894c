"""Penstock: a durable message queue and log in Python, with a data pipeline on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    import os

    from penstock.client.client import Client

__all__ = ["PenstockError", "__version__", "connect"]

__version__ = "0.1.0"


def connect(
    target: str | os.PathLike[str], *, namespace: str = "default", auto_create: bool = False
) -> Client:
    """Open a data folder, which is made if it is not there, and work on it in this process.

    `auto_create` makes topics when they are first used. Errors are in `penstock.errors`. The
    client is closed at the end of a `with` block; `penstock.aio.connect` is the same for asyncio.
    """
    from penstock.client.connect import connect_sync  # noqa: PLC0415 - keeps the import light

    return connect_sync(target, namespace, auto_create)
