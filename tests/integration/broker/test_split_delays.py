"""Folders in which a topic had one log for the delayed messages of all its partitions."""

from __future__ import annotations

from pathlib import Path

import mmh3
import msgspec
import pytest

from penstock.broker import split_delays as splitting
from penstock.broker.broker import Broker
from penstock.broker.journal import Journal
from penstock.broker.split_delays import PARTITION_HEADER
from penstock.clock import ManualClock
from penstock.config import LogConfig
from penstock.delivery.offsets import Offsets, encode_hook
from penstock.log.local_engine import LocalEngine
from penstock.model.names import topic_name
from penstock.record.batch import Batch
from tests.integration.broker.world import QuickFiles

NAME = topic_name("orders")
PARTITIONS = 3
KEYS = [b"k%d" % number for number in range(12)]
HOUR_US = 3_600_000_000


def old_folder(folder: Path, clock: ManualClock, partitions: int = PARTITIONS) -> None:
    """Of twelve delayed messages the first was moved to partition 1, and the second cancelled; the
    third names its partition."""
    with Broker(engine_of(folder, clock), housekeeping=False) as broker:
        broker.create_topic(NAME, {"partitions": partitions})
        moved_to = min(1, partitions - 1)
        broker.publish(NAME, Batch.build([b"moved"]), partition=moved_to)
    engine = engine_of(folder, clock)
    log = engine.open("topics/default/orders/delays/log", LogConfig())
    due_us = clock.wall_ns() // 1000 + HOUR_US
    headers: list[dict[str, bytes]] = [{} for _ in KEYS]
    headers[2] = {PARTITION_HEADER: b"%d" % (partitions - 1)}
    log.append(Batch.build([*KEYS], keys=KEYS, headers=headers).stamped(due_us))
    journal = Journal(engine.open("topics/default/orders/delays/journal", LogConfig()))
    for offsets, *place in ((Offsets.one(0), moved_to, 1), (Offsets.one(1),)):
        journal.append(msgspec.msgpack.encode([0, offsets, *place], enc_hook=encode_hook))
    journal.close()
    log.close()
    engine.close()


def engine_of(folder: Path, clock: ManualClock) -> LocalEngine:
    return LocalEngine(folder, clock=clock, files=QuickFiles())


def partition_of(key: bytes, partitions: int) -> int:
    return partitions - 1 if key == KEYS[2] else mmh3.hash(key, signed=False) % partitions


def check(folder: Path, clock: ManualClock, partitions: int = PARTITIONS) -> None:
    with Broker(engine_of(folder, clock), housekeeping=False) as broker:
        waiting = [each.message.value for _, each in broker.delayed(NAME, 0, 100)]
        assert sorted(waiting) == sorted(KEYS[2:])
        assert "delays" not in broker._engine.names("topics/default/orders")
        clock.advance(3601)
        broker.housekeep()
        assert broker.delay_stats(NAME).pending == 0
        for number in range(partitions):
            found = [m.value for m in broker.topic(NAME).partition(number).log.read(0).messages()]
            wanted = [key for key in KEYS[2:] if partition_of(key, partitions) == number]
            assert sorted(value for value in found if value != b"moved") == sorted(wanted)


@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_each_message_comes_to_wait_in_its_partition(tmp_path: Path, partitions: int) -> None:
    clock = ManualClock()
    old_folder(tmp_path / "data", clock, partitions)
    check(tmp_path / "data", clock, partitions)


def test_the_id_of_a_message_that_stays_in_partition_0_still_cancels_it(tmp_path: Path) -> None:
    clock = ManualClock()
    old_folder(tmp_path / "data", clock, partitions=1)
    with Broker(engine_of(tmp_path / "data", clock), housekeeping=False) as broker:
        for _, each in broker.delayed(NAME, 0, 3):
            given_out = f"{each.message.offset}-{each.message.id}"
            assert broker.cancel(NAME, given_out)
            assert not broker.cancel(NAME, given_out)
            assert not broker.cancel(NAME, each.id)


class Crash(BaseException):
    """Nothing may catch it and carry on."""


def test_a_crash_on_the_way_delivers_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step: a batch appended, a batch let go, the log renamed."""
    step = 0
    while True:
        step += 1
        folder, clock = tmp_path / str(step), ManualClock()
        old_folder(folder, clock)
        with monkeypatch.context() as patch:
            steps = iter(range(step, -1, -1))

            def counted(call: object, steps: object = steps) -> object:
                def then_crash(*args: object) -> object:
                    result = call(*args)  # type: ignore[operator]
                    if next(steps) == 1:  # type: ignore[call-overload]
                        raise Crash
                    return result

                return then_crash

            for name in ("add_moved", "finish", "checkpoint"):
                patch.setattr(splitting.Delays, name, counted(getattr(splitting.Delays, name)))
            patch.setattr(LocalEngine, "rename", counted(LocalEngine.rename))
            broker = Broker(engine_of(folder, clock), housekeeping=False)
            try:
                broker.topic(NAME)
            except Crash:
                crashed = True
            else:
                crashed = False
            finally:
                broker._engine.close()
        if not crashed:
            break
        check(folder, clock)
    assert step > 4
