"""Statistics are taken while everything goes on: what changes meanwhile does not confuse them."""

from __future__ import annotations

import pytest

from penstock.broker.stats import ready_by_lane
from penstock.model.names import TopicName
from tests.integration.broker.world import World


@pytest.mark.timeout(20)
def test_an_ack_between_two_looks_does_not_lead_past_the_end_of_the_log(sync: World) -> None:
    sync.ps.create_topic("orders")
    sync.ps.publish_batch("orders", [b"a", b"b", b"c", b"d"])
    held = sync.ps.receive("orders", "g", 3)
    partition = sync.broker.topic(TopicName("default", "orders")).partition(0)
    before = partition.stats("g")
    held[2].ack()  # out of order, so that it stays above the committed offset
    assert ready_by_lane(partition, "g", before) == (0, 0, 1, 0, 0)
