"""The data folder is removed, moved or replaced under a broker that works on it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.api import Api
from penstock.broker.broker import Broker, BrokerConfig
from penstock.client.client import Client
from penstock.client.local_link import LocalLink
from penstock.clock import ManualClock
from penstock.errors import DataFolderLost, PenstockError
from penstock.log.local_engine import LocalEngine
from tests.integration.server.asking import Http
from tests.integration.server.running import RunningServer

NOTICED_S_MAX = 20  # a second, and whatever else this machine does


def removed(folder: Path) -> None:
    gone = folder.with_name("gone")  # at once: whoever works there may be making files
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replaced(folder: Path) -> None:
    removed(folder)
    with penstock.connect(folder) as another:
        another.create_topic("orders")


def unlocked(folder: Path) -> None:
    (folder / "LOCK").unlink()


LOSSES = [removed, moved, replaced, unlocked]


def noticed(call: Callable[[], object]) -> PenstockError:
    deadline = time.monotonic() + NOTICED_S_MAX
    while time.monotonic() < deadline:
        try:
            call()
        except DataFolderLost as exc:
            return exc
        except PenstockError:
            pass  # on the way: a file that was to be opened is gone
        time.sleep(0.02)
    raise AssertionError("nobody has noticed")


@pytest.mark.parametrize("lose", LOSSES)
def test_every_call_fails_once_the_folder_is_gone(
    lose: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    ps = penstock.connect(folder)
    ps.create_topic("orders", partitions=2)
    ps.publish("orders", b"a")
    (message,) = ps.receive("orders", "g")
    lose(folder)
    lost = noticed(lambda: ps.publish("orders", b"x"))
    assert lost.code == "data_folder_lost"
    assert str(folder) in str(lost)
    before = contents(folder)
    calls: list[Callable[[], Any]] = [
        lambda: ps.publish("orders", b"y", delay="1s"),
        lambda: ps.publish_batch("orders", [b"y"] * 10),
        lambda: ps.receive("orders", "g", wait="30s"),
        lambda: ps.create_topic("others"),
        lambda: ps.topics() and ps.stats("orders"),
        lambda: ps.peek("orders"),
        message.ack,
        ps.sync,
        lambda: next(ps.stream("orders", group="s")),
    ]
    for call in calls:
        with pytest.raises(DataFolderLost):
            call()
    ps.close()
    assert contents(folder) == before  # nothing of it came into being again, and no other's went


def contents(folder: Path) -> dict[str, int]:
    return {
        os.path.join(root, name): os.stat(os.path.join(root, name)).st_ino
        for root, _, names in os.walk(folder)
        for name in names
    }


def test_whoever_waits_for_messages_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    found: list[BaseException] = []
    with penstock.connect(folder) as ps:
        ps.create_topic("orders")
        ps.receive("orders", "g")  # so that it is open

        def wait() -> None:
            try:
                ps.receive("orders", "g", wait="30s")
            except PenstockError as exc:
                found.append(exc)

        waiting = threading.Thread(target=wait)
        waiting.start()
        removed(folder)
        waiting.join(NOTICED_S_MAX)
        assert not waiting.is_alive()
    assert [type(exc) for exc in found] == [DataFolderLost]


def test_it_is_told_once_and_not_by_every_chore_that_falls_due(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    broker = Broker(LocalEngine(tmp_path / "data", clock=clock), housekeeping=False)
    ps = Client(LocalLink(Api(broker)), "default")
    ps.create_topic("orders", visibility="1s")
    ps.publish("orders", b"a")
    ps.publish("orders", b"b", delay="1s")
    ps.receive("orders", "g")
    assert broker.next_deadline() is not None
    removed(tmp_path / "data")
    broker.lost()  # as whoever watches the folder says
    clock.advance(60)
    assert broker.housekeep() == 0
    with pytest.raises(DataFolderLost):
        ps.receive("orders", "g")  # which would plan something
    clock.advance(60)
    assert broker.housekeep() == 0
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    ps.close()


def test_the_folder_can_be_opened_anew_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    old = penstock.connect(folder)
    old.create_topic("orders")
    removed(folder)
    noticed(lambda: old.publish("orders", b"x"))
    with penstock.connect(folder) as new:
        new.create_topic("orders")
        old.close()
        with penstock.connect(folder) as other:  # the socket of the new owner is still there
            other.publish("orders", b"x")
        assert [m.value for m in new.peek("orders")] == [b"x"]


def test_a_server_is_not_ready_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    broker = Broker(LocalEngine(folder), BrokerConfig(free_bytes_min=0, auto_create=True))
    with broker, RunningServer(broker) as server, Http(server.port) as http:
        assert http.post("/v1/topics/orders/messages", {"value": "a"}).status == 201
        assert http.get("/readyz").status == 200
        removed(folder)
        far = penstock.connect(server.url, retry_for="0s")
        noticed(lambda: far.publish("orders", b"x"))
        answer = http.post("/v1/topics/orders/messages", {"value": "a"})
        assert (answer.status, answer.code) == (503, "data_folder_lost")
        ready = http.get("/readyz")
        assert ready.status == 503
        assert b"removed, moved or replaced" in ready.body
        assert http.get("/healthz").status == 200
        far.close()


def test_a_folder_that_is_closed_first_may_be_removed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with penstock.connect(folder) as ps:
        ps.create_topic("orders")
        removed(folder)  # too late for anybody to look
    assert not folder.exists()
