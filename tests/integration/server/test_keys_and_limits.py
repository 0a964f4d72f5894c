"""Who is let in, for what, how often, and how much at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme

import penstock
from penstock.broker.broker import Broker
from penstock.config import ServerConfig
from penstock.errors import (
    Forbidden,
    InvalidInput,
    RequestTooLarge,
    TooManyRequests,
    Unauthenticated,
)
from penstock.server.keys import KeyStore
from penstock.server.run import serve
from tests.integration.server.asking import Http
from tests.integration.server.running import RunningServer


@pytest.fixture
def keys(broker: Broker) -> dict[str, str]:
    store = KeyStore.open(broker.folder)
    made = {role: store.create(role, role).token for role in ("admin", "producer", "consumer")}
    made["readonly"] = store.create("readonly", "readonly").token
    made["shop"] = store.create("shop", "admin", "shop").token
    return made


def test_without_a_key_anybody_may_until_there_is_one(server: RunningServer) -> None:
    with Http(server.port) as http:
        assert http.get("/v1/topics").status == 200
        made = http.post("/v1/keys", {"name": "me", "role": "admin"})
        assert made.status == 201
        assert http.get("/v1/topics").code == "unauthenticated"
        assert http.get("/healthz").status == 200
        token = made.json["token"]
    with Http(server.port, token) as http:
        assert http.get("/v1/topics").status == 200
        again = http.post("/v1/keys", {"name": "me", "role": "admin"})
        assert (again.status, again.code) == (409, "key_exists")
        (key,) = http.get("/v1/keys").json["keys"]
        assert (key["name"], key.get("token")) == ("me", None)
        assert http.ask("DELETE", "/v1/keys/me").status == 200
        assert http.get("/v1/topics").code == "unauthenticated"


def test_a_wrong_key_is_refused(server: RunningServer, keys: dict[str, str]) -> None:
    right = keys["admin"]
    forged = right[:-1] + ("A" if right[-1] != "A" else "B")
    for wrong in (forged, right[:-1], right + "x", right.upper(), "x", "", "psk_", "é"):
        with Http(server.port) as http:
            answer = http.get("/v1/topics", authorization=f"Bearer {wrong}")
            assert answer.code == "unauthenticated"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert http.get("/v1/topics", authorization=f"Basic {right}").status == 401
    with penstock.connect(server.url, api_key="wrong") as ps, pytest.raises(Unauthenticated):
        ps.topics()


ASKED: list[tuple[str, str, Any, set[str]]] = [
    ("GET", "/v1/topics", None, {"admin", "producer", "consumer", "readonly"}),
    ("GET", "/v1/topics/orders/messages", None, {"admin", "consumer", "readonly"}),
    ("POST", "/v1/topics/orders/messages", {"value": "x"}, {"admin", "producer"}),
    ("POST", "/v1/topics/orders/groups/g/receive", {}, {"admin", "consumer"}),
    ("POST", "/v1/topics/orders/groups/g/ack", {}, {"admin", "consumer"}),
    ("PUT", "/v1/topics/orders?exist_ok=true", {}, {"admin"}),
    ("DELETE", "/v1/topics/orders/messages", None, {"admin"}),
    ("GET", "/v1/keys", None, {"admin"}),
    ("GET", "/v1/topics/orders/latencies", None, {"admin", "producer", "consumer", "readonly"}),
    ("GET", "/metrics", None, {"admin", "producer", "consumer", "readonly"}),
]


@pytest.mark.parametrize(("method", "path", "body", "allowed"), ASKED)
def test_a_role_allows_what_it_is_for(
    server: RunningServer,
    keys: dict[str, str],
    method: str,
    path: str,
    body: Any,
    allowed: set[str],
) -> None:
    with Http(server.port, keys["admin"]) as http:
        http.ask("PUT", "/v1/topics/orders")
    for role in ("admin", "producer", "consumer", "readonly"):
        with Http(server.port, keys[role]) as http:
            answer = http.ask(method, path, body)
            assert answer.status == 403 if role not in allowed else answer.status < 300, role
            if role not in allowed:
                assert answer.code == "forbidden"


def test_a_key_of_a_namespace_stays_in_it(server: RunningServer, keys: dict[str, str]) -> None:
    with Http(server.port, keys["admin"]) as http:
        http.ask("PUT", "/v1/topics/orders")
        http.post("/v1/topics/orders/messages", {"value": "secret"})
        http.post("/v1/stream-groups/theirs/join", {"topics": ["orders"], "member_id": "m"})
    with Http(server.port, keys["shop"]) as http:
        assert http.ask("PUT", "/v1/namespaces/shop/topics/mine").status == 201
        assert http.get("/v1/topics/orders").code == "forbidden"
        assert http.get("/v1/namespaces/default/topics/orders").code == "forbidden"
        assert http.get("/v1/keys").code == "forbidden"
        assert http.get("/v1/namespaces/shop/stats").json["stream_groups"] == 0
        place = {"topic": "orders", "partition": 0, "offset": 0}
        assert http.post("/v1/namespaces/shop/fetch", {"positions": [place]}).code == "forbidden"
        who = {"member_id": "m", "generation": 1}
        for base, code in (
            ("/v1/stream-groups/theirs", "forbidden"),
            ("/v1/namespaces/shop/stream-groups/theirs", "group_not_found"),  # another group
        ):
            assert http.get(base).code == code
            for verb, body in (
                ("heartbeat", who),
                ("leave", who),
                ("sync", who | {"revoked": []}),
                ("commit", who | {"offsets": [place]}),
            ):
                assert http.post(f"{base}/{verb}", body).code == code, verb
            assert http.ask("DELETE", base).code == code
    client = penstock.connect(server.url, api_key=keys["shop"], namespace="shop")
    with client as ps:
        ps.publish("mine", b"x")
        assert ps.receive("mine", "g")[0].value == b"x"
        with ps.stream("mine", "audit") as stream:
            assert stream.next(5).value == b"x"
            stream.commit()
            assert ps.stream_groups() == ["audit"]
        with ps.producer("mine") as out:
            out.send(b"y")
        assert ps.dead_letters("mine").count() == 0
        with pytest.raises(Forbidden):
            ps.in_namespace("default").publish("orders", b"x")


def test_a_wrong_name_tells_nothing_of_a_namespace_that_is_not_ones_own(
    server: RunningServer, keys: dict[str, str]
) -> None:
    with Http(server.port, keys["admin"]) as http:
        http.ask("PUT", "/v1/topics/orders")
        answer = http.get("/v1/topics/ordrs")
        assert answer.json["detail"] == "there is no topic 'ordrs'; did you mean 'orders'?"
        assert answer.json["fields"] == {"topic": "ordrs", "nearest": "orders"}
    with Http(server.port, keys["shop"]) as http:
        refused = http.get("/v1/topics/ordrs")
        assert (refused.code, "orders" in str(refused.json)) == ("forbidden", False)
        own = http.get("/v1/namespaces/shop/topics/ordrs")
        assert (own.code, "orders" in str(own.json)) == ("topic_not_found", False)


def test_the_key_may_come_from_the_environment(
    server: RunningServer, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEY", keys["admin"])
    with penstock.connect(server.url) as ps:
        assert ps.topics() == []


# Limits.


def test_too_many_requests_are_slowed_down(broker: Broker) -> None:
    with (
        RunningServer(broker, rate_per_address=5.0, burst_per_address=3) as server,
        Http(server.port) as http,
    ):
        answers = [http.get("/v1/topics") for _ in range(10)]
        refused = [answer for answer in answers if answer.status == 429]
        assert len(refused) >= 5
        assert refused[0].code == "too_many_requests"
        assert int(refused[0].headers["retry-after"]) >= 1
        with penstock.connect(server.url, retry_for="20s") as ps:  # it waits, and tries again
            for _ in range(5):
                ps.topics()
        for _ in range(10):
            http.get("/v1/topics")
        with pytest.raises(TooManyRequests) as refused_too:
            penstock.connect(server.url, retry_for=0)
        assert 0 < refused_too.value.retry_after_s < 10


def test_a_key_has_a_limit_of_its_own(broker: Broker, keys: dict[str, str]) -> None:
    with RunningServer(broker, rate_per_key=0.001, burst_per_key=2) as server:
        with Http(server.port, keys["admin"]) as http:
            assert [http.get("/v1/topics").status for _ in range(3)] == [200, 200, 429]
        with Http(server.port, keys["producer"]) as http:
            assert http.get("/v1/topics").status == 200


def test_polls_are_limited(broker: Broker) -> None:
    with RunningServer(broker, polls_max=1) as server, Http(server.port) as http:
        http.ask("PUT", "/v1/topics/orders")
        waiting = Http(server.port)
        waiting._connection.request(
            "POST",
            "/v1/topics/orders/groups/g/receive",
            b'{"wait": 20}',
            {"content-type": "application/json"},
        )
        while not len(server.door.polls):
            http.get("/healthz")
        answer = http.post("/v1/topics/orders/groups/g/receive", {"wait": 20})
        assert (answer.status, answer.code) == (503, "unavailable")
        assert http.post("/v1/topics/orders/groups/g/receive", {"wait": 0}).status == 200
        waiting.close()


def test_bodies_batches_and_headers_are_limited(broker: Broker) -> None:
    with RunningServer(
        broker, body_bytes_max=10_000, batch_messages_max=10, header_bytes_max=2_000
    ) as server:
        with Http(server.port) as http:
            http.ask("PUT", "/v1/topics/orders")
            many = {"messages": [{"value": "x"}] * 11}
            assert http.post("/v1/topics/orders/messages", many).code == "request_too_large"
            receipts = {"receipts": ["orders:0:0:1:0123456789abcde"] * 11}
            refused = http.post("/v1/topics/orders/groups/g/ack", receipts)
            assert refused.code == "request_too_large"
        with Http(server.port) as http:
            answer = http.post("/v1/topics/orders/messages", {"value": "x" * 10_000})
            assert (answer.status, answer.code) == (413, "request_too_large")
        with Http(server.port) as http:
            assert http.get("/v1/topics", x_long="y" * 3000).code == "request_too_large"


def test_a_body_that_is_refused_while_it_is_sent_is_told_of_at_once(broker: Broker) -> None:
    with (
        RunningServer(broker, body_bytes_max=10_000) as server,
        penstock.connect(server.url, retry_for="1s") as ps,
    ):
        ps.create_topic("orders")
        for _ in range(5):
            with pytest.raises(RequestTooLarge, match="longer than 10000 bytes"):
                ps.publish_batch("orders", [b"x" * 1_000_000] * 30)
        ps.publish("orders", "x")  # the next request has a connection of its own
        assert ps.stats("orders").messages == 1


def test_also_over_tls(broker: Broker, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    pem = tmp_path / "server.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    tls = {"tls_cert": str(pem), "tls_key": str(pem)}
    with (
        RunningServer(broker, body_bytes_max=10_000, **tls) as server,
        penstock.connect(server.url, tls_ca=tmp_path / "ca.pem", retry_for="1s") as ps,
    ):
        ps.create_topic("orders")
        for _ in range(5):
            with pytest.raises(RequestTooLarge, match="longer than 10000 bytes"):
                ps.publish_batch("orders", [b"x" * 1_000_000] * 30)


# Exposure.


def test_it_does_not_listen_to_the_world_without_a_key(tmp_path: Path) -> None:
    config = ServerConfig(data=str(tmp_path / "data"), host="0.0.0.0", port=0)
    with pytest.raises(InvalidInput, match=r"no API key yet.*penstock key create"):
        serve(config)
    assert not (tmp_path / "data" / "LOCK").exists()


def test_a_key_may_come_as_x_api_key(server: RunningServer, keys: dict[str, str]) -> None:
    with Http(server.port) as http:
        assert http.get("/v1/topics", **{"x-api-key": keys["admin"]}).status == 200
        assert http.get("/v1/topics", **{"x-api-key": "wrong"}).code == "unauthenticated"


def test_a_tenant_sees_its_quotas_and_does_not_set_them(
    server: RunningServer, keys: dict[str, str]
) -> None:
    with Http(server.port, keys["admin"]) as http:
        made = http.ask("PUT", "/v1/namespaces/shop/quotas", {"quotas": {"topics": 1}})
        assert made.json["quotas"]["topics"] == 1
    with Http(server.port, keys["shop"]) as shop:
        assert shop.get("/v1/namespaces/shop/usage").json["quotas"]["topics"] == 1
        assert shop.ask("PUT", "/v1/namespaces/shop/quotas", {"quotas": {}}).code == "forbidden"
        assert shop.ask("DELETE", "/v1/namespaces/shop").code == "forbidden"
        assert shop.ask("PUT", "/v1/namespaces/shop/topics/one", {}).status == 201
        refused = shop.ask("PUT", "/v1/namespaces/shop/topics/two", {})
        assert (refused.status, refused.code) == (429, "quota_exceeded")
        assert refused.json["fields"]["used"] == 2


def test_who_did_what_is_told(server: RunningServer, keys: dict[str, str]) -> None:
    with Http(server.port, keys["admin"]) as http, Http(server.port, keys["shop"]) as shop:
        http.ask("PUT", "/v1/topics/orders", {"partitions": 2})
        shop.ask("PUT", "/v1/namespaces/shop/topics/orders", {})
        shop.ask("DELETE", "/v1/topics/orders")  # not its own
        http.post("/v1/topics/orders/messages", {"value": "x"})
        http.ask("DELETE", "/v1/topics/orders/messages")
        http.post("/v1/keys", {"name": "new", "role": "readonly"})
        told = http.get("/v1/audit").json["entries"]
        assert [(each["actor"], each["action"], each["target"]) for each in told] == [
            ("admin", "make_key", ""),
            ("admin", "purge", "orders"),
            ("shop", "delete_topic", "orders"),
            ("shop", "create_topic", "orders"),
            ("admin", "create_topic", "orders"),
        ]
        assert told[2]["error"] == "forbidden"
        assert '"partitions":2' in told[4]["detail"].replace(" ", "")
        assert '"new"' in told[0]["detail"]
        first = http.get("/v1/audit?limit=2").json
        rest = http.get(f"/v1/audit?before={first['next']}").json
        assert [*first["entries"], *rest["entries"]] == told
        own = shop.get("/v1/namespaces/shop/audit").json["entries"]
        assert [each["action"] for each in own] == ["create_topic"]
        assert shop.get("/v1/audit").code == "forbidden"
