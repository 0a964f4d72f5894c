"""Groups are listed with their kind and state, and by these."""

from __future__ import annotations

import io
import struct
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    ShareConsumer,
)
from confluent_kafka.admin import AdminClient
from kio.schema.list_groups.v5 import ListGroupsRequest, ListGroupsResponse
from kio.serial import entity_reader, entity_writer

from tests.integration.kafka.clients import Message, confluent_publish, confluent_settings, take
from tests.integration.kafka.raw import answer, opened

SOME = [Message(None, b"%d" % n, (), 1_700_000) for n in range(5)]


def reading(kafka: str, group: str, **more: Any) -> Consumer:
    settings = confluent_settings(kafka, auto_offset_reset="earliest", **more)
    consumer = Consumer(settings | {"group.id": group})
    consumer.subscribe(["orders"])
    assert len(take(consumer, len(SOME))) == len(SOME)
    return consumer


def listed(kafka: str, **how: Any) -> dict[str, tuple[str, str]]:
    """By name the kind and the state."""
    admin = AdminClient(confluent_settings(kafka))
    found = admin.list_consumer_groups(**how).result()
    assert not found.errors
    return {group.group_id: (group.type.name, group.state.name) for group in found.valid}


def listed_by_a_later_client(kafka: str, *kinds: str) -> list[tuple[str, str, str, str]]:
    out = io.BytesIO()
    request = ListGroupsRequest(states_filter=(), types_filter=kinds)
    entity_writer(ListGroupsRequest)(out, request)
    frame = struct.pack(">hhihb", 16, 5, 7, -1, 0) + out.getvalue()
    with opened(kafka) as sock:
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        told = answer(sock)
    found, _ = entity_reader(ListGroupsResponse)(told, 5)  # behind a head with no tags
    return [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in found.groups]


def test_kinds_and_states(kafka: str) -> None:
    confluent_publish(kafka, "orders", SOME)
    classic = reading(kafka, "classic")
    modern = reading(kafka, "modern", group_protocol="consumer")
    gone = reading(kafka, "gone")
    gone.commit(asynchronous=False)
    gone.close()
    try:
        everything = {
            "classic": ("CLASSIC", "STABLE"),
            "gone": ("CLASSIC", "EMPTY"),
            "modern": ("CONSUMER", "STABLE"),
        }
        assert listed(kafka) == everything
        assert listed(kafka, states={ConsumerGroupState.EMPTY}).keys() == {"gone"}
        assert listed(kafka, types={ConsumerGroupType.CONSUMER}).keys() == {"modern"}
        stable = {ConsumerGroupState.STABLE}
        assert listed(kafka, states=stable).keys() == {"classic", "modern"}
    finally:
        classic.close()
        modern.close()


def test_a_share_group_is_listed_while_it_has_members(kafka: str, ps: Any) -> None:
    ps.create_topic("jobs")
    assert listed_by_a_later_client(kafka) == []
    consumer = ShareConsumer(confluent_settings(kafka) | {"group.id": "workers"})
    consumer.subscribe(["jobs"])
    consumer.poll(2)
    ours = ("workers", "share", "Stable", "Share")
    assert listed_by_a_later_client(kafka) == [ours]
    assert listed_by_a_later_client(kafka, "share") == [ours]
    assert listed_by_a_later_client(kafka, "classic") == []
    assert listed(kafka) == {}  # whoever asks for groups of streams does not see it
    consumer.close()
    assert listed_by_a_later_client(kafka) == []
