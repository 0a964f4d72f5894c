"""Who stops waiting for a client or a stream to open leaves nothing of it behind."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock.aio
from penstock.broker.streams import Streams
from penstock.client import connect
from penstock.errors import DataFolderInUse


class Gate:
    """Holds up whoever calls a function, on its thread, until it is opened."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._open = threading.Event()
        self.reached = threading.Event()

    def __get__(self, instance: Any, owner: Any) -> Any:
        return lambda *args, **how: self(instance, *args, **how)

    def __call__(self, *args: Any, **how: Any) -> Any:
        self.reached.set()
        assert self._open.wait(30)
        return self._function(*args, **how)

    def open(self) -> None:
        self._open.set()


async def cancel(waiting: Any, gate: Gate) -> None:
    task = asyncio.ensure_future(waiting)
    assert await asyncio.to_thread(gate.reached.wait, 30)
    task.cancel()
    await asyncio.sleep(0)  # the cancellation gets there before what it waits for goes on
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_folder_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(connect._open_folder)

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(connect, "_open_folder", gate)
            await cancel(penstock.aio.connect(tmp_path).__aenter__(), gate)
        for _ in range(1000):  # until it is closed, on its thread
            try:
                async with penstock.aio.connect(tmp_path) as ps:
                    assert await ps.topics() == []
                    return
            except DataFolderInUse:
                await asyncio.sleep(0.01)
        pytest.fail("the folder stays locked")

    asyncio.run(main())


def test_a_member_is_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(Streams.join)

    async def main() -> None:
        async with penstock.aio.connect(tmp_path) as ps:
            await ps.create_topic("orders", partitions=2)
            with monkeypatch.context() as patch:
                patch.setattr(Streams, "join", gate)
                await cancel(ps.stream("orders", "audit").__aenter__(), gate)
            assert list((await ps.describe_stream_group("audit")).members) == []

    asyncio.run(main())


def test_a_stream_that_nobody_entered_joins_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(Streams.join)

    async def main() -> None:
        async with penstock.aio.connect(tmp_path) as ps:
            await ps.create_topic("orders")
            await ps.publish("orders", b"12 apples")
            monkeypatch.setattr(Streams, "join", gate)
            stream = ps.stream("orders", "audit")
            reading = asyncio.ensure_future(stream.next(30))
            assert await asyncio.to_thread(gate.reached.wait, 30)
            gate.open()  # by the loop that a blocking join would hold up
            message = await reading
            assert message is not None
            assert message.value == b"12 apples"
            await stream.close()

    asyncio.run(main())
