"""Folders of LedgerQ and GoQueue, and files: what comes over, once, and what is told of damage."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.record.schema import Priority
from penstock.transfer.exporting import export
from penstock.transfer.files import read_file
from penstock.transfer.goqueue import GoQueueFolder
from penstock.transfer.importing import Importer
from penstock.transfer.ledgerq import LedgerQFolder
from tests.integration.transfer.folders import (
    goqueue_delays,
    goqueue_log,
    goqueue_message,
    goqueue_offsets,
    ledgerq_entry,
    ledgerq_folder,
)


@pytest.fixture
def ps(tmp_path: Path) -> Iterator[Any]:
    with penstock.connect(tmp_path / "data") as client:
        yield client


def values(ps: Any, topic: str, group: str = "check") -> list[bytes]:
    return [message.value for message in ps.receive(topic, group, 1000)]


def test_a_queue_of_ledgerq_comes_over_with_all_that_it_says(tmp_path: Path, ps: Any) -> None:
    later_ns = time.time_ns() + 3600 * 10**9
    folder = ledgerq_folder(
        tmp_path / "lq",
        [
            [
                ledgerq_entry(1, b"done"),
                ledgerq_entry(2, b"plain", headers={"a": "b"}),
                ledgerq_entry(3, b"urgent", priority=2),
            ],
            [
                ledgerq_entry(4, b"old", expires_ns=1),
                ledgerq_entry(5, b"x" * 1000, compress=True, priority=1, expires_ns=later_ns),
                ledgerq_entry(6, b"", kind=2),
                bytes(500),
            ],
        ],
        read_id=2,
        retries=[{"msg_id": 2, "retry_count": 3, "failure_reason": "no answer"}],
    )
    before = {path: path.read_bytes() for path in folder.iterdir()}
    source = LedgerQFolder(folder, "orders")
    (done,) = Importer(ps, source).run()
    assert (done.messages, done.expired, done.known, done.positions) == (5, 1, 0, 1)
    assert source.damage == []
    found = ps.receive("orders", "ledgerq", 10)  # the group goes on where it was
    assert sorted(m.value for m in found) == sorted([b"plain", b"urgent", b"x" * 1000])
    by_value = {m.value: m for m in found}
    assert by_value[b"urgent"].priority == Priority.CRITICAL
    assert by_value[b"plain"].headers["a"] == b"b"
    assert by_value[b"plain"].headers["ledgerq-retry-count"] == b"3"
    assert by_value[b"plain"].headers["ledgerq-failure-reason"] == b"no answer"
    assert by_value[b"x" * 1000].expires_at is not None
    assert b"done" in values(ps, "orders")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_an_import_again_brings_only_what_is_new(tmp_path: Path, ps: Any) -> None:
    entries = [ledgerq_entry(n, b"%d" % n) for n in range(1, 4)]
    folder = ledgerq_folder(tmp_path / "lq", [entries], read_id=1)
    Importer(ps, LedgerQFolder(folder, "orders")).run()
    for message in ps.receive("orders", "ledgerq", 2):
        message.ack()
    log = folder / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + ledgerq_entry(4, b"4"))
    (done,) = Importer(ps, LedgerQFolder(folder, "orders")).run()
    assert (done.messages, done.positions) == (1, 0)
    assert values(ps, "orders", "ledgerq") == [b"3", b"4"]


def test_an_interrupted_import_leaves_no_duplicates(tmp_path: Path, ps: Any) -> None:
    entries = [ledgerq_entry(n, b"%d" % n) for n in range(1, 3001)]
    folder = ledgerq_folder(tmp_path / "lq", [entries], read_id=2500)

    class Interrupted(Exception):
        pass

    for stop_at in (1, 2, 3, 4):
        left = iter(range(stop_at - 1))

        def advance(name: str, count: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise Interrupted

        try:
            Importer(ps, LedgerQFolder(folder, "orders"), advance=advance).run()
        except Interrupted:
            continue
    (done,) = Importer(ps, LedgerQFolder(folder, "orders")).run()
    assert ps.stats("orders").messages == 3000
    assert done.messages == 0 or done.known == done.messages
    assert values(ps, "orders", "ledgerq") == [b"%d" % n for n in range(2500, 3001)]


@pytest.mark.parametrize("where", [0.3, 0.6, 0.95])
def test_damage_costs_what_it_hit_and_is_told(tmp_path: Path, ps: Any, where: float) -> None:
    entries = [ledgerq_entry(n, b"%04d" % n + os.urandom(50)) for n in range(100)]
    folder = ledgerq_folder(tmp_path / "lq", [entries, [ledgerq_entry(100, b"last")]])
    log = folder / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[int(len(data) * where)] ^= 0x40
    log.write_bytes(data[:-10])
    source = LedgerQFolder(folder, "orders")
    (done,) = Importer(ps, source).run()
    assert 96 <= done.messages <= 100
    assert 1 <= len(source.damage) <= 2
    assert b"last" in values(ps, "orders")


def test_dead_letters_of_ledgerq_can_be_redriven(tmp_path: Path, ps: Any) -> None:
    headers = {
        "dlq.original_msg_id": "7",
        "dlq.retry_count": "3",
        "dlq.failure_reason": "boom",
        "dlq.last_failure": "2026-01-01T00:00:00Z",
        "own": "kept",
    }
    folder = ledgerq_folder(tmp_path / "dlq", [[ledgerq_entry(1, b"bad", headers=headers)]])
    ps.create_topic("orders")
    Importer(ps, LedgerQFolder(folder, "orders.dlq", "orders")).run()
    (letter,) = ps.dead_letters("orders").list()
    assert (letter.value, letter.attempts, letter.error) == (b"bad", 3, "boom")
    assert letter.origin.offset == 7
    assert letter.headers["own"] == b"kept"
    assert ps.dead_letters("orders").redrive() == 1
    assert values(ps, "orders") == [b"bad"]


def test_topics_of_goqueue_come_over_with_groups_and_delays(tmp_path: Path, ps: Any) -> None:
    folder, hour_ns = tmp_path / "gq", time.time_ns() + 3600 * 10**9
    goqueue_log(
        folder,
        "orders",
        0,
        [
            goqueue_message(0, b"zero", key=b"k", headers={"h": b"\xff"}, priority=0),
            goqueue_message(1, b"one" * 100, compress="gzip"),
            goqueue_message(2, b"two" * 100, compress="deflate"),
            goqueue_message(3, b"waits"),
        ],
        [
            goqueue_message(4, b"marker", flags=8),
            goqueue_message(5, b"was delayed"),
            goqueue_message(6, b"older", older=True, key=b"old"),
            goqueue_message(7, b"", key=b"k", flags=4),
            goqueue_message(8, b"cancelled"),
            goqueue_message(9, b"expired"),
        ],
    )
    goqueue_log(folder, "orders", 1, [goqueue_message(0, b"other")])
    goqueue_log(folder, "empty", 0)
    goqueue_delays(
        folder, "orders", (3, hour_ns, 0, 0), (5, 1, 0, 1), (8, hour_ns, 0, 2), (9, 1, 0, 3)
    )
    goqueue_offsets(folder, "billing", "orders", {0: 5, 1: 1})
    source = GoQueueFolder(folder)
    done = {each.topic: each for each in Importer(ps, source).run()}
    assert source.damage == []
    assert (done["orders"].messages, done["orders"].delayed) == (8, 1)
    assert done["orders"].positions == 2
    zero = ps.peek("orders", partition=0, limit=1)[0]
    assert (zero.value, zero.key, zero.headers["h"]) == (b"zero", b"k", b"\xff")
    assert zero.priority == Priority.CRITICAL
    (waiting,) = ps.delayed("orders")
    assert waiting.message.value == b"waits"
    assert values(ps, "orders", "billing") == [b"was delayed", b"older", None]
    everything = values(ps, "orders")
    assert sorted(filter(None, everything)) == sorted(
        [b"zero", b"one" * 100, b"two" * 100, b"was delayed", b"older", b"other"]
    )
    assert [x.messages for x in Importer(ps, GoQueueFolder(folder)).run()] == [0, 0]


@pytest.mark.parametrize("snake", [True, False])
def test_dead_letters_of_goqueue_are_letters(tmp_path: Path, ps: Any, snake: bool) -> None:
    folder = tmp_path / "gq"
    letter = {
        "original_topic": "orders",
        "original_partition": 0,
        "original_offset": 12,
        "original_key": base64.b64encode(b"k").decode(),
        "original_value": base64.b64encode(b"\x00bad").decode(),
        "delivery_attempts": 4,
        "last_error": "boom",
        "last_group": "billing",
        "reason" if snake else "dlq_reason": "MAX_RETRIES_EXCEEDED",
    }
    if not snake:
        letter = {
            "".join(part.title() if n else part for n, part in enumerate(name.split("_"))): value
            for name, value in letter.items()
        }
    goqueue_log(folder, "orders", 0, [goqueue_message(0, b"x")])
    goqueue_log(folder, "orders.dlq", 0, [goqueue_message(0, json.dumps(letter).encode())])
    Importer(ps, GoQueueFolder(folder)).run()
    (found,) = ps.dead_letters("orders").list()
    assert (found.value, found.key, found.attempts) == (b"\x00bad", b"k", 4)
    assert (found.error, found.origin.offset) == ("boom", 12)
    assert (found.origin.reason, found.origin.group) == ("max_retries", "billing")
    assert ps.dead_letters("orders").redrive() == 1
    assert values(ps, "orders", "billing") == [b"x", b"\x00bad"]
    assert values(ps, "orders", "other") == [b"x"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_goes_out_and_comes_back(tmp_path: Path, ps: Any, kind: str) -> None:
    ps.create_topic("orders", partitions=2)
    ps.publish("orders", "größer", key="k", headers={"a": b"\xff", "n": None}, priority="high")
    ps.publish("orders", b"\x00\xff", ttl="1h")
    ps.publish("orders", None, key="gone")
    path = tmp_path / f"out.{kind}"
    assert export(ps, "orders", path).count == 3
    (done,) = Importer(ps, read_file(path, "copy")).run()
    assert done.messages == 3
    found = {m.value: m for m in ps.receive("copy", "g", 10)}
    assert set(found) == {"größer".encode(), b"\x00\xff", None}
    first = found["größer".encode()]
    assert (first.key, first.headers["a"], first.headers["n"]) == (b"k", b"\xff", None)
    assert first.priority == Priority.HIGH
    assert found[b"\x00\xff"].expires_at is not None
    (again,) = Importer(ps, read_file(path, "copy")).run()
    assert again.messages == 0


def test_a_topic_goes_to_another_folder_with_its_groups(tmp_path: Path, ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    for partition in range(2):
        numbers = [b"%d" % n for n in range(5)]
        ps.publish_batch("orders", numbers, partition=partition)
    for message in ps.receive("orders", "g", 3, partition=1):
        message.ack()
    assert export(ps, "orders", tmp_path / "other").count == 10
    with penstock.connect(tmp_path / "other") as other:
        got = [m.value for m in other.receive("orders", "g", 100, partition=1)]
        assert got == [b"3", b"4"]
        assert len(other.receive("orders", "g", 100, partition=0)) == 5


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_export_that_is_interrupted_leaves_nothing(kind: str, tmp_path: Path, ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", ["a", "b"])

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        export(ps, "orders", tmp_path / "out" / f"x.{kind}", interrupt)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_topic_does_not_go_to_itself(tmp_path: Path, ps: Any) -> None:
    """Its messages would be there twice."""
    ps.create_topic("orders")
    ps.publish_batch("orders", ["a", "b"])
    folder = tmp_path / "own"
    with penstock.connect(folder, auto_create=True) as own:
        own.publish("orders", "a")
        with pytest.raises(InvalidInput, match="name another folder"):
            export(own, "orders", folder)
        assert own.stats("orders").messages == 1
        assert export(ps, "orders", folder).count == 2  # another topic of that name is no copy


def test_lines_that_are_none_are_told(tmp_path: Path, ps: Any) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"value": "a"}\n{\n\n{"value": 5}\n{"value": "b", "priority": "top"}\n{"value": "c"}\n'
    )
    source = read_file(path, "orders")
    Importer(ps, source).run()
    assert values(ps, "orders") == [b"a", b"c"]
    assert [each.reason.partition(":")[0] for each in source.damage] == [
        "line 2",
        "line 4",
        "line 5",
    ]
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    broken = read_file(tmp_path / "x.parquet", "orders")
    Importer(ps, broken).run()
    assert len(broken.damage) == 1
    for wrong in ("x.csv", "nothing.jsonl"):
        with pytest.raises(InvalidInput):
            read_file(tmp_path / wrong, "orders")
    with pytest.raises(InvalidInput, match="no segment"):
        LedgerQFolder(tmp_path, "orders")
    with pytest.raises(InvalidInput, match="no logs"):
        GoQueueFolder(tmp_path)


def test_the_commands(tmp_path: Path) -> None:
    folder = ledgerq_folder(tmp_path / "lq", [[ledgerq_entry(1, b"hello")]], read_id=1)
    data = str(tmp_path / "data")

    def sh(*words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "penstock", *words, "--data", data]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout

    found = json.loads(sh("import", "ledgerq", str(folder), "orders", "--json"))
    assert found["topics"][0]["messages"] == 1
    assert "1 messages" in sh("export", "orders", str(tmp_path / "out.jsonl"))
    assert "hello" in (tmp_path / "out.jsonl").read_text()
    sh("import", "file", str(tmp_path / "out.jsonl"), "copy")
    assert "hello" in sh("peek", "copy")
    log = folder / f"{0:020d}.log"
    log.write_bytes(log.read_bytes() + b"damage of some length, to be told of")
    sh("import", "ledgerq", str(folder), "orders", code=1)
