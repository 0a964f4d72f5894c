"""A slow server keeps those waiting who asked it, and nobody else on their event loop.

Every answer is held back until a task of the same loop lets it go: whatever blocks the loop waits
for ever, and fails when the client's patience ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import penstock.aio
from penstock.errors import InvalidInput, TopicNotFound
from tests.integration.server.proxy import Proxy
from tests.integration.server.running import RunningServer


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


async def read_a_stream(ps: Any) -> None:
    async with ps.stream("orders", "audit") as stream:
        assert [place.partition for place in stream.assignment] == [0, 1]
        first = await stream.next(10)
        await stream.seek("earliest", partition=first.partition)
        assert {(await stream.next(10)).value for _ in range(2)} == {b"a", b"b"}
        await stream.commit()


async def read_a_stream_that_nobody_opened(ps: Any) -> None:
    stream = ps.stream("orders", "audit")
    assert stream.assignment == []  # it knows nobody yet
    async for message in stream:
        assert message.value in (b"a", b"b")
        break
    assert len(stream.assignment) == 2
    await stream.close()


async def seek_before_all_else(ps: Any) -> None:
    stream = ps.stream("orders", "audit")
    await stream.seek("latest")
    assert await stream.next(0) is None
    await stream.leave(failed=True)


async def open_a_stream_and_wait(ps: Any) -> None:
    stream = await ps.stream("orders", "audit", member_id="me")
    assert list((await ps.describe_stream_group("audit")).members) == ["me"]
    assert len(stream.assignment) == 2


async def produce(ps: Any) -> None:
    async with ps.producer("orders", linger="1h") as out:
        sent = [out.send(b"x", key=f"k{n}") for n in range(20)]
        assert await out.result(sent[0]) >= 1
        await out.flush()
    assert (await ps.stats("orders")).messages == 22


async def produce_without_a_block(ps: Any) -> None:
    out = await ps.producer("orders")
    out.send(b"x")
    await out.close()
    assert (await ps.stats("orders")).messages == 3


async def work_off_a_queue(ps: Any) -> None:
    for message in await ps.receive("orders", "g", wait="1s"):
        async with message:
            await message.extend("60s")
    await ps.seek("orders", "g", "earliest")
    batch = await ps.receive_batch("orders", "g")
    await batch.reject("no good")
    letters = ps.dead_letters("orders")
    assert await letters.redrive() == await letters.count() + 2 == 2


async def connect_once_more(ps: Any, url: str) -> None:
    async with penstock.aio.connect(url) as other:
        assert await other.topics() == ["orders"]


@pytest.mark.parametrize(
    "work",
    [
        read_a_stream,
        read_a_stream_that_nobody_opened,
        seek_before_all_else,
        open_a_stream_and_wait,
        produce,
        produce_without_a_block,
        work_off_a_queue,
        connect_once_more,
    ],
)
def test_other_tasks_go_on_while_the_server_takes_its_time(work: Any, wire: Proxy) -> None:
    async def scenario(ps: Any) -> None:
        await ps.create_topic("orders", partitions=2)
        for number, value in enumerate((b"a", b"b")):
            await ps.publish("orders", value, partition=number)
        wire.hold_answers = True
        await (work(ps, wire.url) if work is connect_once_more else work(ps))

    assert run_beside_one_who_lets_answers_go(scenario, wire) > 0


def test_what_is_not_there_is_told_of_when_it_is_awaited(wire: Proxy) -> None:
    async def scenario(ps: Any) -> None:
        with pytest.raises(TopicNotFound):
            await ps.producer("nope")
        with pytest.raises(TopicNotFound):
            async with ps.stream("nope", "audit"):
                pass

    run_beside_one_who_lets_answers_go(scenario, wire)


@pytest.mark.parametrize("far", [False, True], ids=["here", "far"])
def test_a_producer_that_was_not_opened_says_how(
    far: bool, server: RunningServer, tmp_path: Any
) -> None:
    async def scenario() -> None:
        async with penstock.aio.connect(server.url if far else tmp_path / "other") as ps:
            await ps.create_topic("orders")
            out = ps.producer("orders")
            with pytest.raises(InvalidInput, match=r"async with ps\.producer"):
                out.send(b"x")
            await out.flush()
            await out.close()
            await asyncio.gather(*(out.__aenter__() for _ in range(5)))
            out.send(b"x")
            await out.close()
            assert (await ps.stats("orders")).messages == 1

    asyncio.run(scenario())


def run_beside_one_who_lets_answers_go(
    scenario: Callable[[Any], Awaitable[None]], wire: Proxy
) -> int:
    """How many answers were let go."""

    async def let_go() -> None:
        nonlocal count
        while True:
            if wire.held:
                wire.let_one_go()
                count += 1
            await asyncio.sleep(0.001)

    async def everything() -> None:
        async with penstock.aio.connect(wire.url, timeout="5s", retry_for=0) as ps:
            letting_go = asyncio.create_task(let_go())
            await scenario(ps)
            await ps.close()
            letting_go.cancel()
            with suppress(asyncio.CancelledError):
                await letting_go

    count = 0
    asyncio.run(everything())
    return count
