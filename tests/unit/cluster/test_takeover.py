"""A new owner goes on with all that was committed before its term, and nothing else."""

from __future__ import annotations

from penstock.cluster.memory_stream import MemoryStream
from tests.unit.cluster.test_rules import ORDERS, Owner


def test_an_owner_has_read_up_to_its_own_term() -> None:
    stream = MemoryStream()
    first = Owner(stream, "/a")
    first.broker.create_topic(ORDERS, {})
    first.publish(b"1")
    first.commit()
    second = Owner(stream, "/b")
    assert second.replica.fold.seq == stream.end
    assert second.replica.fold.term == second.writer.term == 2
    assert second.values() == [b"1"]
