"""From a target to a client: a folder is opened here, a URL is another process's broker."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.client.client import AsyncClient, Client
from penstock.client.read_only_link import ReadOnlyLink
from penstock.client.waiting import run, run_async
from penstock.durations import Duration, parse_ns
from penstock.errors import InvalidInput
from penstock.model.names import topic_name
from penstock.otel import is_wanted

C = TypeVar("C", Client, AsyncClient)

if TYPE_CHECKING:
    from penstock.client.http.connect import HttpConfig
    from penstock.client.link import Link
    from penstock.clock import Clock


_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]*\w):\d{1,5}/?")
"""What looks like a server, and would be made a folder."""


class ConnectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock.connect` takes beside the target."""

    namespace: str = "default"
    auto_create: bool = False
    exclusive: bool = False
    read_only: bool = False
    api_key: str | None = None
    timeout: Duration = "30s"
    retry_for: Duration = "30s"
    tls_ca: str | os.PathLike[str] | None = None


def connect_sync(target: str | os.PathLike[str], options: ConnectOptions) -> Client:
    if not is_url(target):
        return Client(traced(_open_folder(target, options)), options.namespace)
    client = connect_http(_url(target, options), options.namespace, _http_config(options))
    return _to_look(client) if options.read_only else client


async def connect_async(target: str | os.PathLike[str], options: ConnectOptions) -> AsyncClient:
    if is_url(target):
        url = _url(target, options)
        client = await connect_http_async(url, options.namespace, _http_config(options))
        return _to_look(client) if options.read_only else client
    opening = asyncio.ensure_future(asyncio.to_thread(_open_folder, target, options))
    try:
        link = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise
    return AsyncClient(traced(link), options.namespace)


def connect_http(
    url: str, namespace: str, config: HttpConfig, clock: Clock | None = None
) -> Client:
    """A client of a server, once that has answered."""
    # Here, since it needs an extra.
    from penstock.client.http.connect import http_link, try_link  # noqa: PLC0415

    link = http_link(url, config, clock)
    try:
        client = Client(traced(link), namespace)
        run(try_link(link, config))
    except BaseException:
        link.close()
        raise
    return client


async def connect_http_async(
    url: str, namespace: str, config: HttpConfig, clock: Clock | None = None
) -> AsyncClient:
    """The same for the event loop on which it is awaited."""
    from penstock.client.http.connect import http_link, try_link  # noqa: PLC0415

    # Beside the loop: the certificates of a machine take a moment to read.
    link = await asyncio.to_thread(http_link, url, config, clock, for_loop=True)
    try:
        client = AsyncClient(traced(link), namespace)
        await run_async(try_link(link, config))
    except BaseException:
        link.close()
        raise
    return client


def traced(link: Link) -> Link:
    """With spans, where OpenTelemetry is installed and not switched off."""
    if not is_wanted():
        return link
    from penstock.client.traced_link import TracedLink  # noqa: PLC0415

    return TracedLink(link)


def _to_look(client: C) -> C:
    """The same, but that it writes nothing."""
    return type(client)(ReadOnlyLink(client.link), client._namespace)


def is_url(target: str | os.PathLike[str]) -> bool:
    return "://" in _text(target)


def _open_folder(target: str | os.PathLike[str], options: ConnectOptions) -> Link:
    # Here, so that who connects to a server does not load a broker.
    from penstock.client.folder.opening import FolderConfig, open_folder  # noqa: PLC0415

    if options.api_key is not None or options.tls_ca is not None:
        raise InvalidInput("api_key and tls_ca are for a server; a folder needs neither")
    _check_flags(options)
    if options.read_only and (options.auto_create or options.exclusive):
        raise InvalidInput("read_only is for looking: leave out auto_create and exclusive")
    topic_name("any", options.namespace)  # before a folder is made and locked for nothing
    config = FolderConfig(
        auto_create=options.auto_create,
        exclusive=options.exclusive,
        read_only=options.read_only,
        timeout_s=_milliseconds(options.timeout, "timeout") / 1000,
        retry_for_s=parse_ns(options.retry_for, "retry_for") / 1e9,
    )
    return open_folder(_text(target), config)


def _close_unwanted(opening: asyncio.Future[Link]) -> None:
    """Nobody waits for the broker any more, and its folder would stay locked."""
    if not opening.cancelled() and opening.exception() is None:
        opening.get_loop().run_in_executor(None, opening.result().close)


def _url(target: str | os.PathLike[str], options: ConnectOptions) -> str:
    _check_flags(options)
    if options.auto_create:
        raise InvalidInput("auto_create is for a folder; for a server it is a setting of its own")
    if options.exclusive:
        raise InvalidInput("exclusive is for a folder; a server is there for many")
    return os.fspath(target)


def _http_config(options: ConnectOptions) -> HttpConfig:
    from penstock.client.http.connect import HttpConfig  # noqa: PLC0415

    if options.api_key is not None and not isinstance(options.api_key, str):
        raise InvalidInput(f"api_key must be text, not {type(options.api_key).__name__}")
    if options.tls_ca is not None and not isinstance(options.tls_ca, str | os.PathLike):
        raise InvalidInput(f"tls_ca must be a path, not {type(options.tls_ca).__name__}")
    return HttpConfig(
        api_key=options.api_key,
        timeout_ms=_milliseconds(options.timeout, "timeout"),
        retry_for_ms=parse_ns(options.retry_for, "retry_for") // 1_000_000,
        tls_ca=None if options.tls_ca is None else os.fspath(options.tls_ca),
    )


def _text(target: str | os.PathLike[str]) -> str:
    path = os.fspath(target) if isinstance(target, os.PathLike) else target
    if not isinstance(path, str) or not path:
        raise InvalidInput(
            f"cannot connect to {target!r:.100}: give a folder, http://host:port or https://host"
        )
    if isinstance(target, str) and path.startswith(("http:", "https:")) and "://" not in path:
        raise InvalidInput(f"{path!r:.100} is no URL: for a server write http://host:port")
    if isinstance(target, str) and _HOST_AND_PORT.fullmatch(path) and not os.path.exists(path):
        raise InvalidInput(
            f"{path!r:.100} is no folder: for a server write http://{path}, for a folder ./{path}"
        )
    return path


def _check_flags(options: ConnectOptions) -> None:
    for name in ("auto_create", "exclusive", "read_only"):
        value = getattr(options, name)
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} is {value!r:.100}; it must be True or False")


def _milliseconds(duration: Duration, name: str) -> int:
    return max(1, parse_ns(duration, name) // 1_000_000)
