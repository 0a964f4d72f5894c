"""Backups of folders that are in use, and what comes back."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import penstock
from penstock.backup import store as store_module
from penstock.backup.restore import restore
from penstock.backup.store import BackupStore
from penstock.errors import BackupDamaged, BackupFailed, InvalidInput
from tests.integration.broker.world import World


def restored(store: BackupStore, folder: Path) -> penstock.Client:
    restore(store, folder)
    return penstock.connect(folder)


def test_a_backup_has_what_was_there_with_positions_delays_and_keys(tmp_path: Path) -> None:
    data, store = tmp_path / "data", BackupStore(tmp_path / "backups")
    with penstock.connect(data) as ps:
        ps.create_topic("orders", partitions=2)
        ps.publish_batch("orders", [b"%d" % n for n in range(10)], partition=1)
        later = ps.publish("orders", b"later", delay="1h")
        for message in ps.receive("orders", "g", 4):
            message.ack()
        (held,) = ps.receive("orders", "g", 1)
        held.reject("broken")
        (data / "keys.json").write_text("{}")
        made = store.make(data)  # while it is in use
        ps.publish("orders", b"after")
    assert made.copied_bytes > 0
    with restored(store, tmp_path / "copy") as ps:
        assert [m.value for m in ps.receive("orders", "g", 20)] == [b"5", b"6", b"7", b"8", b"9"]
        assert [letter.value for letter in ps.dead_letters("orders").list()] == [b"4"]
        assert [each.id for each in ps.delayed("orders")] == [later.id]
    assert (tmp_path / "copy" / "keys.json").read_text() == "{}"


def test_only_their_owner_can_read_backups_and_what_is_restored(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = BackupStore(tmp_path / "of" / "shop" / "backups")
        with penstock.connect(tmp_path / "data") as ps:
            ps.create_topic("orders")
            ps.publish("orders", b"x")
            store.make(tmp_path / "data")
        restore(store, tmp_path / "copy")
    finally:
        os.umask(before)
    for top in (tmp_path / "of" / "shop" / "backups", tmp_path / "copy"):
        found = [top, *top.rglob("*")]
        assert len(found) > 5
        for each in found:
            assert stat.S_IMODE(each.stat().st_mode) == (0o700 if each.is_dir() else 0o600), each


def test_what_was_purged_is_not_back_and_no_damage_is_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, store = tmp_path / "data", BackupStore(tmp_path / "backups")
    with penstock.connect(data) as ps:
        ps.create_topic("orders", segment_bytes=65_536)
        ps.publish_batch("orders", [os.urandom(1000) for _ in range(200)])
        for message in ps.receive("orders", "g", 10):
            message.ack()
        ps.purge("orders")
        ps.publish("orders", b"after")
    with penstock.connect(data):
        store.make(data)  # the journals begin with a checkpoint, made at the start
    caplog.clear()
    with restored(store, tmp_path / "copy") as ps:
        assert [message.value for message in ps.peek("orders")] == [b"after"]
        assert [message.value for message in ps.receive("orders", "g", 10)] == [b"after"]
    assert "damage" not in caplog.text


def test_the_next_one_copies_what_is_new(tmp_path: Path) -> None:
    data, store = tmp_path / "data", BackupStore(tmp_path / "backups")
    with penstock.connect(data) as ps:
        ps.create_topic("orders", segment_bytes=65_536)
        ps.publish_batch("orders", [os.urandom(1000) for _ in range(500)])
        first = store.make(data)
        ps.publish("orders", b"one more")
        second = store.make(data)
    assert first.copied_bytes > 500_000
    assert second.copied_bytes < 150_000 < second.size_bytes
    assert store.names() == [first.name, second.name]
    store.verify(first.name)
    assert store.keep(1) == [first.name]
    store.verify()
    with restored(store, tmp_path / "copy") as ps:
        assert ps.stats("orders").messages == 501


def test_a_backup_while_all_of_it_changes_loses_nothing_that_was_confirmed(
    tmp_path: Path,
) -> None:
    data, store = tmp_path / "data", BackupStore(tmp_path / "backups")
    stop, confirmed, acked = threading.Event(), [0], [0]
    with penstock.connect(data) as ps:
        ps.create_topic("orders", segment_bytes=65_536, max_retries=0, retention_mode="consumed")

        def publish() -> None:
            n = 0
            while not stop.is_set():
                delay = "50ms" if n % 3 == 0 else None
                if delay:
                    ps.publish("orders", b"%d" % n, headers={"x": b"y" * 300}, delay=delay)
                else:
                    ps.publish("orders", b"%d" % n, headers={"x": b"y" * 300})
                n += 1
                confirmed[0] = n

        def consume() -> None:
            while not stop.is_set():
                for message in ps.receive("orders", "g", 20):
                    if int(message.value) % 5:
                        message.ack()
                        acked[0] += 1
                    else:
                        message.reject("broken")

        threads = [threading.Thread(target=work) for work in (publish, consume)]
        for thread in threads:
            thread.start()
        made = []
        for _ in range(4):
            at_least = confirmed[0]
            made.append((store.make(data).name, at_least))
        stop.set()
        for thread in threads:
            thread.join()
        gone = set(range(confirmed[0]))
    for name, at_least in made:
        copy = tmp_path / name
        restore(store, copy, name)
        with penstock.connect(copy) as ps:
            left = {int(m.value) for m in ps.peek("orders", limit=100_000)}
            left |= {int(each.message.value) for each in ps.delayed("orders")}
            letters = {int(letter.value) for letter in ps.dead_letters("orders").list()}
            stats = ps.stats("orders")
            committed = max((max(g.committed.values()) for g in stats.groups), default=0)
            # What is neither here, nor waits, nor died was acked: it was consumed and dropped.
            missing = set(range(at_least)) - left - letters
            assert all(n % 5 for n in missing), f"{name}: {sorted(missing)[:5]} never were acked"
            assert len(missing) <= committed
            assert max(left | letters, default=-1) < len(gone)


def test_transactions_are_whole_in_a_backup(tmp_path: Path) -> None:
    data, store = tmp_path / "data", BackupStore(tmp_path / "backups")
    stop, names = threading.Event(), []
    with penstock.connect(data) as ps:
        for topic in ("one", "two"):
            ps.create_topic(topic)

        def work() -> None:
            n = 0
            while not stop.is_set():
                with ps.transaction() as tx:
                    tx.publish("one", b"%d" % n)
                    tx.publish("two", b"%d" % n)
                n += 1

        thread = threading.Thread(target=work)
        thread.start()
        while not ps.stats("two").messages:
            time.sleep(0.01)
        for _ in range(3):
            names.append(store.make(data).name)
        stop.set()
        thread.join()
    assert any("transactions/journal" in file.path for file in store.load()[1].files)
    for name in names:
        restore(store, tmp_path / name, name)
        with penstock.connect(tmp_path / name) as ps:
            ps.stats("one")
            one, two = ([m.value for m in ps.peek(t, limit=100_000)] for t in ("one", "two"))
            assert one == two, name


def test_damage_is_found_before_anything_is_restored(tmp_path: Path) -> None:
    data, store = tmp_path / "data", BackupStore(tmp_path / "backups")
    with penstock.connect(data) as ps:
        ps.create_topic("orders")
        ps.publish("orders", b"x" * 1000)
    store.make(data)
    largest = max((tmp_path / "backups" / "objects").iterdir(), key=lambda p: p.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[500] ^= 1
    largest.write_bytes(content)
    with pytest.raises(BackupDamaged, match="does not hold what was stored"):
        store.verify()
    with pytest.raises(BackupDamaged):
        restore(store, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    largest.unlink()
    with pytest.raises(BackupDamaged, match="missing"):
        store.verify()


def test_a_backup_that_was_interrupted_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "data")
    world.ps.create_topic("orders")
    store = BackupStore(tmp_path / "backups")
    store.make(tmp_path / "data")
    real, calls = os.rename, [0]

    def rename(source: str, target: str) -> None:
        calls[0] += 1
        if calls[0] == stop_at:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(store_module.os, "rename", rename)
    for stop_at in range(1, 20):
        world.ps.publish("orders", b"%d" % stop_at)
        before, calls[0] = store.names(), 0
        try:
            store.make(tmp_path / "data")
        except KeyboardInterrupt:
            assert store.names() == before
            continue
        break
    else:
        raise AssertionError("it was never made")
    monkeypatch.undo()
    store.verify()
    world.close_all()
    with restored(store, tmp_path / "copy") as ps:
        assert ps.stats("orders").messages == stop_at


def test_what_cannot_be_backed_up_or_restored_is_told(tmp_path: Path) -> None:
    data, store = tmp_path / "data", BackupStore(tmp_path / "backups")
    with pytest.raises(InvalidInput, match="not a data folder"):
        store.make(tmp_path / "nothing")
    with penstock.connect(data):
        store.make(data)
    with pytest.raises(InvalidInput, match="neither in the data folder"):
        BackupStore(data / "backups").make(data)
    with pytest.raises(InvalidInput, match="not empty"):
        restore(store, data)
    with pytest.raises(InvalidInput, match="there are 20"):
        restore(store, tmp_path / "x", "20000101T000000.000Z")
    with store._alone(), pytest.raises(BackupFailed, match="another backup"):
        store.make(data)
    (name,) = store.names()
    path = tmp_path / "backups" / "backups" / f"{name}.json"
    path.write_text(path.read_text().replace('"VERSION"', '"../VERSION"'))
    with pytest.raises(BackupDamaged, match="no path in a data folder"):
        restore(store, tmp_path / "x")
    assert not (tmp_path / "VERSION").exists()


def test_the_commands(tmp_path: Path) -> None:
    data, backups, copy = (str(tmp_path / name) for name in ("data", "backups", "copy"))

    def sh(*words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "penstock", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout

    sh("topic", "create", "orders", "--data", data)
    sh("publish", "orders", "hello", "--data", data)
    assert "backed up" in sh("backup", backups, "--data", data, "--keep", "3")
    assert "whole" in sh("backup", backups, "--verify")
    assert "restored" in sh("restore", backups, "--data", copy)
    assert "hello" in sh("peek", "orders", "--data", copy)
    sh("restore", backups, "--data", copy, code=2)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    store = BackupStore(tmp_path / "backups")
    with pytest.raises(InvalidInput, match=r"there are no backups in .*backups"):
        restore(store, tmp_path / "copy")
    penstock.connect(tmp_path / "data").close()
    store.make(tmp_path / "data")
    with pytest.raises(InvalidInput, match="has no backup '2020': there are 2"):
        store.load("2020")
