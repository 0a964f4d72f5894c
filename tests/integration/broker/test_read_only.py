"""Looking at a data folder, or at a server, without changing anything."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.broker import Broker
from penstock.errors import InvalidInput, LogNotFound, ReadOnly
from penstock.log.local_engine import LocalEngine
from tests.integration.server.running import RunningServer


def fill(ps: Any) -> None:
    ps.create_topic("orders", partitions=2, max_retries=0)
    for n in range(20):
        ps.publish("orders", b"%d" % n, key=f"k{n}")
    ps.publish("orders", b"later", delay="1h", dedup_id="x")
    for message in ps.receive("orders", "g", 3):
        message.nack(error="no")
    ps.receive("orders", "g", 2)


def check(ps: Any) -> None:
    assert ps.topics() == ["orders", "orders.dlq"]
    stats = ps.stats("orders")
    assert (stats.messages, stats.delayed, stats.dead, stats.in_flight) == (20, 1, 3, 2)
    assert {m.value for m in ps.peek("orders", limit=99)} == {b"%d" % n for n in range(20)}
    assert len(list(ps.read("orders", 0, 0))) > 0
    assert [each.message.value for each in ps.delayed("orders")] == [b"later"]
    assert {letter.origin.group for letter in ps.dead_letters("orders").list()} == {"g"}
    assert ps.groups("orders") == ["g"]


def check_refusals(ps: Any) -> None:
    writes: list[Callable[[], Any]] = [
        lambda: ps.publish("orders", b"x"),
        lambda: ps.publish("orders", b"x", delay="1s"),
        lambda: ps.publish_batch("orders", [b"x"]),
        lambda: ps.receive("orders", "g"),
        lambda: next(iter(ps.listen("orders", "g"))),
        lambda: ps.create_topic("others"),
        lambda: ps.alter_topic("orders", ttl="1h"),
        lambda: ps.delete_topic("orders"),
        lambda: ps.purge("orders"),
        lambda: ps.compact("orders"),
        lambda: ps.seek("orders", "g", "earliest"),
        lambda: ps.cancel("orders", "0" * 26),
        lambda: ps.dead_letters("orders").redrive(),
        lambda: next(ps.stream("orders", group="s")),
        ps.sync,
    ]
    for write in writes:
        with pytest.raises(ReadOnly) as refused:
            write()
        assert refused.value.code == "read_only"


def image(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file with what is in it and when it was changed."""
    return {
        os.path.join(root, name): (
            hashlib.sha256(Path(root, name).read_bytes()).hexdigest(),
            os.stat(os.path.join(root, name)).st_mtime_ns,
        )
        for root, _, names in os.walk(folder)
        for name in names
        if name != "SOCKET"
    }


@pytest.mark.parametrize("torn", [False, True])
def test_a_folder_that_nobody_has_stays_as_it_is(tmp_path: Path, torn: bool) -> None:
    folder = tmp_path / "data"
    with penstock.connect(folder) as ps:
        fill(ps)
    if torn:  # as a crash would leave it; whoever owns it next puts it in order
        for path in folder.rglob("*.log"):
            with path.open("ab") as file:
                file.write(b"half a frame")
    before = image(folder)
    with penstock.connect(folder, read_only=True) as ps:
        check(ps)
        check_refusals(ps)
        with penstock.connect(folder, read_only=True) as another:
            check(another)
        assert image(folder) == before
        with penstock.connect(folder, exclusive=True):
            pass  # nobody has it
    assert not (folder / "SOCKET").exists()


def test_beside_its_owner_one_sees_what_comes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with penstock.connect(folder) as owner:
        fill(owner)
        with penstock.connect(folder, read_only=True) as ps:
            check(ps)
            check_refusals(ps)
            owner.publish("orders", b"more")
            assert ps.stats("orders").messages == 21


def test_it_does_not_take_the_folder_over_when_the_owner_goes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    owner = penstock.connect(folder)
    fill(owner)
    with penstock.connect(folder, read_only=True) as ps:
        check(ps)
        owner.close()
        before = image(folder)
        check(ps)
        check_refusals(ps)
        assert image(folder) == before
        penstock.connect(folder, exclusive=True).close()


def test_beside_an_owner_that_does_not_share_one_sees_it_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with penstock.connect(folder, exclusive=True) as owner:
        fill(owner)
        with penstock.connect(folder, read_only=True) as ps:
            check(ps)


def test_a_server_can_be_looked_at_too(tmp_path: Path) -> None:
    with Broker(LocalEngine(tmp_path / "data")) as broker, RunningServer(broker) as server:
        with penstock.connect(server.url) as ps:
            fill(ps)
        with penstock.connect(server.url, read_only=True) as ps:
            check(ps)
            check_refusals(ps)


def test_what_is_no_data_folder_is_not_made_one(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        penstock.connect(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()
    for how in ({"auto_create": True}, {"exclusive": True}):
        with pytest.raises(InvalidInput):
            penstock.connect(tmp_path / "data", read_only=True, **how)
