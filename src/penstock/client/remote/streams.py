"""Streams of a group far away, for threads and for event loops."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress

from penstock.model.names import TopicName
from penstock.client.arguments import Position
from penstock.client.faces import AsyncIterated, Iterated
from penstock.client.reading import StreamMessage
from penstock.client.remote.asking import Asking
from penstock.client.remote.reader import RemoteReader
from penstock.client.streams import StreamConfig
from penstock.client.waiting import awaiting, blocking, run, run_async


class RemoteStream(Iterated, RemoteReader):
    """The messages of a group's member, for `for`."""

    def __init__(
        self,
        asking: Asking,
        topics: Sequence[TopicName],
        group: str,
        start: Position,
        config: StreamConfig,
    ) -> None:
        super().__init__(asking, topics, group, start, config, threading.Lock())
        self._stopped = threading.Event()
        self._beating: threading.Thread | None = None
        run(self.ask_enter())
        self._start_beating()

    _read = blocking(RemoteReader.ask_next)
    commit = blocking(RemoteReader.ask_commit)
    seek = blocking(RemoteReader.ask_seek)
    _leave_group = blocking(RemoteReader.ask_leave)

    def next(self, timeout_s: float | None = None) -> StreamMessage | None:
        """The next message; None when time is up."""
        self._start_beating()
        return self._read(timeout_s)

    def leave(self, *, failed: bool = False) -> None:
        """Commit, if it does so by itself, and leave the group."""
        self._stopped.set()
        self._leave_group(failed=failed)

    def _leave_aside(self) -> None:
        self.leave(failed=True)

    def _start_beating(self) -> None:
        """It ends by itself when the reader is busy with one message for very long."""
        if self._beating is None or not self._beating.is_alive():
            self._beating = threading.Thread(
                target=_beat_on,
                args=(weakref.ref(self), self._stopped),
                name="penstock-heartbeat",
                daemon=True,
            )
            self._beating.start()


def _beat_on(stream: weakref.ref[RemoteStream], stopped: threading.Event) -> None:
    """As long as somebody has the stream, and it is not stuck."""
    wait_s: float | None = 0.0
    while wait_s is not None and not stopped.wait(wait_s):
        found = stream()
        wait_s = None if found is None else run(found.ask_beat())
        del found


class AsyncRemoteStream(AsyncIterated, RemoteReader):
    """The same for `async for`."""

    def __init__(
        self,
        asking: Asking,
        topics: Sequence[TopicName],
        group: str,
        start: Position,
        config: StreamConfig,
    ) -> None:
        super().__init__(asking, topics, group, start, config, asyncio.Lock())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    _read = awaiting(RemoteReader.ask_next)
    commit = awaiting(RemoteReader.ask_commit)
    seek = awaiting(RemoteReader.ask_seek)
    _leave_group = awaiting(RemoteReader.ask_leave)

    async def next(self, timeout_s: float | None = None) -> StreamMessage | None:
        """The next message; None when time is up."""
        self._start_beating()
        return await self._read(timeout_s)

    async def leave(self, *, failed: bool = False) -> None:
        """Commit, if it does so by itself, and leave the group."""
        if self._beating is not None:
            self._beating.cancel()
        await self._leave_group(failed=failed)

    async def _enter(self) -> None:
        await run_async(self.ask_enter())
        self._start_beating()

    def _leave_aside(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop is closed: the session ends by itself
                self._loop.call_soon_threadsafe(self._leave_soon)

    def _leave_soon(self) -> None:
        self._leaving = asyncio.create_task(self.leave(failed=True))

    def _start_beating(self) -> None:
        if self._beating is None or self._beating.done():
            self._loop = asyncio.get_running_loop()
            self._beating = self._loop.create_task(_beat_on_loop(weakref.ref(self)))


async def _beat_on_loop(stream: weakref.ref[AsyncRemoteStream]) -> None:
    wait_s: float | None = 0.0
    while wait_s is not None:
        await asyncio.sleep(wait_s)
        found = stream()
        wait_s = None if found is None else await run_async(found.ask_beat())
        del found
