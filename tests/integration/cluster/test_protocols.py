"""Other protocols than HTTP at every node of a cluster, real processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

import penstock
from penstock.cluster.local_nodes import LocalCluster
from penstock.errors import PenstockError
from penstock.server.grpc.descriptors import message
from tests.integration.cluster.conftest import running
from tests.integration.cluster.test_cluster import get, owner_of, post, until
from tests.integration.kafka.clients import (
    Message,
    confluent_publish,
    confluent_read,
    confluent_settings,
    take,
)
from tests.integration.server.grpc_client import Client as GrpcClient
from tests.integration.server.grpc_client import Leasing, code_of, publish_of

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    yield from running(tmp_path_factory.mktemp("protocols"), protocols=("grpc", "kafka"))


@pytest.fixture
def grpc_clients(cluster: LocalCluster) -> Iterator[list[GrpcClient]]:
    """One for each node."""
    clients = [GrpcClient(port) for port in cluster.protocol_ports["grpc"]]
    yield clients
    for client in clients:
        client.channel.close()


def test_clients_of_grpc_ask_any_node(
    cluster: LocalCluster, grpc_clients: list[GrpcClient]
) -> None:
    first, second, third = grpc_clients
    first.ask("create_topic", topic="over-grpc")
    for number in range(6):
        grpc_clients[number % 3].publish(b"%d" % number, topic="over-grpc")
    requests = [publish_of(b"%d" % n, topic="over-grpc", seq=n) for n in range(6, 12)]
    requests[3] = publish_of(b"x", topic="nowhere", seq=9)
    for client in grpc_clients:
        answers = list(client("Messages.PublishStream", iter(requests)))
        assert [each.seq for each in answers] == list(range(6, 12))
        assert [each.problem.code for each in answers if each.HasField("problem")] == [
            "topic_not_found"
        ]
    for number, client in enumerate(grpc_clients):
        leasing = Leasing(client, topic="over-grpc", credit=2)
        delivered = leasing.next().delivered
        assert [each.message.value for each in delivered.messages] == [
            b"%d" % (2 * number + n) for n in range(2)
        ]
        leasing.ask(settle={"verb": 1, "leases": delivered.leases, "ref": 1})
        assert leasing.next().settled[0].ref == 1
        assert leasing.end() == []
    at = {"topic": "over-grpc", "partition": 0, "offset": 4}
    for client in grpc_clients:
        (part,) = client("Messages.Fetch", message("FetchRequest")(positions=[at])).parts
        assert (part.messages[0].value, part.end) == (b"4", 21)
        assert code_of(lambda: client.publish(b"x", topic="nowhere"))[1] == "topic_not_found"  # noqa: B023
        assert client.ask("summarize")["topics"] == third.ask("summarize")["topics"] >= 1
        assert "default" in client.ask("list_namespaces")["namespaces"]
        stats = client.ask("describe_stats", topic="over-grpc")
        assert (stats["groups"][0]["depth"], stats["groups"][0]["in_flight"]) == (15, 0)
    assert len(second.receive(topic="over-grpc", max_messages=100).messages) == 15


def elsewhere(cluster: LocalCluster) -> str | None:
    """A namespace that another node owns than the one that owns `default`."""
    here = owner_of(cluster)
    return next((f"g{n}" for n in range(100) if owner_of(cluster, f"g{n}") != here), None)


def test_a_stream_of_grpc_is_about_what_one_node_has(
    cluster: LocalCluster, grpc_clients: list[GrpcClient]
) -> None:
    # The first node that is up has all shards until the others have got theirs.
    until(lambda: elsewhere(cluster) is not None)
    other = elsewhere(cluster)
    for client in grpc_clients:
        client.ask("create_topic", topic="t", exist_ok=True)
        client.ask("create_topic", topic="t", namespace=other, exist_ok=True)
        requests = [publish_of(b"x", topic="t"), publish_of(b"x", topic="t", namespace=other)]
        good, refused = client("Messages.PublishStream", iter(requests))
        assert (good.problem.code, refused.problem.code) == ("", "not_in_cluster")


def test_a_lease_stream_ends_when_its_queue_goes_to_another_node(
    cluster: LocalCluster, grpc_clients: list[GrpcClient]
) -> None:
    node = owner_of(cluster)
    client = grpc_clients[(node + 1) % 3]
    client.ask("create_topic", topic="moving")
    leasing = Leasing(client, topic="moving", credit=5)
    client.publish(b"a", topic="moving")
    (got,) = leasing.next().delivered.messages
    cluster.signal(node)
    with pytest.raises(grpc.RpcError) as ended:
        leasing.next()
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]

    def is_settled() -> bool:
        try:
            leasing = Leasing(client, topic="moving", credit=5)
            leasing.ask(settle={"verb": 1, "receipts": [got.receipt], "ref": 1})
            return leasing.next().settled[0].ref == 1
        except grpc.RpcError:
            return False

    until(is_settled)
    cluster.start(node)
    until(lambda: cluster.is_ready(node), 60)
    assert client.ask("describe_stats", topic="moving")["groups"][0]["depth"] == 0


def kafka_of(cluster: LocalCluster, *numbers: int) -> str:
    """Where clients of Kafka begin."""
    return ",".join(cluster.address(number, "kafka") for number in numbers)


def metadata(admin: AdminClient) -> Any:
    return admin.list_topics(timeout=10)


def leaders_of(topic: str, admin: AdminClient) -> set[str]:
    """The addresses of the nodes that lead its partitions, as clients of Kafka are told."""
    seen = metadata(admin)
    leaders = [seen.brokers[each.leader] for each in seen.topics[topic].partitions.values()]
    return {f"{leader.host}:{leader.port}" for leader in leaders}


def owner_address(cluster: LocalCluster) -> str:
    return kafka_of(cluster, owner_of(cluster))


def test_clients_of_kafka_begin_at_any_node(cluster: LocalCluster) -> None:
    with penstock.connect(cluster.urls[0]) as client:
        client.create_topic("over-kafka", partitions=2)
        for number in range(3):
            address = kafka_of(cluster, number)
            messages = [Message(b"k", b"%d" % n, (), 1_700_000) for n in range(5)]
            confluent_publish(address, "over-kafka", messages, enable_idempotence=True)
            assert confluent_read(address, "over-kafka", 5) == messages
            admin = AdminClient(confluent_settings(address))
            until(lambda admin=admin: leaders_of("over-kafka", admin) == {owner_address(cluster)})
            told = {f"{each.host}:{each.port}" for each in metadata(admin).brokers.values()}
            assert told == {kafka_of(cluster, each) for each in range(3)}
        assert len(client.peek("over-kafka", limit=100)) == 15


def test_groups_and_transactions_of_kafka_outlive_their_owner(cluster: LocalCluster) -> None:
    node = owner_of(cluster)
    others = kafka_of(cluster, *(n for n in range(3) if n != node))
    with penstock.connect(cluster.urls[(node + 1) % 3], retry_for="60s") as client:
        client.create_topic("kafka-in", partitions=4)
        client.create_topic("kafka-out")
        consumer = Consumer(
            confluent_settings(others, auto_offset_reset="earliest", enable_auto_commit=False)
            | {"group.id": "moving", "topic.metadata.refresh.interval.ms": 1000}
        )
        consumer.subscribe(["kafka-in"])
        producer = Producer(confluent_settings(others) | {"enable.idempotence": True})
        moved: list[bytes] = []

        def publish(count: int) -> list[bytes]:
            values = [b"%d" % (len(moved) + n) for n in range(count)]
            for value in values:
                producer.produce("kafka-in", value, value)
            assert producer.flush(60) == 0
            return values

        def move(values: list[bytes], id_: str) -> None:
            """What was read and how far, in one transaction."""
            got = take(consumer, len(values), 60)
            assert sorted(each.value or b"" for each in got) == sorted(values)
            sender = Producer(confluent_settings(others) | {"transactional.id": id_})
            sender.init_transactions(60)
            sender.begin_transaction()
            for each in got:
                sender.produce("kafka-out", each.value)
            positions = consumer.position(consumer.assignment())
            sender.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
            sender.commit_transaction(60)
            moved.extend(values)

        move(publish(20), "mover")
        cluster.signal(node)
        try:
            move(publish(20), "mover")
        finally:
            cluster.start(node)
        until(lambda: cluster.is_ready(node), 60)
        move(publish(20), "mover")
        consumer.close()
        out = [message.value for message in client.peek("kafka-out", limit=100)]
        assert sorted(out) == sorted(moved)
        assert len(client.peek("kafka-in", limit=100)) == 60
        assert set(client.describe_stream_group("moving").lag.values()) == {0}


def test_nothing_is_confirmed_that_is_not_committed(
    cluster: LocalCluster, grpc_clients: list[GrpcClient]
) -> None:
    """With two of three NATS servers silent nothing can be committed."""
    node = owner_of(cluster)
    address = kafka_of(cluster, node)
    grpc_clients[node].ask("create_topic", topic="silent")
    confluent_publish(address, "silent", [Message(b"k", b"before")])
    late = Producer(confluent_settings(address, acks=1, message_timeout_ms=2000))
    late.list_topics("silent", timeout=10)
    reports: list[object] = []
    with ExitStack() as closing:
        client = closing.enter_context(penstock.connect(cluster.urls[node], retry_for="0s"))
        threads = closing.enter_context(ThreadPoolExecutor(1))
        for server in (0, 1):
            cluster.nats.signal(server, signal.SIGSTOP)
            closing.callback(cluster.nats.signal, server, signal.SIGCONT)
        over_http = threads.submit(client.publish, "silent", b"http")
        late.produce("silent", b"kafka", b"k", on_delivery=lambda error, _: reports.append(error))
        code, _ = code_of(lambda: grpc_clients[node].publish(b"grpc", topic="silent"))
        assert code is grpc.StatusCode.UNAVAILABLE
        late.flush(10)
        assert isinstance(over_http.exception(20), PenstockError)
    assert len(reports) == 1
    assert reports[0] is not None
    until(lambda: all(map(cluster.is_ready, range(3))), 60)


def test_keys_are_sent_on(cluster: LocalCluster) -> None:
    """The last test: from now on every request needs a key."""
    namespaces = ["default", *(f"n{number}" for number in range(5))]
    assert len({owner_of(cluster, each) for each in namespaces}) > 1
    made = post(f"{cluster.urls[0]}/v1/keys", {"name": "ops", "role": "admin"})
    bearer = {"authorization": f"Bearer {made['token']}"}
    until(lambda: all(get(f"{url}/v1/topics", bearer) for url in cluster.urls))
    for number, namespace in enumerate(namespaces):
        with penstock.connect(
            cluster.urls[0], api_key=made["token"], namespace=namespace
        ) as client:
            client.create_topic("signed")
        address = kafka_of(cluster, number % 3)
        sasl = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": namespace,
        }
        confluent_publish(
            address, "signed", [Message(b"k", b"v")], sasl_password=made["token"], **sasl
        )
        (read,) = confluent_read(address, "signed", 1, sasl_password=made["token"], **sasl)
        assert read.value == b"v"
    for port in cluster.protocol_ports["grpc"]:
        keyed, keyless = GrpcClient(port, made["token"]), GrpcClient(port)
        assert keyed.ask("describe_topic", topic="signed")["topic"] == "signed"
        assert "n1" in keyed.ask("list_namespaces")["namespaces"]
        assert code_of(lambda: keyless.ask("summarize"))[1] == "unauthenticated"  # noqa: B023
        keyed.channel.close()
        keyless.channel.close()
