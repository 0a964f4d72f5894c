"""Defects of other systems that show only when the power goes or a disk fails: none is ours.

Those that need no such disk are in `tests/integration/broker/test_seen_elsewhere.py`.
"""

from __future__ import annotations

import threading
from random import Random

import pytest

from penstock.broker.api import Api
from penstock.broker.broker import Broker, BrokerConfig
from penstock.client.client import Client
from penstock.client.local_link import LocalLink
from penstock.clock import ManualClock
from penstock.errors import LogFailed
from penstock.log.commit import ManualCommitter
from penstock.log.local_engine import LocalEngine
from tests.simulation.disk import SimulatedFiles

SEEDS = range(10)


def connect(
    files: SimulatedFiles,
    clock: ManualClock | None = None,
    committer: ManualCommitter | None = None,
) -> Client:
    broker = Broker(
        LocalEngine("/data", files=files, clock=clock or ManualClock(), committer=committer),
        BrokerConfig(free_bytes_min=0),
        housekeeping=False,
    )
    return Client(LocalLink(Api(broker)), "default")


def test_jetstream_loses_what_it_acknowledged_when_the_power_goes() -> None:
    """By default it syncs every two minutes, and confirms at once."""
    files = SimulatedFiles()
    ps = connect(files)
    ps.create_topic("orders", fsync="always")
    for number in range(5):
        ps.publish("orders", b"%d" % number)
    ps.receive("orders", "g", 2)[1].ack()

    for seed in SEEDS:
        clock = ManualClock()
        survivor = connect(files.crash(Random(seed)), clock)
        clock.advance(60)
        got = survivor.receive("orders", "g", 10)
        assert [message.value for message in got] == [b"0", b"2", b"3", b"4"]


@pytest.mark.parametrize("call", ["publish", "ack"])
def test_nothing_is_confirmed_before_its_sync(call: str) -> None:
    clock = ManualClock()
    committer = ManualCommitter(clock)
    ps = connect(SimulatedFiles(), clock, committer)
    ps.create_topic("orders", fsync="interval", fsync_interval="1s")
    ps.publish("orders", b"one")
    (message,) = ps.receive("orders", "g", 1)
    ps.alter_topic("orders", fsync="always")
    act = message.ack if call == "ack" else lambda: ps.publish("orders", b"two")
    caller = threading.Thread(target=act, daemon=True)

    caller.start()
    caller.join(0.2)
    assert caller.is_alive(), "confirmed before anything was synced"
    while caller.is_alive():
        committer.run_due()
        caller.join(0.001)


def test_a_second_fsync_that_succeeds_hides_what_the_first_one_lost() -> None:
    """After a failed fsync the kernel calls the pages clean, and PostgreSQL tried again."""
    files = SimulatedFiles()
    ps = connect(files)
    ps.create_topic("orders", fsync="always")
    ps.publish("orders", b"safe")
    files.fail("sync", path="/orders/00000/log/")

    with pytest.raises(LogFailed):
        ps.publish("orders", b"not confirmed")
    with pytest.raises(LogFailed):
        ps.publish("orders", b"nor any after it")
    for seed in SEEDS:
        survivor = connect(files.crash(Random(seed)))
        assert survivor.receive("orders", "g", 10)[0].value == b"safe"
        assert survivor.publish("orders", b"again").offset in (1, 2)
