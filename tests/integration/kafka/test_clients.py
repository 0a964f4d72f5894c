"""Clients of Kafka, as they are: what one of them publishes another one reads, and so do ours."""

from __future__ import annotations

import shutil
import time
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.integration.kafka.clients import (
    CLIENTS,
    Message,
    confluent_publish,
    confluent_read,
    confluent_settings,
    kcat,
    take,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:kafka")

SOME = [
    Message(b"k%d" % n, b"value %d" % n, (("a", b"1"), ("a", b"2"), ("ü", b"\xff")), 1_700_000 + n)
    for n in range(200)
]


@pytest.mark.parametrize("reader", CLIENTS)
@pytest.mark.parametrize("writer", CLIENTS)
def test_each_reads_what_each_publishes(kafka: str, writer: str, reader: str) -> None:
    CLIENTS[writer][0](kafka, "orders", SOME)
    assert CLIENTS[reader][1](kafka, "orders", len(SOME)) == SOME


@pytest.mark.parametrize("reader", CLIENTS)
def test_tombstones_and_empty_values_are_two_things(kafka: str, reader: str) -> None:
    given = [Message(b"a", b""), Message(b"a", None), Message(b"", b"x"), Message(None, b"y")]
    confluent_publish(kafka, "orders", given)
    found = CLIENTS[reader][1](kafka, "orders", len(given))
    assert [(each.key, each.value) for each in found] == [(g.key, g.value) for g in given]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_four_codecs(kafka: str, codec: str) -> None:
    given = [Message(None, b"text %d " % n * 20, (), 1_700_000) for n in range(500)]
    confluent_publish(kafka, "orders", given, compression_type=codec)
    assert confluent_read(kafka, "orders", len(given)) == given


@pytest.mark.parametrize("client", CLIENTS)
def test_a_group_goes_on_where_it_committed(kafka: str, ps: Any, client: str) -> None:
    publish, read = CLIENTS[client]
    publish(kafka, "orders", SOME[:20])
    assert read(kafka, "orders", 20) == SOME[:20]
    publish(kafka, "orders", SOME[20:30])
    assert read(kafka, "orders", 10) == SOME[20:30]
    seen = ps.describe_stream_group("readers")
    assert set(seen.committed.values()) == {30}
    assert set(seen.lag.values()) == {0}


def test_members_share_the_partitions_and_take_over(kafka: str, ps: Any) -> None:
    ps.create_topic("orders", partitions=4)
    settings = confluent_settings(
        kafka, session_timeout_ms=6000, heartbeat_interval_ms=200, auto_offset_reset="earliest"
    ) | {"group.id": "readers"}
    first, second = Consumer(settings), Consumer(settings)
    first.subscribe(["orders"])
    confluent_publish(kafka, "orders", SOME)
    found = take(first, 200)
    assert sorted(found) == sorted(SOME)
    first.commit(asynchronous=False)
    second.subscribe(["orders"])
    deadline = time.monotonic() + 20
    shares = [4, 0]
    while shares != [2, 2] and time.monotonic() < deadline:
        first.poll(0.05)
        second.poll(0.05)
        shares = [len(first.assignment()), len(second.assignment())]
    assert shares == [2, 2]
    first.close()
    while len(second.assignment()) != 4 and time.monotonic() < deadline:
        second.poll(0.05)
    confluent_publish(kafka, "orders", SOME)
    assert sorted(take(second, 200)) == sorted(SOME)
    second.close()


def test_reading_begins_at_a_time(kafka: str) -> None:
    confluent_publish(kafka, "orders", SOME)
    consumer = Consumer(confluent_settings(kafka) | {"group.id": "g"})
    for stamp, offset in ((1_700_000, 0), (1_700_100, 100), (0, 0), (1_800_000, -1)):
        (found,) = consumer.offsets_for_times([TopicPartition("orders", 0, stamp)], timeout=10)
        assert found.offset == offset
    assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=10) == (0, 200)
    consumer.assign([TopicPartition("orders", 0, 150)])
    assert take(consumer, 50) == SOME[150:]
    consumer.seek(TopicPartition("orders", 0, 10))
    assert take(consumer, 5) == SOME[10:15]
    consumer.close()


@pytest.mark.parametrize("reader", CLIENTS)
def test_gaps_of_a_compaction_are_passed(kafka: str, ps: Any, reader: str) -> None:
    """Some are superseded, and the last ones leave a gap before the end, of which nothing is
    left."""
    ps.create_topic("orders", compacted=True, segment_bytes=4096, compaction_interval=None)
    for n in range(40):
        ps.publish("orders", b"%d" % n * 100, key=f"k{n % 4}")
    ps.publish("orders", None, key="last")
    ps.compact("orders")
    kept = ps.peek("orders", limit=100)
    assert len(kept) < 30
    assert kept[0].offset > 0
    found = CLIENTS[reader][1](kafka, "orders", len(kept))
    assert [each.value for each in found] == [each.value for each in kept]


@pytest.mark.parametrize("reader", CLIENTS)
def test_expired_messages_at_the_end_do_not_hold_a_reader_up(
    kafka: str, ps: Any, reader: str
) -> None:
    for n in range(10):
        ps.publish("orders", b"gone %d" % n, ttl="1ms")
    time.sleep(0.05)
    ps.publish("orders", b"here")
    found = CLIENTS[reader][1](kafka, "orders", 1)
    assert [each.value for each in found] == [b"here"]


def test_what_is_published_there_is_a_queue_with_priorities(kafka: str, ps: Any) -> None:
    given = [
        Message(None, b"%d" % n, (("penstock-priority", b"high"),) if n % 2 else ())
        for n in range(10)
    ]
    confluent_publish(kafka, "jobs", given)
    received = ps.receive("jobs", group="workers", max_messages=4)
    assert [m.value for m in received] == [b"1", b"3", b"5", b"7"]
    assert {m.priority for m in received} == {1}
    for message in received:
        message.ack()


def test_what_is_published_here_is_read_there_with_its_priority(kafka: str, ps: Any) -> None:
    ps.publish("jobs", b"now", key="k", priority="critical", headers={"h": "v"})
    ps.publish("jobs", b"later", priority="background")
    ps.publish("jobs", b"usual")
    found = confluent_read(kafka, "jobs", 3)
    assert [each.headers for each in found] == [
        (("h", b"v"), ("penstock-priority", b"critical")),
        (("penstock-priority", b"background"),),
        (),
    ]


def test_topics_are_administered(kafka: str, ps: Any) -> None:
    admin = AdminClient(confluent_settings(kafka))
    made = admin.create_topics(
        [
            NewTopic("orders", 3, 1, config={"retention.ms": "60000", "penstock.visibility": "1m"}),
            NewTopic("Latest_by.key", 1, 1, config={"cleanup.policy": "compact"}),
        ]
    )
    for future in made.values():
        future.result()
    settings = ps.describe_topic("orders")
    assert (settings.partitions, settings.retention_ms, settings.visibility_ms) == (3, 60000, 60000)
    assert ps.describe_topic("Latest_by.key").compacted
    assert ps.describe_topic("Latest_by.key").retention_ms is None
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result()
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        admin.create_topics([NewTopic("x", 1, 1, config={"rotation": "1"})])["x"].result()
    admin.create_partitions([NewPartitions("orders", 5)])["orders"].result()
    assert ps.describe_topic("orders").partitions == 5
    place = ConfigResource(ResourceType.TOPIC, "orders")
    place.add_incremental_config(
        ConfigEntry("max.message.bytes", "12345", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([place])[place].result()
    configs = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "orders")])
    (told,) = [future.result() for future in configs.values()]
    assert told["max.message.bytes"].value == "12345"
    assert told["retention.ms"].value == "60000"
    assert told["penstock.visibility"].value == "60000ms"
    admin.delete_topics(["orders"])["orders"].result()
    assert "orders" not in ps.topics()
    assert set(admin.list_topics(timeout=10).topics) == {"Latest_by.key"}


def test_the_start_of_a_log_is_moved(kafka: str, ps: Any) -> None:
    confluent_publish(kafka, "orders", SOME)
    admin = AdminClient(confluent_settings(kafka))
    place = TopicPartition("orders", 0, 150)
    (future,) = admin.delete_records([place]).values()
    assert future.result().low_watermark == 150
    (first,) = admin.list_offsets({TopicPartition("orders", 0): OffsetSpec.earliest()}).values()
    assert first.result().offset == 150
    assert confluent_read(kafka, "orders", 50) == SOME[150:]
    assert [m.offset for m in ps.peek("orders", limit=1)] == [150]


def test_groups_are_listed_described_reset_and_deleted(kafka: str, ps: Any) -> None:
    confluent_publish(kafka, "orders", SOME)
    admin = AdminClient(confluent_settings(kafka))
    consumer = Consumer(
        confluent_settings(kafka, auto_offset_reset="earliest") | {"group.id": "readers"}
    )
    consumer.subscribe(["orders"])
    take(consumer, 200)
    described = admin.describe_consumer_groups(["readers"])["readers"].result()
    assert described.state.name == "STABLE"
    (member,) = described.members
    assert [(p.topic, p.partition) for p in member.assignment.topic_partitions] == [("orders", 0)]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["readers"])["readers"].result()
    consumer.commit(asynchronous=False)
    consumer.close()
    assert [g.group_id for g in admin.list_consumer_groups().result().valid] == ["readers"]
    back = ConsumerGroupTopicPartitions("readers", [TopicPartition("orders", 0, 190)])
    admin.alter_consumer_group_offsets([back])["readers"].result()
    assert confluent_read(kafka, "orders", 10) == SOME[190:]
    ps.reset_stream_group("readers", "orders", 195)
    assert confluent_read(kafka, "orders", 5) == SOME[195:]
    admin.delete_consumer_groups(["readers"])["readers"].result()
    assert ps.stream_groups() == []


def test_metadata_of_commits_comes_back(kafka: str) -> None:
    confluent_publish(kafka, "orders", SOME)
    consumer = Consumer(confluent_settings(kafka) | {"group.id": "g"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 7, "a note")], asynchronous=False)
    (at,) = consumer.committed([TopicPartition("orders", 0)], timeout=10)
    assert (at.offset, at.metadata) == (7, "a note")
    (never,) = consumer.committed([TopicPartition("orders", 1)], timeout=10)
    assert never.offset < 0
    consumer.close()


def test_a_group_of_ours_and_one_of_theirs_do_not_mix(kafka: str, ps: Any) -> None:
    confluent_publish(kafka, "orders", SOME[:5])
    with ps.stream("orders", group="ours") as stream:
        assert stream.next(wait="5s").value == SOME[0].value
        consumer = Consumer(confluent_settings(kafka) | {"group.id": "ours"})
        consumer.subscribe(["orders"])
        told = consumer.poll(10)
        assert told is not None
        assert told.error().name() == "INCONSISTENT_GROUP_PROTOCOL"
        consumer.close()


def test_messages_longer_than_a_fetch_come_whole(kafka: str, ps: Any) -> None:
    given = [Message(None, bytes([n]) * (2 << 20)) for n in range(3)]
    confluent_publish(kafka, "orders", given, message_max_bytes=8 << 20)
    found = confluent_read(
        kafka,
        "orders",
        3,
        fetch_message_max_bytes=1024,
        fetch_max_bytes=8 << 20,
        message_max_bytes=8 << 20,
    )
    assert [each.value for each in found] == [each.value for each in given]


def test_a_message_that_is_too_long_is_refused(kafka: str, ps: Any) -> None:
    ps.create_topic("orders", message_bytes_max=1000)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        confluent_publish(kafka, "orders", [Message(None, b"x" * 2000)])


def test_a_topic_that_is_not_there_is_made_only_where_that_is_allowed(kafka: str, ps: Any) -> None:
    confluent_publish(kafka, "made", SOME[:1])
    assert ps.topics() == ["made"]
    consumer = Consumer(confluent_settings(kafka) | {"group.id": "g"})
    consumer.assign([TopicPartition("absent", 0, OFFSET_BEGINNING)])
    message = consumer.poll(5)
    assert message is None or message.error() is not None
    consumer.close()


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat(kafka: str) -> None:
    kcat(kafka, "-P", "-t", "orders", "-K:", "-z", "lz4", given="a:1\nb:2\nc:3\n")
    assert kcat(kafka, "-C", "-t", "orders", "-e", "-q", "-K:") == "a:1\nb:2\nc:3\n"
    assert kcat(kafka, "-C", "-t", "orders", "-e", "-q", "-o", "2") == "3\n"
    assert 'topic "orders" with 1 partitions' in kcat(kafka, "-L")
    assert "orders [0] offset 3" in kcat(kafka, "-Q", "-t", "orders:0:-1")
