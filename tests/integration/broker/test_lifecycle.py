"""A broker from its opening to its end: idle, closed, interrupted; and never two on one folder."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.broker.broker import Broker
from penstock.errors import BrokerClosed, DataFolderInUse, LogFailed
from penstock.log.inspect import inspect_log
from penstock.log.local_engine import LocalEngine
from tests.integration.broker.world import World, take, until, values

ROOT = Path(__file__).parents[3]


@contextmanager
def child(folder: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    """Another process at work on a folder."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.broker.child", str(folder), mode],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def logs_in(folder: Path) -> list[Path]:
    return sorted({path.parent for path in folder.rglob("*.log")})


# Idle.


def test_an_idle_broker_has_nothing_to_wait_for(world: World) -> None:
    assert world.broker.next_deadline() is None
    world.ps.create_topic("orders", partitions=3)
    world.ps.receive("orders", "g")
    assert world.broker.next_deadline() is None
    world.ps.publish("orders", b"x")
    world.ps.receive("orders", "g")[0].ack()
    world.pass_(120)  # a lease that was settled, a look at what is to be kept
    deadline_ns = world.broker.next_deadline()
    days = 0 if deadline_ns is None else (deadline_ns - world.clock.monotonic_ns()) / 86_400e9
    assert days > 6  # until the message is a week old nothing has to be done
    assert world.broker.housekeep() == 0


def test_an_idle_broker_uses_no_cpu(tmp_path: Path) -> None:
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders", partitions=4)
        ps.publish("orders", b"x")
        ps.receive("orders", "g", visibility="1h")
        waiting = threading.Thread(target=ps.receive, args=("orders", "g"), kwargs={"wait": "0.5s"})
        waiting.start()
        used = time.process_time()
        waiting.join()
        used = time.process_time() - used
    assert used < 0.1  # in half a second, with somebody waiting


def test_the_housekeepers_thread_ends_with_the_broker(tmp_path: Path) -> None:
    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name == "penstock-housekeeper"]

    before = len(threads())
    ps = penstock.connect(tmp_path / "data")
    assert len(threads()) == before + 1
    ps.close()
    assert len(threads()) == before


# Closed.


def test_a_closed_broker_leaves_a_clean_folder(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, max_retries=0)
    for n in range(20):
        ps.publish("orders", b"%d" % n)
    ps.publish("orders", b"later", delay="1h")
    first, second, *_ = ps.receive("orders", "g", 5, visibility="1h")
    first.ack()
    second.nack(error="dead")
    with ps.stream("orders", "audit") as stream:
        stream.next(0)
        stream.next(0)
    world.close()
    folders = logs_in(world.folder)
    assert len(folders) >= 10
    for folder in folders:
        assert inspect_log(folder).all_findings == [], folder
    world.restart()
    stats = world.ps.stats("orders")
    assert (stats.messages, stats.delayed, stats.dead, stats.in_flight) == (20, 1, 1, 3)
    assert all(p.damaged == 0 for p in stats.partitions)
    assert len(world.ps.receive("orders", "g", 100)) == 15


def ledger_begins_at(world: World) -> int:
    """Where the ledger of the topic begins: at its last checkpoint, if there was one."""
    folder = world.folder / "topics" / "default" / "orders" / "00000" / "ledger"
    return min(int(path.stem) for path in folder.glob("*.log"))


def test_a_topic_that_did_little_is_closed_without_a_checkpoint(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"a", b"b", b"c"])
    for message in ps.receive("orders", "g", 2):
        message.ack()

    ps = sync.restart()

    assert ledger_begins_at(sync) == 0
    assert values(ps.receive("orders", "g")) == [b"c"]


@pytest.mark.parametrize("much", ["acks", "messages", "leases", "dead letters"])
def test_a_topic_that_did_much_is_closed_with_a_checkpoint(sync: World, much: str) -> None:
    ps = sync.ps
    ps.create_topic("orders", max_retries=0)
    ps.publish_batch("orders", [b"%d" % n for n in range(200)])
    if much == "messages":
        for _ in range(150):
            ps.publish("orders", b"x")
    if much == "acks":
        for message in ps.receive("orders", "g", 200):
            message.ack()
    if much == "leases":
        ps.receive("orders", "g", 1, visibility="60s")
        sync.pass_(50)
    if much == "dead letters":
        ps.receive("orders", "g", 1)[0].nack()
    left = ps.stats("orders")

    ps = sync.restart(down_s=5)

    assert ledger_begins_at(sync) > 0 or much == "messages"
    stats = ps.stats("orders")
    assert (stats.messages, stats.in_flight, stats.dead) == (
        left.messages,
        left.in_flight,
        left.dead,
    )
    if much == "leases":  # the time while nobody was there does not count
        sync.pass_(9)
        assert ps.stats("orders").in_flight == 1
        sync.pass_(2)
        assert ps.stats("orders").in_flight == 0


def test_a_broker_that_did_nothing_leaves_its_folder_as_it_was(tmp_path: Path) -> None:
    def ledger() -> dict[str, bytes]:
        folder = tmp_path / "topics" / "default" / "orders" / "00000" / "ledger"
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    with penstock.connect(tmp_path) as ps:
        ps.create_topic("orders", partitions=1)
        ps.publish_batch("orders", [b"done", b"to do"])
        ps.receive("orders", "g", max_messages=1)[0].ack()
    left = ledger()

    with penstock.connect(tmp_path) as ps:
        assert values(ps.peek("orders")) == [b"done", b"to do"]
    assert ledger() == left

    with penstock.connect(tmp_path) as ps:
        (held,) = ps.receive("orders", "g")
    left = ledger()
    with penstock.connect(tmp_path):
        pass
    assert ledger() != left, "the time that a lease has left is written down"

    with penstock.connect(tmp_path) as ps:
        assert ps.receive("orders", "g") == []
        assert held.value == b"to do"


def test_a_closed_client_says_so(here: World) -> None:
    here.ps.create_topic("orders")
    here.ps.publish("orders", b"x")
    (message,) = here.ps.receive("orders", "g")
    here.broker.close()
    here.broker.close()  # once is enough, twice does no harm
    for ask in (
        lambda: here.ps.publish("orders", b"x"),
        lambda: here.ps.receive("orders", "g"),
        lambda: here.ps.create_topic("others"),
        lambda: here.ps.stats("orders"),
        lambda: here.ps.stream("orders", "s"),
        lambda: here.ps.delete_topic("orders"),
        message.ack,
    ):
        with pytest.raises(BrokerClosed, match=r"was closed; connect again|closed"):
            ask()


def test_a_client_can_be_closed_twice_and_used_as_a_context(tmp_path: Path) -> None:
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders")
        ps.close()
    ps.close()

    async def twice() -> None:
        async with penstock.aio.connect(tmp_path / "data") as ps:
            assert await ps.topics() == ["orders"]
            await ps.close()
        ps = await penstock.aio.connect(tmp_path / "data")
        assert await ps.topics() == ["orders"]
        await ps.close()

    asyncio.run(twice())


def test_a_broker_that_cannot_close_everything_closes_the_rest(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("a", "b", "c"):
        sync.ps.create_topic(topic)
        sync.ps.publish(topic, b"x")
    first = next(t for t in sync.broker.open_topics() if t.name.topic == "a")

    def broken() -> None:
        raise LogFailed("a", OSError(5, "Input/output error"))

    monkeypatch.setattr(first.partitions[0].log, "sync", broken)
    monkeypatch.setattr(first.partitions[0].log, "close", broken)
    with pytest.raises(LogFailed):
        sync.broker.close()
    sync.restart()  # the folder is free
    assert [take(sync.ps, topic) for topic in ("a", "b", "c")] == [[b"x"]] * 3


@pytest.mark.parametrize("mode", ["work", "wait", "stream"])
def test_ctrl_c_leaves_a_clean_folder(mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with child(folder, mode) as process:
        if mode == "work":
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert "KeyboardInterrupt" in errors
        assert process.returncode != 0
    for log in logs_in(folder):
        assert inspect_log(log).all_findings == [], log
    with penstock.connect(folder) as ps:
        stats = ps.stats("orders")
        assert all(p.damaged == 0 for p in stats.partitions)
        if mode == "work":
            assert stats.delayed == 1
            seen = [
                int(m.value) for n in (0, 1) for m in ps.peek("orders", partition=n, limit=10**6)
            ]
            assert sorted(seen) == list(range(len(seen)))  # nothing lost, nothing twice
        else:
            assert take(ps) == [b"kept"]
        if mode == "stream":
            with ps.stream("orders", "audit") as stream:
                assert stream.next(0) is None  # it had asked for the next one


def test_killed_in_the_middle_of_work_the_folder_opens(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for lives in range(1, 4):
        with child(folder, "work") as process:
            time.sleep(0.03)
            process.kill()
        with penstock.connect(folder) as ps:
            stats = ps.stats("orders")
            assert all(p.damaged == 0 for p in stats.partitions)
            in_flight = stats.in_flight
            assert in_flight <= 10 * lives  # what each had in hand when it was killed
            ready = ps.receive("orders", "g", 100_000)
            acked = stats.messages - stats.groups[0].depth if stats.groups else 0
            assert len(ready) + in_flight + acked == stats.messages
            for message in ready:
                message.nack(delay=0)


# One at a time.


def test_a_second_process_is_told_who_has_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with child(folder, "wait") as process:
        with pytest.raises(DataFolderInUse) as caught:
            penstock.connect(folder, exclusive=True)
        assert f"process {process.pid} on " in str(caught.value)
        assert str(folder) in str(caught.value)
        assert "Connect to that process, stop it first, or use another folder" in str(caught.value)
        process.kill()
        process.wait()
        with penstock.connect(folder) as ps:  # however it ended, the folder is free
            assert take(ps) == [b"kept"]


def test_a_second_broker_in_the_same_process_is_refused_too(sync: World) -> None:
    with pytest.raises(DataFolderInUse, match=f"process {os.getpid()}"):
        Broker(LocalEngine(sync.folder))
    sync.close()
    Broker(LocalEngine(sync.folder)).close()


def test_the_owner_may_leave_an_address(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path / "data", owner="the server at http://localhost:8080")
    with (
        Broker(engine),
        pytest.raises(DataFolderInUse, match="in use by the server at http://localhost:8080"),
    ):
        LocalEngine(tmp_path / "data")


def test_a_folder_that_cannot_be_opened_is_not_left_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders")
        ps.publish("orders", b"x")

    def broken(*args: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.broker.store.Store.catalog", broken)
        with pytest.raises(OSError, match="Input/output error"):
            penstock.connect(tmp_path / "data")
    with penstock.connect(tmp_path / "data") as ps:
        assert values(ps.receive("orders", "g")) == [b"x"]


# Async.


def test_a_cancelled_receive_takes_nothing_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with penstock.aio.connect(tmp_path / "data") as ps:
            await ps.create_topic("orders")
            task = asyncio.create_task(ps.receive("orders", "g", wait="20s"))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await ps.publish("orders", b"x")
            assert values(await ps.receive("orders", "g")) == [b"x"]

    asyncio.run(scenario())


def test_the_event_loop_goes_on_while_a_receive_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with penstock.aio.connect(tmp_path / "data") as ps:
            await ps.create_topic("orders", fsync="always")
            polls = [
                asyncio.create_task(ps.receive("orders", "g", 1, wait="20s")) for _ in range(9)
            ]
            await asyncio.sleep(0)
            await asyncio.gather(*[ps.publish("orders", b"%d" % n) for n in range(9)])
            got = [message for poll in polls for message in await poll]
            assert sorted(values(got)) == [b"%d" % n for n in range(9)]
            for message in got:
                async with message:
                    pass
            assert (await ps.stats("orders")).depth == 0

    asyncio.run(scenario())


def test_messages_flow_in_real_time(tmp_path: Path) -> None:
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders", visibility="50ms", max_retries=1, backoff=("10ms", 1.0, "10ms"))
        ps.publish("orders", b"x")
        assert len(ps.receive("orders", "g", wait="10s")) == 1
        assert len(ps.receive("orders", "g", wait="10s")) == 1
        until(lambda: ps.stats("orders").dead == 1)
