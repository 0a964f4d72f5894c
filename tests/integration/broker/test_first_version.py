"""A data folder that the first version wrote is opened, and everything in it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import FormatOutdated, FormatUnknown, LogError
from penstock.log.inspect import find_logs, inspect_log
from penstock.log.local import LocalLog
from penstock.log.log_reader import LogReader
from penstock.log.segment_scan import Options
from penstock.spark.folder import DataFolder
from tests.first_version import unpack
from tests.integration.broker.world import World

MONTH_S = 30 * 24 * 3600


@pytest.fixture(params=["closed", "killed"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    unpack(request.param, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def world(old: Path) -> Iterator[World]:
    world = World(old)
    world.clock.advance(1)
    yield world
    world.close_all()


def test_everything_goes_on(world: World) -> None:
    for _ in range(2):
        ps = world.ps
        assert ps.topics() == ["orders", "orders.dlq", "prices"]
        found = [m for p in (0, 1) for m in ps.peek("orders", partition=p, limit=100)]
        assert sorted(m.value[:8] for m in found if m.value.startswith(b"order")) == [
            b"order %02d" % number for number in range(40)
        ]
        assert [m.headers for m in found if m.value == b"squeezed " * 500] == [{"trace": b"1"}]
        prices = ps.peek("prices", limit=100)
        assert [(m.offset, m.value[:3]) for m in prices] == [
            (n, b"%03d" % n) for n in range(54, 60)
        ]
        stats = ps.stats("orders")
        assert (stats.messages, stats.depth, stats.in_flight, stats.delayed) == (42, 30, 1, 1)
        letters = list(ps.dead_letters("orders"))
        assert [letter.message.value[:8] for letter in letters] == [b"order 10", b"order 20"]
        # A group that read topics of two namespaces is one in each of them now.
        for namespace, topic in (("default", "orders"), ("eu", "eu/orders")):
            committed = world.client(namespace).describe_stream_group("audit").committed
            assert {(p.topic, p.partition): o for p, o in committed.items()} == {(topic, 0): 2}
        assert ps.publish("orders", b"once", dedup_id="d-1").duplicate
        world.restart()


def test_what_was_leased_and_delayed_comes_when_it_is_time(world: World) -> None:
    world.pass_(1)
    assert len(list(world.ps.dead_letters("orders"))) == 2
    world.pass_(3600)
    assert len(list(world.ps.dead_letters("orders"))) == 3  # its only attempt has timed out
    assert len(world.ps.receive("orders", group="billing", max_messages=100)) == 29
    world.pass_(MONTH_S)
    values = [m.value for m in world.ps.receive("orders", group="billing", max_messages=100)]
    assert values == [b"later"]


def test_the_converted_folder_is_whole(world: World, old: Path) -> None:
    for namespace in ("default", "eu"):
        world.client(namespace).all_stats()  # opens each topic, which makes its indexes anew
    world.close()
    assert (old / "VERSION").read_text() == "2\n"
    logs = find_logs(old)
    assert len(logs) > 10
    for log in logs:
        report = inspect_log(log, Options(deep=True))
        assert (report.damage, report.notes) == ([], [])
    assert not list(old.rglob("*.damaged"))
    assert DataFolder(str(old)).topics() == ["orders", "orders.dlq", "prices"]


def test_who_only_reads_is_told_to_convert_it(old: Path) -> None:
    log = old / "topics" / "default" / "orders" / "00000" / "log"
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    for read in (
        lambda: DataFolder(str(old)).topics(),
        lambda: LogReader.open(log),
        lambda: inspect_log(log),
        lambda: LocalLog.open(log, lock=False),
    ):
        with pytest.raises(FormatOutdated, match=r"penstock\.connect"):
            read()
    after = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert {p: data for p, data in after.items() if p in before} == before


def test_a_folder_of_a_later_version_is_refused(tmp_path: Path) -> None:
    World(tmp_path / "data").close_all()
    assert (tmp_path / "data" / "VERSION").read_text() == "2\n"
    (tmp_path / "data" / "VERSION").write_text("3\n")
    with pytest.raises(FormatUnknown, match="version 3"):
        World(tmp_path / "data")
    with pytest.raises(FormatUnknown, match="version 3"):
        DataFolder(str(tmp_path / "data")).topics()
    (tmp_path / "data" / "VERSION").write_text("?\n")
    with pytest.raises(LogError, match="VERSION is damaged"):
        World(tmp_path / "data")
