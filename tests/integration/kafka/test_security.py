"""Who comes in at the port of Kafka, and as whom."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import penstock
from penstock.broker.broker import Broker
from penstock.config import ServerConfig
from penstock.errors import InvalidInput
from penstock.server.keys import KeyStore
from tests.integration.kafka.clients import (
    Message,
    confluent_publish,
    confluent_read,
    confluent_settings,
)
from tests.integration.kafka.raw import answer, is_closed, opened
from tests.integration.server.running import RunningServer

SOME = [Message(b"k", b"%d" % n, (), 1_700_000) for n in range(5)]


class Keyed:
    """A server with keys."""

    def __init__(self, broker: Broker, **config: Any) -> None:
        self.keys = KeyStore.open(broker.folder)
        self.admin = self.keys.create("admin", "admin").token
        self.server = RunningServer(broker, self.keys, kafka=True, auto_create=True, **config)

    def as_(self, token: str, user: str = "default") -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": token,
        }


@pytest.fixture
def keyed(broker: Broker) -> Iterator[Keyed]:
    keyed = Keyed(broker)
    yield keyed
    keyed.server.stop()


def names_of(error: KafkaException) -> str:
    return str(error.args[0].name())


def test_nobody_comes_in_without_a_key(keyed: Keyed) -> None:
    admin = AdminClient(confluent_settings(keyed.server.kafka))
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    wrong = AdminClient(
        confluent_settings(keyed.server.kafka) | keyed.as_("psk_000000000000_" + "A" * 43)
    )
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=2)


def test_a_user_is_a_namespace(keyed: Keyed) -> None:
    shop = keyed.as_(keyed.admin, "shop")
    confluent_publish(keyed.server.kafka, "orders", SOME, **under(shop))
    assert confluent_read(keyed.server.kafka, "orders", 5, **under(shop)) == SOME
    with penstock.connect(keyed.server.url, api_key=keyed.admin) as ps:
        assert ps.topics() == []
        assert ps.in_namespace("shop").topics() == ["orders"]
        assert ps.in_namespace("shop").stream_groups() == ["readers"]
    other = AdminClient(confluent_settings(keyed.server.kafka) | keyed.as_(keyed.admin))
    assert other.list_topics(timeout=10).topics == {}


def test_a_key_of_one_namespace_is_none_of_another(keyed: Keyed) -> None:
    token = keyed.keys.create("shop", "admin", "shop").token
    mine = AdminClient(confluent_settings(keyed.server.kafka) | keyed.as_(token, "shop"))
    assert mine.list_topics(timeout=10).topics == {}
    theirs = AdminClient(confluent_settings(keyed.server.kafka) | keyed.as_(token, "default"))
    with pytest.raises(KafkaException):
        theirs.list_topics(timeout=2)


def test_roles_are_kept(keyed: Keyed) -> None:
    address = keyed.server.kafka
    producer = under(keyed.as_(keyed.keys.create("p", "producer").token))
    consumer = under(keyed.as_(keyed.keys.create("c", "consumer").token))
    reader = under(keyed.as_(keyed.keys.create("r", "readonly").token))
    confluent_publish(address, "orders", SOME, **producer)
    for settings in (consumer, reader):
        with pytest.raises(KafkaException) as refused:
            confluent_publish(address, "orders", SOME, **settings)
        assert names_of(refused.value) in (
            "TOPIC_AUTHORIZATION_FAILED",
            "CLUSTER_AUTHORIZATION_FAILED",
        )
    assert confluent_read(address, "orders", 5, **consumer) == SOME
    joining = Consumer(confluent_settings(address, **reader) | {"group.id": "r"})
    joining.subscribe(["orders"])
    told = joining.poll(10)
    assert told is not None
    assert told.error().name() == "GROUP_AUTHORIZATION_FAILED"
    joining.close()
    reading = Consumer(confluent_settings(address, **producer) | {"group.id": "p"})
    reading.assign([TopicPartition("orders", 0, 0)])
    told = reading.poll(10)
    assert told is not None
    assert told.error().name() == "TOPIC_AUTHORIZATION_FAILED"
    reading.close()
    admin = AdminClient(confluent_settings(address, **consumer))
    with pytest.raises(KafkaException, match="AUTHORIZATION"):
        admin.create_topics([NewTopic("x", 1, 1)])["x"].result()
    with pytest.raises(KafkaException, match="AUTHORIZATION"):
        admin.delete_topics(["orders"])["orders"].result()


def test_a_key_that_is_revoked_ends_its_connections(keyed: Keyed) -> None:
    made = keyed.keys.create("p", "producer")
    producer = Producer(
        confluent_settings(keyed.server.kafka, message_timeout_ms=3000) | keyed.as_(made.token)
    )
    failed: list[Any] = []
    producer.produce("orders", b"1", on_delivery=lambda error, _: failed.append(error))
    producer.flush(10)
    keyed.keys.revoke(made.key.id)
    producer.produce("orders", b"2", on_delivery=lambda error, _: failed.append(error))
    producer.flush(10)
    assert failed[0] is None
    assert failed[1] is not None


def test_tls(broker: Broker, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    cert, key, trusted = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(trusted)
    keyed = Keyed(broker, tls_cert=str(cert), tls_key=str(key))
    try:
        settings = keyed.as_(keyed.admin) | {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(trusted),
        }
        confluent_publish(keyed.server.kafka, "orders", SOME, **under(settings))
        assert confluent_read(keyed.server.kafka, "orders", 5, **under(settings)) == SOME
        untrusted = settings | {"ssl.ca.location": ssl.get_default_verify_paths().openssl_cafile}
        with pytest.raises(KafkaException):
            AdminClient(confluent_settings(keyed.server.kafka) | untrusted).list_topics(timeout=2)
    finally:
        keyed.server.stop()


@pytest.mark.parametrize(
    "address", ["9092", ":9092", "localhost", "localhost:x", "::1:9092", "a:99999"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="HOST:PORT"):
        ServerConfig(kafka=address)


def test_clients_are_told_another_address_where_one_is_advertised(broker: Broker) -> None:
    with (
        RunningServer(broker, kafka=True, kafka_advertised="queue.example:9092") as server,
        opened(server.kafka) as sock,
    ):
        sock.sendall(struct.pack(">ihhihi", 14, 3, 1, 7, -1, 0))  # Metadata of no topic
        host = b"queue.example"
        assert struct.pack(">h", len(host)) + host + struct.pack(">i", 9092) in answer(sock)


def test_long_requests_are_for_those_who_said_who_they_are(keyed: Keyed) -> None:
    with opened(keyed.server.kafka) as sock:
        sock.sendall(struct.pack(">i", 1 << 20))
        assert is_closed(sock)
    with opened(keyed.server.kafka) as sock:
        sock.sendall(struct.pack(">ihhihi", 14, 3, 1, 7, -1, -1))  # Metadata of all topics
        assert is_closed(sock)


def under(settings: dict[str, str]) -> dict[str, str]:
    """Settings as keyword arguments."""
    return {name.replace(".", "_"): value for name, value in settings.items()}
