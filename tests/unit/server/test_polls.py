"""Requests that wait: who is woken, in which order, and what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker, BrokerConfig
from penstock.errors import Unavailable
from penstock.log.local_engine import LocalEngine
from penstock.model.names import topic_name
from penstock.record.batch import Batch
from penstock.server.polls import Poll, Polls

ORDERS = topic_name("orders")
Test = Callable[[Broker, Polls], Coroutine[Any, Any, None]]


def run(tmp_path: Path, test: Test, polls_max: int = 100) -> None:
    with Broker(LocalEngine(tmp_path / "data"), BrokerConfig(free_bytes_min=0)) as broker:
        broker.create_topic(ORDERS, {})

        async def main() -> None:
            await test(broker, Polls(broker, polls_max))

        asyncio.run(main())


def poll(
    broker: Broker, polls: Polls, group: str = "g", asked: list[str] | None = None
) -> Poll[Any]:
    def ready() -> Any:
        if asked is not None:
            asked.append(group)
        return broker.receive(ORDERS, group, 1) or None

    return polls.wait([ORDERS], group, ready, lambda found: found, 20)


def publish(broker: Broker, count: int = 1) -> None:
    broker.publish(ORDERS, Batch.build([b"x"] * count))


def test_what_came_before_it_listened_is_not_missed(tmp_path: Path) -> None:
    async def test(broker: Broker, polls: Polls) -> None:
        publish(broker)
        assert poll(broker, polls).future.done()

    run(tmp_path, test)


def test_a_message_wakes_the_first_in_line_and_leaves_the_others_alone(tmp_path: Path) -> None:
    async def test(broker: Broker, polls: Polls) -> None:
        asked: list[str] = []
        first, second, third = [poll(broker, polls, asked=asked) for _ in range(3)]
        asked.clear()
        publish(broker)
        await asyncio.wait_for(first.future, 10)
        assert not second.future.done()
        assert not third.future.done()
        assert len(asked) == 2  # the third was not even asked
        await asyncio.to_thread(publish, broker, 2)
        await asyncio.wait_for(third.future, 10)
        assert second.future.done()
        await asyncio.sleep(0)
        assert len(polls) == 0
        assert len(broker.topic(ORDERS).waiters) == 0

    run(tmp_path, test)


def test_who_gave_up_makes_room_for_the_next(tmp_path: Path) -> None:
    async def test(broker: Broker, polls: Polls) -> None:
        first, second = poll(broker, polls), poll(broker, polls)
        first.future.cancel()
        await asyncio.sleep(0)
        publish(broker)
        assert await asyncio.wait_for(second.future, 10)

    run(tmp_path, test)


def test_groups_do_not_stand_in_the_same_line(tmp_path: Path) -> None:
    async def test(broker: Broker, polls: Polls) -> None:
        waiting = [poll(broker, polls, group) for group in ("a", "b")]
        publish(broker)
        for each in waiting:
            assert await asyncio.wait_for(each.future, 10)

    run(tmp_path, test)


def test_there_is_a_limit_and_an_end(tmp_path: Path) -> None:
    async def test(broker: Broker, polls: Polls) -> None:
        first = poll(broker, polls)
        with pytest.raises(Unavailable, match="1 requests are waiting"):
            poll(broker, polls)
        polls.stop()
        assert await first.future is None
        await asyncio.sleep(0)
        assert poll(broker, polls).future.done()  # nobody waits any more

    run(tmp_path, test, polls_max=1)
