"""Penstock: a durable message queue and log in Python, with a data pipeline on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.driver_python import tell_pyspark
from penstock.errors import PenstockError, Reject, Retry
from penstock.keywords import checks_keywords

if TYPE_CHECKING:
    import os

    from penstock.client.client import Client
    from penstock.durations import Duration
    from penstock.worker.app import App
    from penstock.worker.handlers import Delivery
    from penstock.worker.jobs import Job

__all__ = ["App", "Delivery", "Job", "PenstockError", "Reject", "Retry", "__version__", "connect"]

__version__ = "0.1.0"


@checks_keywords("Settings of a topic, such as fsync, go to create_topic().")
def connect(
    target: str | os.PathLike[str],
    *,
    namespace: str = "default",
    auto_create: bool = False,
    exclusive: bool = False,
    read_only: bool = False,
    api_key: str | None = None,
    timeout: Duration = "30s",
    retry_for: Duration = "30s",
    tls_ca: str | os.PathLike[str] | None = None,
) -> Client:
    """Work on a data folder, or, with `http://host:port`, on that of a server.

    A folder is made if it is not there; `auto_create` makes its topics when they are first used.
    The first process that connects to it owns it, and others work through that; `exclusive` keeps
    them out. With `read_only` it is looked at and stays as it is: through its owner, or, if there
    is none, as it is now; what would write raises `ReadOnly`. `timeout` is how long an answer may
    take, `retry_for` for how long what can pass is tried again. For a server: `api_key` (by default
    PENSTOCK_API_KEY), and a certificate authority of your own.

    Errors are in `penstock.errors`. The client is closed at the end of a `with` block;
    `penstock.aio.connect` is the same for asyncio.
    """
    from penstock.client.connect import (  # noqa: PLC0415 - keeps the import light
        ConnectOptions,
        connect_sync,
    )

    options = ConnectOptions(
        namespace=namespace,
        auto_create=auto_create,
        exclusive=exclusive,
        read_only=read_only,
        api_key=api_key,
        timeout=timeout,
        retry_for=retry_for,
        tls_ca=tls_ca,
    )
    return connect_sync(target, options)


def __getattr__(name: str) -> object:
    """The names of the worker app, which are loaded when somebody asks for them."""
    if name == "App":
        from penstock.worker.app import App  # noqa: PLC0415 - keeps the import light

        return App
    if name == "Delivery":
        from penstock.worker.handlers import Delivery  # noqa: PLC0415

        return Delivery
    if name == "Job":
        from penstock.worker.jobs import Job  # noqa: PLC0415

        return Job
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


tell_pyspark()
