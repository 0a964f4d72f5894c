"""Logging in: a session in a cookie is good for what its key is good for, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from penstock.broker.broker import Broker
from penstock.server import sessions
from penstock.server.keys import KeyStore, Role
from tests.integration.server.asking import Answered, Http
from tests.integration.server.running import RunningServer

OWN = {"Sec_Fetch_Site": "same-origin"}


@pytest.fixture
def keys(broker: Broker) -> KeyStore:
    store = KeyStore.open(broker.folder)
    store.create("boss", "admin")
    return store


@pytest.fixture
def server(broker: Broker, keys: KeyStore) -> Iterator[RunningServer]:
    with RunningServer(broker, keys) as server:
        yield server


class Browser:
    """Keeps its cookie, and says that the server's own page asks."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.cookie = ""

    def log_in(self, token: str, **headers: str) -> Answered:
        answer = self._http.post("/v1/session", {"key": token}, **(headers or OWN))
        self.cookie = answer.headers.get("set-cookie", "").partition(";")[0]
        return answer

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answered:
        return self._http.ask(method, path, body, **{"Cookie": self.cookie, **(headers or OWN)})


@pytest.fixture
def browser(http: Http) -> Browser:
    return Browser(http)


def made(keys: KeyStore, role: Role, namespace: str | None = None) -> str:
    return keys.create(f"a-{role}", role, namespace).token


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(
    browser: Browser, keys: KeyStore
) -> None:
    answer = browser.log_in(made(keys, "readonly", "shop"))
    assert answer.status == 200
    assert answer.json["role"] == "readonly"
    assert answer.json["namespace"] == "shop"
    assert answer.json["rights"] == ["describe", "look"]
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} <= set(cookie.split("; "))
    assert "psk_" not in cookie
    assert browser.ask("GET", "/v1/session").json == answer.json


def test_a_session_may_what_its_key_may(browser: Browser, keys: KeyStore) -> None:
    browser.log_in(made(keys, "readonly"))
    assert browser.ask("GET", "/v1/stats/topics").status == 200
    assert browser.ask("PUT", "/v1/topics/orders", {}).code == "forbidden"
    assert browser.ask("GET", "/v1/keys").code == "forbidden"
    browser.log_in(made(keys, "admin"))
    assert browser.ask("PUT", "/v1/topics/orders", {}).status == 201


def test_without_a_session_nothing_is_told(http: Http) -> None:
    assert http.get("/v1/session").code == "unauthenticated"
    assert http.get("/v1/overview").code == "unauthenticated"
    assert http.get("/v1/overview", Cookie="penstock_x=1; other=2").code == "unauthenticated"
    assert http.get("/").status == 200  # the page itself, which asks for the key


@pytest.mark.parametrize("key", ["", "psk_0", "psk_" + "0" * 12 + "_" + "A" * 43, "x" * 300])
def test_a_wrong_key_gets_no_session(browser: Browser, key: str) -> None:
    answer = browser.log_in(key)
    assert answer.status in (400, 401, 422)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "none"},
        {"Origin": "https://evil.example"},
        {"X": "says nothing"},
    ],
)
def test_what_changes_something_has_to_come_from_our_own_page(
    browser: Browser, keys: KeyStore, headers: dict[str, str]
) -> None:
    browser.log_in(made(keys, "admin"))
    for method, path in (("PUT", "/v1/topics/orders"), ("DELETE", "/v1/session")):
        answer = browser.ask(method, path, {} if method == "PUT" else None, **headers)
        assert (answer.status, answer.code) == (403, "forbidden")
    assert browser.ask("GET", "/v1/topics").json["topics"] == []


def test_a_browser_that_only_says_its_origin_is_let_in(
    browser: Browser, keys: KeyStore, server: RunningServer
) -> None:
    """As over plain HTTP under a name, where browsers say nothing of sites."""
    browser.log_in(made(keys, "admin"), Origin=server.url)
    assert browser.ask("PUT", "/v1/topics/orders", {}, Origin=server.url).status == 201


def test_a_page_of_a_stranger_cannot_log_a_browser_in(browser: Browser, keys: KeyStore) -> None:
    answer = browser.log_in(made(keys, "admin"), Origin="https://evil.example")
    assert answer.code == "forbidden"
    assert "set-cookie" not in answer.headers


def test_a_session_ends_with_the_log_out(browser: Browser, keys: KeyStore) -> None:
    browser.log_in(made(keys, "admin"))
    answer = browser.ask("DELETE", "/v1/session")
    assert answer.status == 204
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert browser.ask("GET", "/v1/topics").code == "unauthenticated"


def test_a_session_ends_with_its_key(browser: Browser, keys: KeyStore) -> None:
    browser.log_in(made(keys, "admin"))
    keys.revoke("a-admin")
    assert browser.ask("GET", "/v1/topics").code == "unauthenticated"


def test_a_session_ends_after_its_time(
    browser: Browser, keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.log_in(made(keys, "admin"))
    late = sessions.time.monotonic() + sessions.LIFETIME_S + 1
    monkeypatch.setattr(sessions.time, "monotonic", lambda: late)
    assert browser.ask("GET", "/v1/topics").code == "unauthenticated"


def test_there_are_so_many_sessions_and_no_more(keys: KeyStore) -> None:
    (boss,) = keys.list()
    store = sessions.Sessions("data")
    tokens = [store.begin(boss) for _ in range(sessions.SESSIONS_MAX + 10)]
    assert sum(store.find(token) is not None for token in tokens) == sessions.SESSIONS_MAX
    assert store.find(tokens[0]) is None
    assert store.find(tokens[-1]) == boss


def test_a_server_without_keys_has_nothing_to_log_in_to(broker: Broker) -> None:
    folder = broker.folder + "-of-nobody"
    with RunningServer(broker, KeyStore.open(folder)) as server, Http(server.port) as http:
        assert http.get("/v1/session").json["keys"] is False
        assert http.post("/v1/session", {"key": "x"}).code == "forbidden"
        assert http.get("/v1/session", Host="evil.example").code == "forbidden"


def test_a_websocket_takes_the_session_of_our_own_page_only(
    browser: Browser, keys: KeyStore, server: RunningServer
) -> None:
    browser.log_in(made(keys, "readonly"))
    url = server.url.replace("http", "ws", 1) + "/v1/ws"
    cookie = {"Cookie": browser.cookie}
    with connect(url, origin=server.url, additional_headers=cookie) as socket:  # type: ignore[arg-type]
        assert '"hello"' in socket.recv(timeout=10)
    for origin in ("https://evil.example", None):
        with (
            connect(url, origin=origin, additional_headers=cookie) as socket,  # type: ignore[arg-type]
            pytest.raises(ConnectionClosed) as ended,
        ):
            socket.recv(timeout=10)
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 4400
