"""Streams: the messages of the partitions that a group gave a member, in order."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress

from penstock.client.context_managers import AsyncIterated, Iterated
from penstock.client.link import Link
from penstock.client.stream_progress import StreamMessage
from penstock.client.stream_reader import StreamConfig, StreamReader
from penstock.client.waiting import run, run_async
from penstock.durations import Duration
from penstock.model.names import TopicName
from penstock.model.positions import Position


class Stream(Iterated, StreamReader):
    """The messages of a group's member, for `for`."""

    def __init__(
        self,
        link: Link,
        topics: Sequence[TopicName],
        group: str,
        start: Position,
        config: StreamConfig,
    ) -> None:
        super().__init__(link, topics, group, start, config)
        self._stopped = threading.Event()
        self._beating: threading.Thread | None = None
        run(self.enter_steps())
        self._start_beating()

    def next(self, wait: Duration | None = None) -> StreamMessage | None:
        """The next message; None if none has come within the time. By default it waits on."""
        self._start_beating()
        return run(self.next_steps(wait))

    def commit(self) -> None:
        """Commit what is done, and wait until it is stored.

        Raises a GroupError if the group has given the partitions to others meanwhile.
        """
        run(self.commit_steps())

    def seek(self, to: Position, *, partition: int | None = None, topic: str | None = None) -> None:
        """Read on from elsewhere: on all partitions that are assigned, or on some of them."""
        run(self.seek_steps(to, partition=partition, topic=topic))

    def leave(self, *, failed: bool = False) -> None:
        """Commit, if it does so by itself, and leave the group."""
        self._stopped.set()
        run(self.leave_steps(failed=failed))

    def _leave_aside(self) -> None:
        self.leave(failed=True)

    def _start_beating(self) -> None:
        """It ends by itself when the reader is busy with one message for very long."""
        if self._plan_beats():
            return
        if self._beating is None or not self._beating.is_alive():
            self._beating = threading.Thread(
                target=_beat_on,
                args=(weakref.ref(self), self._stopped),
                name="penstock-heartbeat",
                daemon=True,
            )
            self._beating.start()


def _beat_on(stream: weakref.ref[Stream], stopped: threading.Event) -> None:
    """As long as somebody has the stream, and it is not stuck."""
    wait_s: float | None = 0.0
    while wait_s is not None and not stopped.wait(wait_s):
        found = stream()
        wait_s = None if found is None else run(found.beat_steps())
        del found


class AsyncStream(AsyncIterated, StreamReader):
    """The same for `async for`."""

    def __init__(
        self,
        link: Link,
        topics: Sequence[TopicName],
        group: str,
        start: Position,
        config: StreamConfig,
    ) -> None:
        super().__init__(link, topics, group, start, config)
        self._abandoned: asyncio.Future[AsyncStream] | None = None
        self._beating: asyncio.Task[None] | None = None

    async def next(self, wait: Duration | None = None) -> StreamMessage | None:
        """The next message; None if none has come within the time. By default it waits on."""
        self._start_beating()
        return await run_async(self.next_steps(wait))

    async def commit(self) -> None:
        """Commit what is done, and wait until it is stored.

        Raises a GroupError if the group has given the partitions to others meanwhile.
        """
        await run_async(self.commit_steps())

    async def seek(
        self, to: Position, *, partition: int | None = None, topic: str | None = None
    ) -> None:
        """Read on from elsewhere: on all partitions that are assigned, or on some of them."""
        await run_async(self.seek_steps(to, partition=partition, topic=topic))

    async def leave(self, *, failed: bool = False) -> None:
        """Commit, if it does so by itself, and leave the group."""
        if self._beating is not None:
            self._beating.cancel()
        await run_async(self.leave_steps(failed=failed))

    async def _enter(self) -> None:
        try:
            await run_async(self.enter_steps())
        except asyncio.CancelledError:
            await asyncio.shield(run_async(self.leave_unheard_steps()))
            raise
        self._start_beating()

    def _leave_aside(self) -> None:
        if self._is_planned:  # the broker is in this process: it needs no event loop
            run(self.leave_steps(failed=True))
        elif self._abandoned is not None:
            with suppress(RuntimeError):  # the event loop is closed: the session ends by itself
                loop = self._abandoned.get_loop()
                loop.call_soon_threadsafe(self._abandoned.set_result, self)

    def _start_beating(self) -> None:
        if self._plan_beats():
            return
        if self._beating is None or self._beating.done():
            loop = asyncio.get_running_loop()
            self._abandoned = loop.create_future()
            self._beating = loop.create_task(_beat_on_loop(weakref.ref(self), self._abandoned))


async def _beat_on_loop(
    stream: weakref.ref[AsyncStream], abandoned: asyncio.Future[AsyncStream]
) -> None:
    """Until somebody leaves. It leaves itself for a stream that nobody refers to: a task that is
    made for that may come too late to be run at the end of its event loop."""
    wait_s: float | None = 0.0
    while wait_s is not None:
        await asyncio.wait([abandoned], timeout=wait_s)
        if abandoned.done():
            left = abandoned.result()
            left._abandoned = None  # so that they do not hold each other
            return await run_async(left.leave_steps(failed=True))
        found = stream()
        wait_s = None if found is None else await run_async(found.beat_steps())
        del found
