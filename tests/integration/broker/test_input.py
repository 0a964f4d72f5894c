"""What is wrong is refused with words that help, before anything is written."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.errors import InvalidInput, LogError, Unavailable
from tests.integration.broker.world import World


def files_in(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"partitons": 4}, "unknown topic setting 'partitons'; did you mean 'partitions'?"),
        ({"visibility_timeout": "1s"}, "unknown topic setting 'visibility_timeout'"),
        ({"partitions": 0}, "partitions is 0; it must be a whole number from 1 to 10000"),
        ({"partitions": 10_001}, "from 1 to 10000"),
        ({"partitions": "4"}, "Expected `int`, got `str`"),
        ({"partitions": 4.0}, "partitions"),
        ({"partitions": True}, "Expected `int`, got `bool`"),
        ({"visibility": "30"}, "visibility is '30'; a duration is a string such as \"250ms\""),
        ({"visibility": "30 s"}, "visibility is '30 s'"),
        ({"visibility": "30sec"}, "visibility is '30sec'"),
        ({"visibility": -1}, "must not be negative"),
        ({"visibility": "13h"}, "is 46800000; it must be a whole number from 0 to 43200000"),
        ({"visibility": None}, "visibility is None"),
        ({"visibility": float("nan")}, "visibility is nan"),
        ({"visibility": True}, "visibility is True"),
        ({"max_retries": -1}, "max_retries is -1"),
        ({"max_retries": "three"}, "Expected"),
        ({"backoff": "1s"}, "give the first delay, a factor and the longest delay"),
        ({"backoff": ("1s", 2.0)}, "give the first delay"),
        ({"backoff": ("1s", 0.5, "60s")}, "factor"),
        ({"backoff": ("60s", 2.0, "1s")}, "the longest at least the first"),
        ({"ttl": 0}, "is 0; it must be a whole number from 1"),
        ({"retention": "7 days"}, "retention is '7 days'"),
        ({"retention_mode": "eternal"}, "retention_mode is 'eternal'; allowed: time, consumed"),
        ({"fsync": "sometimes"}, "allowed: always, interval, batch, never"),
        ({"codec": "zip"}, "allowed: none, lz4, zstd, gzip"),
        ({"segment_bytes": 10}, "at least 4096"),
        ({"message_bytes_max": 1 << 30}, "from 1 to 67108864"),
        ({"weights": [1, 2, 3]}, "weights"),
        ({"weights": [0, 1, 1, 1, 1]}, "each must be at least 1"),
        ({"weights": 5}, "weights"),
        ({"in_flight_max": 0}, "in_flight_max is 0"),
        ({"dedup_window": "15d"}, "dedup_window"),
        ({"ordered_by_key": "yes"}, "Expected `bool`"),
    ],
)
def test_a_wrong_setting_says_what_is_allowed(
    wrong: dict[str, Any], says: str, sync: World
) -> None:
    before = files_in(sync.folder)
    with pytest.raises(InvalidInput) as caught:
        sync.ps.create_topic("orders", **wrong)
    assert says in str(caught.value)
    assert (caught.value.code, caught.value.retriable) == ("invalid_input", False)
    assert files_in(sync.folder) == before


@pytest.mark.parametrize(
    "how",
    [
        {"value": 5},
        {"value": {"a"}},
        {"value": {"a": object}},
        {"key": 5},
        {"headers": "x"},
        {"headers": {"a": 5}},
        {"headers": {5: "a"}},
        {"headers": [("a", "b")]},
        {"priority": "urgent"},
        {"priority": 5},
        {"priority": -1},
        {"priority": 2.5},
        {"priority": True},
        {"priority": None},
        {"ttl": "1 hour"},
        {"ttl": -1},
        {"ttl": 10**15},
        {"delay": "1"},
        {"dedup_id": 5},
        {"dedup_id": ""},
        {"dedup_id": "\ud800"},
        {"topic": "No!"},
    ],
    ids=str,
)
def test_a_wrong_message_is_refused_before_anything_is_written(
    how: dict[str, Any], world: World
) -> None:
    world.restart(auto_create=True)
    world.ps.create_topic("orders")
    before = files_in(world.folder)
    for topic in ("orders", "not-there-yet"):
        with pytest.raises(InvalidInput):
            world.ps.publish(**{"topic": topic, "value": b"x"} | how)
    assert files_in(world.folder) == before
    assert world.ps.topics() == ["orders"]


@pytest.mark.parametrize(
    "how",
    [
        {"messages": b"abc"},
        {"messages": "abc"},
        {"messages": 5},
        {"messages": [1, 2]},
        {"messages": [b"a"], "keys": [b"k", b"l"]},
        {"messages": [b"a"], "keys": 5},
        {"messages": [b"a", b"b"], "keys": "ab"},
        {"messages": [b"a", b"b"], "keys": {"a": 1, "b": 2}},
        {"messages": {"a": 1}},
        {"messages": [b"a"], "headers": 5},
        {"messages": [b"a"], "headers": [{}, {}]},
        {"messages": [b"a"], "priority": [1, 2]},
        {"messages": [b"a"], "priority": ["x"]},
        {"messages": [b"a"], "ttl": "x"},
    ],
    ids=str,
)
def test_a_wrong_batch_is_refused_before_anything_is_written(
    how: dict[str, Any], world: World
) -> None:
    world.restart(auto_create=True)
    before = files_in(world.folder)
    with pytest.raises(InvalidInput):
        world.ps.publish_batch("orders", **how)
    with pytest.raises(InvalidInput):
        world.ps.schedule_batch("orders", **{"delay": "1s"} | how)
    assert files_in(world.folder) == before


@pytest.mark.parametrize(
    "how",
    [
        {"max_messages": 0},
        {"max_messages": "3"},
        {"visibility": "x"},
        {"visibility": "13h"},
        {"wait": "1 m"},
        {"wait": 31},
        {"consumer": 5},
        {"group": "a b"},
        {"topic": ""},
    ],
    ids=str,
)
def test_a_wrong_receive_is_refused_before_anything_is_written(
    how: dict[str, Any], world: World
) -> None:
    world.restart(auto_create=True)
    before = files_in(world.folder)
    for method in (world.ps.receive, world.ps.receive_batch):
        with pytest.raises(InvalidInput):
            method(**{"topic": "orders", "group": "g"} | how)
    assert files_in(world.folder) == before


def test_a_data_frame_is_refused_with_what_to_give_instead(world: World) -> None:
    pandas = pytest.importorskip("pandas")
    world.restart(auto_create=True)
    for frame in (pandas.DataFrame({"value": ["a", "b"]}), pandas.DataFrame()):
        with pytest.raises(InvalidInput, match="not a DataFrame; give the list of one of its col"):
            world.ps.publish_batch("orders", frame)
    assert world.ps.topics() == []
    world.ps.publish_batch("orders", pandas.Series(["a", "b"]))
    assert world.ps.stats("orders").messages == 2


@pytest.mark.parametrize("at", [[1e9, 2e9], 1e9])
def test_delay_and_deliver_at_exclude_each_other(at: Any, world: World) -> None:
    world.restart(auto_create=True)
    before = files_in(world.folder)
    with pytest.raises(InvalidInput, match="give delay or deliver_at, not both"):
        world.ps.schedule_batch("orders", [b"a", b"b"], delay="1s", deliver_at=at)
    assert files_in(world.folder) == before


@pytest.mark.parametrize("limit", ["x", 1.5, -1, True])
def test_a_wrong_limit_is_refused(limit: Any, ps: Any) -> None:
    ps.create_topic("orders")
    for call in (
        lambda: ps.delayed("orders", limit),
        lambda: list(ps.dead_letters("orders").list(limit=limit)),
        lambda: ps.peek("orders", limit=limit),
        lambda: ps.dead_letters("orders").redrive(limit=limit),
        lambda: ps.dead_letters("orders").purge(limit=limit),
    ):
        with pytest.raises(InvalidInput, match=r"limit is .*; it must be a whole number from 0 up"):
            call()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"letters": 5}, "a dead letter or a list of them is wanted"),
        ({"letters": "abc"}, "a dead letter or a list of them is wanted"),
        ({"letters": [None]}, "a dead letter or a list of them is wanted"),
        ({"where": "x"}, "where is 'x'; it must be a function"),
    ],
    ids=str,
)
def test_letters_that_are_none_are_refused(how: dict[str, Any], says: str, ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    ps.receive("orders", "g")[0].reject("broken")
    letters = ps.dead_letters("orders")
    for call in (letters.redrive, letters.purge):
        with pytest.raises(InvalidInput, match=says):
            call(**how)
    with pytest.raises(InvalidInput, match="where is 'x'"):
        list(letters.list(where="x"))
    assert letters.count() == 1


@pytest.mark.parametrize("duration", ["1m30s", "90s", 90, 90.0, timedelta(seconds=90), "0.025h"])
def test_a_duration_can_be_said_in_many_ways(duration: Any, ps: Any) -> None:
    assert ps.create_topic("orders", visibility=duration).visibility_ms == 90_000


def test_a_url_of_something_else_is_not_taken_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="give a folder, http://host:port or https"):
        penstock.connect("nats://y")
    for typo in ("http:/localhost:8080", "https:localhost", "http:"):
        with pytest.raises(InvalidInput, match="is no URL: for a server write http://host:port"):
            penstock.connect(typo)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", [None, "", 5, b"data"], ids=repr)
def test_what_is_neither_a_folder_nor_a_url_is_refused(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InvalidInput, match=r"cannot connect to .*: give a folder, http://host:port"
    ):
        penstock.connect(target)

    async def connect() -> None:
        await penstock.aio.connect(target)

    with pytest.raises(InvalidInput, match="cannot connect to"):
        asyncio.run(connect())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("auto_create", ["no", 1, None])
def test_auto_create_is_true_or_false(auto_create: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"auto_create is .*; it must be True or False"):
        penstock.connect(tmp_path / "data", auto_create=auto_create)
    with pytest.raises(InvalidInput, match=r"auto_create is .*; it must be True or False"):
        penstock.connect("http://127.0.0.1:1", auto_create=auto_create)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1/süd", "percent-encoded"),
        ("http://a..b", "is not a URL"),
        ("http://x:port", "is not a URL"),
        ("http://user@127.0.0.1:1", "neither user, query nor fragment"),
        ("http://", "give a folder, http://host:port"),
    ],
)
def test_a_url_that_cannot_be_one_of_a_server_is_told_in_a_sentence(url: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        penstock.connect(url)


def test_a_host_may_have_letters_of_all_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def refuse(address: tuple[str, int], timeout_s: float) -> None:
        asked.append(address)
        raise ConnectionRefusedError("nobody is there")

    monkeypatch.setattr("socket.create_connection", refuse)
    with pytest.raises(Unavailable):
        penstock.connect("http://bücher.example:7", timeout="0s").topics()
    assert set(asked) == {("xn--bcher-kva.example", 7)}


def test_what_is_for_a_server_is_refused_for_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a folder needs neither"):
        penstock.connect(tmp_path / "data", api_key="k")
    with pytest.raises(InvalidInput, match="auto_create is for a folder"):
        penstock.connect("http://127.0.0.1:1", auto_create=True)
    assert not (tmp_path / "data").exists()


def test_what_cannot_be_a_data_folder_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LogError, match=r"file/data cannot be a data folder: .*file: File exists"):
        penstock.connect(tmp_path / "file" / "data")


def test_a_wrong_namespace_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="namespace name"):
        penstock.connect(tmp_path / "data", namespace="No!")
    with penstock.connect(tmp_path / "data", namespace="yes") as ps:
        ps.create_topic("orders")
