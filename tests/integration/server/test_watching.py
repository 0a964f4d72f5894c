"""Answers that are watched over a WebSocket: all at first, then what has changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.broker.broker import Broker
from penstock.client.client import Client
from tests.integration.server.running import RunningServer
from tests.integration.server.test_websocket import Talk, talking


@pytest.fixture
def talk(server: RunningServer, ps: Client) -> Iterator[Talk]:
    ps.create_topic("orders")
    with talking(server) as talk:
        talk.hear("hello")
        yield talk


def watch(talk: Talk, path: str, id_: str = "w") -> None:
    assert talk.ask("subscribe", id=id_, mode="watch", path=path)["type"] == "ok"


def test_all_fields_come_first_and_then_those_that_changed(talk: Talk, ps: Client) -> None:
    watch(talk, "/v1/topics/orders/stats")
    first = talk.hear("changed")["fields"]
    assert (first["topic"], first["messages"]) == ("orders", 0)
    ps.publish("orders", "x")
    later = talk.hear(lambda said: "messages" in said.get("fields", {}))["fields"]
    assert later["messages"] == 1
    assert "topic" not in later


def test_nothing_comes_while_nothing_changes(talk: Talk) -> None:
    watch(talk, "/v1/topics/orders")
    talk.hear("changed")
    assert talk.is_quiet(2.5)


def test_queries_and_names_are_as_over_http(talk: Talk, ps: Client) -> None:
    other = ps.in_namespace("shop")
    other.create_topic("a.b-c")
    watch(talk, "/v1/namespaces/shop/stats/topics?search=b-c&limit=5&recent=true")
    fields = talk.hear("changed")["fields"]
    assert [row["topic"] for row in fields["topics"]] == ["a.b-c"]
    assert len(fields["recent"][0]) == 60


@pytest.mark.parametrize(
    "path", ["/", "/v1/keys", "/metrics", "/v1/topics/orders/nothing", "v1/stats", "/v1/ws"]
)
def test_only_what_the_api_answers_can_be_watched(talk: Talk, path: str) -> None:
    answer = talk.ask("subscribe", id="w", mode="watch", path=path)
    assert answer["problem"]["code"] == "not_found"


def test_a_wrong_query_and_a_wrong_pace_are_refused(talk: Talk) -> None:
    for asked in (
        {"path": "/v1/stats?x=1"},
        {"path": "/v1/stats/topics?limit=-1"},
        {"path": "/v1/stats", "every": "10ms"},
        {"path": "/v1/stats", "every": "1h"},
    ):
        answer = talk.ask("subscribe", id="w", mode="watch", **asked)
        assert answer["problem"]["code"] == "invalid_input"


def test_a_topic_that_goes_away_ends_its_watch_and_no_other(talk: Talk, ps: Client) -> None:
    watch(talk, "/v1/topics/orders/stats")
    watch(talk, "/v1/overview", "all")
    talk.hear(lambda said: said.get("id") == "w")
    ps.delete_topic("orders")
    ended = talk.hear(lambda said: said["type"] == "problem")
    assert (ended["id"], ended["problem"]["code"]) == ("w", "topic_not_found")
    ps.create_topic("sales")
    talk.hear(lambda said: said.get("id") == "all" and "summary" in said.get("fields", {}))
    watch(talk, "/v1/topics/sales/stats")


def test_a_key_watches_what_it_may_ask_and_until_it_is_revoked(
    broker: Broker, server: RunningServer, ps: Client
) -> None:
    ps.create_topic("orders")
    keys = server.keys
    token = keys.create("shop", "producer", "shop").token
    with talking(server, additional_headers={"Authorization": f"Bearer {token}"}) as talk:
        talk.hear("hello")
        refused = talk.ask("subscribe", id="w", mode="watch", path="/v1/topics/orders/stats")
        assert refused["problem"]["code"] == "forbidden"
        refused = talk.ask("subscribe", id="w", mode="watch", path="/v1/namespaces/shop/schedules")
        assert refused["problem"]["code"] == "forbidden"  # a producer does not look
        answer = talk.ask(
            "subscribe", id="w", mode="watch", path="/v1/namespaces/shop/stats/topics"
        )
        assert answer["type"] == "ok"
        assert talk.hear("changed")["fields"]["topics"] == []
        keys.revoke("shop")
        with pytest.raises(Exception, match="4401"):
            talk.hear("never")


def test_who_watches_the_same_shares_one_answer(server: RunningServer, ps: Client) -> None:
    asked = 0
    api = server.door.api
    before = api.describe_overview

    def count(call: object) -> object:
        nonlocal asked
        asked += 1
        return before(call)  # type: ignore[arg-type]

    api.describe_overview = count  # type: ignore[method-assign, assignment]
    with talking(server) as one, talking(server) as two:
        for talk in (one, two):
            talk.hear("hello")
            for number in range(10):
                watch(talk, "/v1/overview", str(number))
            talk.hear("changed")
    assert 0 < asked < 10


def test_keys_of_two_namespaces_do_not_share_answers(server: RunningServer, ps: Client) -> None:
    for name in ("one", "two"):
        ps.in_namespace(name).create_topic(f"of-{name}")
    seen = {}
    tokens = {name: server.keys.create(name, "readonly", name).token for name in ("one", "two")}
    for name, token in tokens.items():
        with talking(server, additional_headers={"Authorization": f"Bearer {token}"}) as talk:
            talk.hear("hello")
            path = f"/v1/namespaces/{name}/stats/topics"
            assert talk.ask("subscribe", id="w", mode="watch", path=path)["type"] == "ok"
            seen[name] = [row["topic"] for row in talk.hear("changed")["fields"]["topics"]]
    assert seen == {"one": ["of-one"], "two": ["of-two"]}
