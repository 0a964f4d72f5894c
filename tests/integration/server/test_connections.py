"""The quota of connections: of a namespace, at each door, and never for those who settle."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.broker.api import Api
from penstock.client.local_link import LocalLink
from penstock.config import ServerConfig
from penstock.errors import QuotaExceeded
from penstock.server.door import Door
from penstock.server.keys import KeyStore
from penstock.server.link_api import LinkApi
from tests.integration.broker.world import until
from tests.integration.server.asking import Http
from tests.integration.server.running import RunningServer
from tests.integration.server.test_websocket import talking

PUBLISH = "/v1/topics/orders/messages"


@pytest.fixture
def orders(ps: Any) -> Any:
    ps.create_topic("orders")
    ps.set_quotas("default", connections=1)
    return ps


def used(server: RunningServer, namespace: str = "default") -> int:
    return server.door.connections.count(namespace)


def publish(http: Http) -> int:
    return http.post(PUBLISH, {"messages": [{"value": "x"}]}).status


def test_connections_are_counted_until_they_are_closed(orders: Any, server: RunningServer) -> None:
    with Http(server.port) as first:
        assert [publish(first), publish(first)] == [201, 201]
        assert orders.describe_namespace().usage.connections == 1
        with Http(server.port) as second:
            refused = second.post(PUBLISH, {"messages": [{"value": "x"}]})
            assert (refused.status, refused.code) == (429, "quota_exceeded")
            assert "connections" in refused.json["detail"]
    until(lambda: used(server) == 0)
    with Http(server.port) as third:
        assert publish(third) == 201


def test_acks_and_who_looks_after_the_server_pass(orders: Any, server: RunningServer) -> None:
    with Http(server.port) as first:
        publish(first)
        path = "/v1/topics/orders/groups/g"
        (message,) = first.post(f"{path}/receive", {}).json["messages"]
        with Http(server.port) as second:
            assert second.post(f"{path}/ack", {"receipts": [message["receipt"]]}).status == 200
            assert second.get("/v1/namespaces/default/usage").status == 200
    orders.set_quotas("default")
    assert orders.stats("orders").depth == 0


def test_other_namespaces_have_their_own(orders: Any, server: RunningServer) -> None:
    with Http(server.port) as first, penstock.connect(server.url, namespace="shop") as shop:
        publish(first)
        shop.create_topic("orders")
        shop.publish("orders", b"x")
        assert (used(server), used(server, "shop")) == (1, 1)


def test_sockets_count_by_what_they_subscribe_to(orders: Any, server: RunningServer) -> None:
    with talking(server) as first, talking(server) as second:
        assert used(server) == 0
        first.subscribe(topic="orders", group="g")
        assert used(server) == 1
        problem = second.subscribe(topic="orders", group="g")
        assert problem["problem"]["code"] == "quota_exceeded"
    until(lambda: used(server) == 0)


def test_clients_of_kafka_count(broker: Any) -> None:
    kafka = pytest.importorskip("confluent_kafka.admin")
    with RunningServer(broker, kafka=True) as server:
        admin = kafka.AdminClient({"bootstrap.servers": server.kafka})
        admin.list_topics(timeout=10)
        until(lambda: used(server) >= 1)
        del admin
        until(lambda: used(server) == 0)


def test_where_another_process_has_the_folder_nobody_is_counted(broker: Any) -> None:
    door = Door(LinkApi(LocalLink(Api(broker))), ServerConfig(port=0), KeyStore.open(broker.folder))
    connection = object()
    door.connections.use(connection, "publish", "default")
    assert door.connections.count("default") == 1
    door.connections.closed(connection)
    door.close()


def test_the_client_is_told_which_quota(orders: Any, server: RunningServer) -> None:
    with Http(server.port) as first, penstock.connect(server.url, retry_for="0s") as ps:
        publish(first)
        with pytest.raises(QuotaExceeded) as refused:
            ps.publish("orders", b"x")
        assert (refused.value.quota, refused.value.limit) == ("connections", 1)
