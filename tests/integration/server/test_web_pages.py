"""Web pages of strangers, in a browser that reaches a server: they must not use it."""

from __future__ import annotations

import pytest

from penstock.broker.broker import Broker
from penstock.server.http.endpoints import paths
from penstock.server.http.routes import ENDPOINTS
from penstock.server.keys import KeyStore
from tests.integration.server.asking import Http, talk
from tests.integration.server.running import RunningServer

ORDERS = "/v1/topics/orders"
FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},  # another program on the same machine
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
]


@pytest.fixture
def orders(http: Http) -> Http:
    http.ask("PUT", ORDERS)
    return http


@pytest.mark.parametrize("path", [paths(each)[0] for each in ENDPOINTS if each.method == "POST"])
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_every_post_has_to_say_what_it_brings(server: RunningServer, path: str, kind: str) -> None:
    said = f"content-type: {kind}\r\n" if kind else ""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{said}connection: close\r\n"
    assert b"HTTP/1.1 415 " in talk(server.port, f"{head}content-length: 0\r\n\r\n".encode())
    assert b"HTTP/1.1 415 " in talk(server.port, f"{head}content-length: 2\r\n\r\n{{}}".encode())


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_a_stranger_is_refused(orders: Http, headers: dict[str, str]) -> None:
    for path, body in (
        (f"{ORDERS}/dead-letters/purge", {}),
        ("/v1/keys", {"name": "mine", "role": "admin"}),
        (f"{ORDERS}/messages", {"value": "x"}),
    ):
        answer = orders.post(path, body, **headers)
        assert (answer.status, answer.code) == (403, "forbidden")
    assert orders.get(f"{ORDERS}/messages", **headers).status == 403
    assert orders.get(f"{ORDERS}/stats").json["messages"] == 0
    assert orders.get("/v1/keys").json["keys"] == []


def test_a_page_of_a_stranger_may_link_to_the_description(http: Http) -> None:
    for path in ("/docs", "/docs/start.js", "/openapi.json", "/healthz"):
        assert http.get(path, Sec_Fetch_Site="cross-site").status == 200


def test_the_page_of_the_server_itself_may_ask(orders: Http, server: RunningServer) -> None:
    own = {"Origin": server.url, "Sec_Fetch_Site": "same-origin"}
    assert orders.post(f"{ORDERS}/messages", {"value": "x"}, **own).status == 201


@pytest.mark.parametrize("name", ["evil.example", "evil.example:8080", "localhost.evil.example"])
def test_a_name_that_is_not_the_servers_is_refused_without_keys(orders: Http, name: str) -> None:
    answer = orders.post(f"{ORDERS}/messages", {"value": "x"}, Host=name)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert "allowed_hosts" in answer.json["detail"]
    assert orders.get("/healthz", Host=name).status == 200  # which tells nothing


@pytest.mark.parametrize(
    "name",
    ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "10.1.2.3", "a.localhost"],
)
def test_names_of_this_machine_and_addresses_are_its_own(orders: Http, name: str) -> None:
    assert orders.get("/v1/topics", Host=name).status == 200


def test_names_can_be_allowed(broker: Broker) -> None:
    names = "queue.example, Other.Example"
    with RunningServer(broker, allowed_hosts=names) as server, Http(server.port) as http:
        assert http.get("/v1/topics", Host="queue.example:80").status == 200
        assert http.get("/v1/topics", Host="other.example").status == 200
        assert http.get("/v1/topics", Host="third.example").status == 403
        page = {"Origin": "https://queue.example", "Host": "127.0.0.1"}
        assert http.get("/v1/topics", **page).status == 200
    with RunningServer(broker, allowed_hosts="*") as server, Http(server.port) as http:
        assert http.get("/v1/topics", Host="third.example").status == 200


def test_with_keys_the_name_does_not_matter(broker: Broker) -> None:
    keys = KeyStore.open(broker.folder)
    token = keys.create("app", "readonly").token
    with RunningServer(broker, keys) as server, Http(server.port, token) as http:
        assert http.get("/v1/topics", Host="anything.example").status == 200
        assert http.get("/v1/topics", Origin="https://evil.example").status == 403
