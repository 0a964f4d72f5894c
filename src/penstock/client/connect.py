"""From a target to a client: a folder is opened here, a URL is another process's broker."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, cast

from penstock.broker.names import topic_name
from penstock.client.async_client import AsyncClient
from penstock.client.client import Client
from penstock.durations import Duration
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.client.remote.connecting import RemoteConfig


def is_url(target: str | os.PathLike[str]) -> bool:
    return "://" in _text(target)


def open_broker(target: str | os.PathLike[str], namespace: str, auto_create: bool) -> Broker:
    # Here, so that who connects to a server does not load a broker.
    from penstock.broker.broker import Broker, BrokerConfig  # noqa: PLC0415
    from penstock.log.local_engine import LocalEngine  # noqa: PLC0415

    _check_flag(auto_create)
    topic_name("any", namespace)  # before a folder is made and locked for nothing
    return Broker(LocalEngine(_text(target)), BrokerConfig(auto_create=auto_create))


def connect_sync(
    target: str | os.PathLike[str], namespace: str, auto_create: bool, how: How
) -> Client:
    if not is_url(target):
        how.refuse_for_folder()
        return Client(open_broker(target, namespace, auto_create), namespace)
    from penstock.client.remote.connecting import connect_remote  # noqa: PLC0415 - needs an extra

    _refuse_auto_create(auto_create)
    # Another class with the same methods: tests compare the signatures.
    return cast(Client, connect_remote(os.fspath(target), namespace, how.config()))


async def connect_async(
    target: str | os.PathLike[str], namespace: str, auto_create: bool, how: How
) -> AsyncClient:
    if not is_url(target):
        how.refuse_for_folder()
        opening = asyncio.ensure_future(
            asyncio.to_thread(open_broker, target, namespace, auto_create)
        )
        try:
            broker = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise
        return AsyncClient(broker, namespace)
    from penstock.client.remote.connecting import connect_remote_async  # noqa: PLC0415

    _refuse_auto_create(auto_create)
    client = await connect_remote_async(os.fspath(target), namespace, how.config())
    return cast(AsyncClient, client)


def _close_unwanted(opening: asyncio.Future[Broker]) -> None:
    """Nobody waits for the broker any more, and its folder would stay locked."""
    if not opening.cancelled() and opening.exception() is None:
        opening.get_loop().run_in_executor(None, opening.result().close)


class How:
    """What only a connection to a server takes."""

    def __init__(
        self,
        api_key: str | None,
        timeout: Duration,
        retry_for: Duration,
        tls_ca: str | os.PathLike[str] | None,
    ) -> None:
        self._api_key = api_key
        self._timeout = timeout
        self._retry_for = retry_for
        self._tls_ca = None if tls_ca is None else os.fspath(tls_ca)

    def refuse_for_folder(self) -> None:
        if self._api_key is not None or self._tls_ca is not None:
            raise InvalidInput("api_key and tls_ca are for a server; a folder needs neither")

    def config(self) -> RemoteConfig:
        from penstock.client.remote.connecting import remote_config  # noqa: PLC0415

        return remote_config(self._api_key, self._timeout, self._retry_for, self._tls_ca)


def _text(target: str | os.PathLike[str]) -> str:
    path = os.fspath(target) if isinstance(target, os.PathLike) else target
    if not isinstance(path, str) or not path:
        raise InvalidInput(
            f"cannot connect to {target!r:.100}: give a folder, http://host:port or https://host"
        )
    return path


def _check_flag(auto_create: object) -> None:
    if not isinstance(auto_create, bool):
        raise InvalidInput(f"auto_create is {auto_create!r:.100}; it must be True or False")


def _refuse_auto_create(auto_create: bool) -> None:
    _check_flag(auto_create)
    if auto_create:
        raise InvalidInput("auto_create is for a folder; for a server it is a setting of its own")
