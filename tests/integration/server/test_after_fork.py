"""A client in a process that was forked from the one that made it: it speaks for nobody."""

import os

import pytest

import penstock
from penstock.broker.broker import Broker
from penstock.errors import BrokerClosed
from tests.integration.log.test_fork import outcome_in_child
from tests.integration.server.running import RunningServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def test_a_child_cannot_speak_for_its_parent(broker: Broker) -> None:
    with RunningServer(broker) as server, penstock.connect(server.url) as ps:
        ps.create_topic("orders")
        out = ps.producer("orders")
        out.send(b"first").result(20)
        stream = ps.stream("orders", "audit")
        assert stream.next(20).value == b"first"
        for work in (
            lambda: ps.publish("orders", b"child"),
            lambda: out.send(b"child").result(20),
            ps.topics,
        ):
            said = outcome_in_child(work)
            assert said.startswith(BrokerClosed.__name__), said
            assert "fork" in said
        outcome_in_child(ps.close)
        assert len(ps.describe_stream_group("audit").members) == 1  # nobody left for it
        out.send(b"parent").result(20)
        assert stream.next(20).value == b"parent"
        stream.leave()
