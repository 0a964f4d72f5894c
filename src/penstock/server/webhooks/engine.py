"""All webhooks of a server: a task for each that is not paused, so that none waits for another."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp

from penstock import __version__
from penstock.model.webhooks import WebhookRecord
from penstock.server.webhooks.addresses import AddressRefused, AddressRules
from penstock.server.webhooks.endpoint import WebhookEndpoint

if TYPE_CHECKING:
    from penstock.server.door import Door

log = logging.getLogger("penstock.webhooks")

_CONNECT_S = 10.0


class WebhookEngine:
    """On the event loop of the server."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._rules = AddressRules(door.config.webhook_networks, [door.config.port])
        self._running: dict[tuple[str, str], tuple[WebhookEndpoint, asyncio.Task[None]]] = {}
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tests: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin, and follow every change from now on."""
        self._loop = asyncio.get_running_loop()
        self._door.api.on_webhooks(self._changed)
        self._follow()

    def listens_on(self, port: int) -> None:
        """A port of this server, to which nothing is posted. In the configuration it may be 0."""
        self._rules.own_ports.add(port)

    async def stop(self) -> None:
        """Nothing more is posted; what is under way is cut off, and comes again."""
        self._door.api.on_webhooks(lambda: None)
        tasks = [task for _, task in self._running.values()] + list(self._tests)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running.clear()
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    def _changed(self) -> None:
        """From any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with suppress(RuntimeError):  # it was closed just now
                loop.call_soon_threadsafe(self._follow)

    def _follow(self) -> None:
        """Run what is to run, as it is to run now."""
        records = {(r.namespace, r.name): r for r in self._door.api.webhook_records()}
        for place, (endpoint, task) in list(self._running.items()):
            record = records.get(place)
            if record != endpoint.record or not _is_on(endpoint.record) or task.done():
                task.cancel()
                del self._running[place]
        for place, record in records.items():
            if place not in self._running and _is_on(record):
                endpoint = WebhookEndpoint(self._door, self._session(record), record)
                self._running[place] = endpoint, asyncio.create_task(self._run(endpoint))
        for place in self._door.api.webhook_tests():
            if place in records:
                record = records[place]
                test = asyncio.create_task(
                    WebhookEndpoint(self._door, self._session(record), record).test()
                )
                self._tests.add(test)
                test.add_done_callback(self._tests.discard)

    async def _run(self, endpoint: WebhookEndpoint) -> None:
        while True:
            try:
                await endpoint.run()
                return
            except Exception:
                if self._door.stopping:
                    return
                log.exception("webhook %s failed; it goes on", endpoint.record.name)
                await asyncio.sleep(1)

    def _session(self, record: WebhookRecord) -> aiohttp.ClientSession:
        """One for webhooks that may reach private addresses, and one for the others."""
        private = record.settings.private
        session = self._sessions.get(private)
        if session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                limit_per_host=0,
                ttl_dns_cache=10,
                socket_factory=lambda info: self._socket(info, private),
            )
            session = self._sessions[private] = aiohttp.ClientSession(
                connector=connector,
                headers={"user-agent": f"penstock/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=aiohttp.ClientTimeout(connect=_CONNECT_S),
                trace_configs=[self._checking_schemes()],
            )
        return session

    def _socket(self, info: Any, private: bool) -> socket.socket:
        """For one address, which is the one that is connected to: checked here."""
        family, kind, protocol, _, address = info
        try:
            self._rules.check(address[0], address[1], private)
        except AddressRefused as exc:
            raise OSError(str(exc)) from exc  # the next address of the name may be better
        return socket.socket(family, kind, protocol)

    def _checking_schemes(self) -> aiohttp.TraceConfig:
        """Plain HTTP is refused before anything is sent."""
        trace = aiohttp.TraceConfig()

        async def check(_: Any, __: Any, params: aiohttp.TraceRequestStartParams) -> None:
            if params.url.scheme != "https" and not self._door.config.webhook_http:
                raise AddressRefused("webhooks go over https, unless webhook_http is set")

        trace.on_request_start.append(check)
        return trace


def _is_on(record: WebhookRecord) -> bool:
    return not record.settings.paused and not record.disabled
