"""The HTTP door as any client sees it: JSON in, JSON out, problems with stable codes."""

from __future__ import annotations

import base64
import http.client
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.client import topics
from penstock.clock import ManualClock
from penstock.log.local_engine import LocalEngine
from penstock.model.names import topic_name
from penstock.record.batch import Batch
from tests.integration.broker.world import Background, QuickFiles, until
from tests.integration.server.asking import Http
from tests.integration.server.running import RunningServer


@pytest.fixture
def orders(http: Http) -> Http:
    assert http.ask("PUT", "/v1/topics/orders", {"visibility": "10s"}).status == 201
    return http


def received(http: Http, **how: Any) -> list[dict[str, Any]]:
    answer = http.post("/v1/topics/orders/groups/g/receive", how)
    assert answer.status == 200
    messages: list[dict[str, Any]] = answer.json["messages"]
    return messages


# Topics.


def test_a_topic_is_made_altered_listed_and_deleted(http: Http) -> None:
    made = http.ask("PUT", "/v1/topics/orders", {"partitions": 2, "ttl": "1h"})
    assert (made.status, made.json["settings"]["ttl_ms"]) == (201, 3_600_000)
    assert http.ask("PUT", "/v1/topics/orders").code == "topic_exists"
    assert http.ask("PUT", "/v1/topics/orders?exist_ok=true").status == 201
    assert http.get("/v1/topics").json == {"topics": ["orders"]}
    altered = http.ask("PATCH", "/v1/topics/orders", {"partitions": 3, "ttl": None})
    assert (altered.json["settings"]["partitions"], altered.json["settings"]["ttl_ms"]) == (3, None)
    assert http.get("/v1/topics/orders").json == altered.json
    assert http.ask("DELETE", "/v1/topics/orders").status == 204
    assert http.get("/v1/topics/orders").code == "topic_not_found"


def test_namespaces_have_paths_of_their_own(http: Http) -> None:
    http.ask("PUT", "/v1/namespaces/shop/topics/orders")
    http.post("/v1/namespaces/shop/topics/orders/messages", {"value": "x"})
    assert http.get("/v1/namespaces").json == {"namespaces": ["default", "shop"]}
    assert http.get("/v1/topics").json == {"topics": []}
    got = http.post("/v1/namespaces/shop/topics/orders/groups/g/receive").json["messages"]
    assert got[0]["receipt"].startswith("shop/orders:0:0:1:")
    settled = http.post(
        "/v1/namespaces/shop/topics/orders/groups/g/ack", {"receipts": [got[0]["receipt"]]}
    )
    assert settled.json == {"refused": []}
    assert http.post("/v1/namespaces/No/topics/x/messages", {}).code == "invalid_input"


# Messages.


def test_a_message_goes_round(orders: Http) -> None:
    full = {
        "value": "Grüße",
        "key_base64": base64.b64encode(b"\xff").decode(),
        "headers": {"a": "1", "b": {"base64": "/w=="}, "c": None},
        "priority": "high",
        "ttl": "1h",
    }
    placed = orders.post("/v1/topics/orders/messages", full)
    assert placed.status == 201
    assert (placed.json["partition"], placed.json["offset"]) == (0, 0)
    (message,) = received(orders)
    assert message["value"] == "Grüße"
    assert message["key_base64"] == full["key_base64"]
    assert message["headers"] == full["headers"]
    assert (message["priority"], message["delivery_count"]) == ("high", 1)
    assert message["expires_at_us"] > time.time() * 1e6
    assert message["id"] == placed.json["id"]
    peeked = orders.get("/v1/topics/orders/messages").json["messages"]
    assert peeked[0]["value"] == "Grüße"


def test_a_look_at_all_partitions_says_where_each_message_lies(http: Http, ps: Any) -> None:
    ps.create_topic("orders", partitions=3)
    for n in (2, 0, 1):
        ps.publish("orders", b"%d" % n, partition=n)
    page = http.get("/v1/topics/orders/messages").json
    assert [(m["partition"], m["value"]) for m in page["messages"]] == [
        (2, "2"),
        (0, "0"),
        (1, "1"),
    ]
    assert page["partition"] is None
    one = http.get("/v1/topics/orders/messages?partition=1").json
    assert [m["partition"] for m in one["messages"]] == [1]
    assert [m.partition for m in ps.peek("orders")] == [2, 0, 1]


def test_the_body_may_be_the_value_itself(orders: Http) -> None:
    value = bytes(range(256))
    path = "/v1/topics/orders/messages?key=k&priority=1&ttl=90"
    orders.ask("POST", path, value, content_type="application/octet-stream")
    (message,) = received(orders)
    assert base64.b64decode(message["value_base64"]) == value
    assert (message["key"], message["priority"]) == ("k", "high")


def test_many_at_once_each_with_its_own(orders: Http) -> None:
    many = [
        {"value": "a"},
        {"value": "b", "delay": "1h"},
        {"value": "c", "partition": 0},
        {"value": "d", "dedup_id": "once"},
        {"value": "d", "dedup_id": "once"},
        {"value": "e", "deliver_at": "2020-01-01T00:00:00Z"},
    ]
    placed = orders.post("/v1/topics/orders/messages", {"messages": many}).json["messages"]
    assert [each.get("duplicate", False) for each in placed] == [False] * 4 + [True, False]
    assert [("offset" in each) for each in placed] == [True, False, True, True, True, False]
    until(lambda: orders.get("/v1/topics/orders/stats").json["messages"] == 4)
    values = [message["value"] for message in received(orders)]
    assert sorted(values) == ["a", "c", "d", "e"]
    waiting = orders.get("/v1/topics/orders/delayed").json
    assert [each["message"]["value"] for each in waiting["delayed"]] == ["b"]
    id_ = waiting["delayed"][0]["id"]
    assert orders.ask("DELETE", f"/v1/topics/orders/delayed/{id_}").json == {"found": True}
    assert orders.ask("DELETE", f"/v1/topics/orders/delayed/{id_}").json == {"found": False}


@pytest.mark.parametrize("form", ["json", "many", "value"])
def test_a_delayed_message_with_an_id_is_stored_once(orders: Http, form: str) -> None:
    def publish(delay: str, dedup_id: str) -> dict[str, Any]:
        path, how = "/v1/topics/orders/messages", {"delay": delay, "dedup_id": dedup_id}
        if form == "value":
            path += f"?delay={delay}&dedup_id={dedup_id}&dedup_window=1h"
            answer = orders.ask("POST", path, b"a", content_type="application/octet-stream")
            return answer.json  # type: ignore[no-any-return]
        message = {"value": "a", "dedup_window": "1h", **how}
        if form == "json":
            return orders.post(path, message).json  # type: ignore[no-any-return]
        several = orders.post(path, {"messages": [message, {"value": "b"}]}).json["messages"]
        return several[0]  # type: ignore[no-any-return]

    first = publish("1h", "x")
    assert publish("2h", "x") == first | {"duplicate": True}
    assert publish("1h", "y")["id"] != first["id"]
    waiting = orders.get("/v1/topics/orders/delayed").json["delayed"]
    assert len(waiting) == 2
    assert waiting[0]["id"] == waiting[0]["message"]["id"] == first["id"]
    now = orders.post("/v1/topics/orders/messages", {"value": "a", "dedup_id": "x"}).json
    assert now == {"id": first["id"], "partition": 0, "duplicate": True}


def test_nothing_of_a_request_is_stored_if_a_part_of_it_is_wrong(orders: Http) -> None:
    for wrong in (
        {"partition": 7},
        {"priority": "soon"},
        {"delay": "1 hour"},
        {"value_base64": "?"},
        {"delay": "91d"},
        {"deliver_at": "2999-01-01T00:00:00Z"},
        {"dedup_id": ""},
        {"dedup_window": "1m"},
        {"dedup_id": "x", "delay": "1s", "dedup_window": "15d"},
        {"ttl": "-1s"},
    ):
        answer = orders.post(
            "/v1/topics/orders/messages", {"messages": [{"value": "a"}, {"value": "b"} | wrong]}
        )
        assert answer.status in (400, 404), answer
    assert nothing_is_stored(orders)


def nothing_is_stored(http: Http) -> bool:
    stats = http.get("/v1/topics/orders/stats").json
    return bool(stats["messages"] == 0 and stats["delayed"] == 0)


@pytest.mark.parametrize("partitions", [1, 3])
def test_nothing_of_a_request_is_stored_if_a_message_is_too_large(
    http: Http, partitions: int
) -> None:
    http.ask("PUT", "/v1/topics/orders", {"partitions": partitions, "message_bytes_max": 100})
    for how, most in (
        ({"partition": 0}, 100),
        ({"delay": "1s"}, 100),
        ({"dedup_id": "once"}, 100 - len("penstock-dedup-id") - len("once")),
        ({"delay": "1s", "partition": 0}, 100),
        ({"partition": 0, "key": "k", "headers": {"h": "v"}}, 97),
    ):
        large: dict[str, Any] = {"value": "x" * (most + 1), **how}
        answer = http.post("/v1/topics/orders/messages", {"messages": [{"value": "a"}, large]})
        assert (answer.status, answer.code) == (413, "message_too_large"), how
        assert nothing_is_stored(http), how
        fits = [{"value": "a"}, large | {"value": "x" * most}]
        assert http.post("/v1/topics/orders/messages", {"messages": fits}).status == 201, how
        http.ask("DELETE", "/v1/topics/orders/messages")
        until(lambda: nothing_is_stored(http))


def test_leases_count_as_messages_do(orders: Http) -> None:
    many = [{"partition": 0, "lease": number} for number in range(100_001)]
    for path, body in (("ack", {"leases": many}), ("receive", {"ack": {"leases": many}})):
        answer = orders.post(f"/v1/topics/orders/groups/g/{path}", body)
        assert (answer.status, answer.json["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_a_receive_acks_first_what_is_done(orders: Http, fsync: str) -> None:
    assert orders.ask("PATCH", "/v1/topics/orders", {"fsync": fsync}).status == 200
    orders.post("/v1/topics/orders/messages", {"messages": [{"value": str(n)} for n in range(4)]})
    base = "/v1/topics/orders/groups/g"
    first = orders.post(f"{base}/receive", {"max_messages": 2}).json["messages"]
    done = {"receipts": [message["receipt"] for message in first]}
    answer = orders.post(f"{base}/receive", {"ack": done})
    assert [message["value"] for message in answer.json["messages"]] == ["2", "3"]
    again = orders.post(f"{base}/receive", {"ack": done})
    assert (again.status, again.json["code"]) == (409, "already_settled")
    (group,) = orders.get("/v1/topics/orders/stats").json["groups"]
    assert (group["committed"], group["in_flight"]) == ({"0": 2}, 2)
    strange = {"receipts": [first[0]["receipt"].replace("orders", "others")]}
    assert orders.post(f"{base}/receive", {"ack": strange}).status == 400


def test_messages_are_settled_by_receipt(orders: Http) -> None:
    orders.post("/v1/topics/orders/messages", {"messages": [{"value": str(n)} for n in range(4)]})
    messages = received(orders)
    base = "/v1/topics/orders/groups/g"
    acked, nacked, rejected, extended = [message["receipt"] for message in messages]
    assert orders.post(f"{base}/ack", {"receipts": [acked]}).json == {"refused": []}
    orders.post(f"{base}/nack", {"receipts": [nacked], "delay": 0, "error": "again"})
    orders.post(f"{base}/reject", {"receipts": [rejected], "reason": "no good"})
    orders.post(f"{base}/extend", {"receipts": [extended], "visibility": "1h"})
    (refused,) = orders.post(f"{base}/ack", {"receipts": [acked]}).json["refused"]
    assert (refused["code"], refused["receipt"]) == ("already_settled", acked)
    assert [message["value"] for message in received(orders)] == ["1"]
    page = orders.get("/v1/topics/orders/dead-letters").json
    (letter,) = page["letters"]
    assert (letter["message"]["value"], letter["origin"]["error"]) == ("2", "no good")
    place = f"{letter['partition']}-{letter['message']['offset']}"
    assert orders.get(f"/v1/topics/orders/dead-letters/{place}").json == letter
    assert orders.get("/v1/topics/orders/dead-letters/0-99").code == "not_found"
    choice = {"reason": "max_retries"}
    assert orders.post("/v1/topics/orders/dead-letters/redrive", choice).json == {"count": 0}
    assert orders.post("/v1/topics/orders/dead-letters/redrive").json == {"count": 1}
    assert [message["value"] for message in received(orders)] == ["2"]


def test_a_dead_letter_is_named_by_its_place_and_by_its_id(orders: Http) -> None:
    orders.post("/v1/topics/orders/messages", {"messages": [{"value": "a"}, {"value": "b"}]})
    receipts = [message["receipt"] for message in received(orders)]
    orders.post("/v1/topics/orders/groups/g/reject", {"receipts": receipts})
    letters = orders.get("/v1/topics/orders/dead-letters").json["letters"]
    redrive = "/v1/topics/orders/dead-letters/redrive"
    first, second = [
        {"partition": 0, "offset": n, "id": each["message"]["id"]} for n, each in enumerate(letters)
    ]
    other = orders.post(redrive, {"letters": [first, {**second, "id": first["id"]}]})
    assert (other.status, other.code) == (400, "invalid_input")
    assert orders.post(redrive, {"letters": [{"partition": 0, "offset": 9}]}).json == {"count": 0}
    assert orders.post(redrive, {"letters": [first]}).json == {"count": 1}
    assert orders.post(redrive, {"letters": [first, first]}).json == {"count": 0}
    unnamed = {"letters": [{"partition": 0, "offset": 1}]}
    assert orders.post(redrive, {**unnamed, "reason": "expired"}).json == {"count": 0}
    assert orders.post(redrive, unnamed).json == {"count": 1}


def test_a_page_of_long_dead_letters_is_short(orders: Http) -> None:
    for _ in range(3):
        orders.post("/v1/topics/orders/messages", {"value": "x" * (9 << 20)})
    receipts = [message["receipt"] for message in received(orders)]
    orders.post("/v1/topics/orders/groups/g/reject", {"receipts": receipts})
    places, after = [], ""
    while after is not None:
        page = orders.get(f"/v1/topics/orders/dead-letters?limit=10{after}").json
        places.append([letter["message"]["offset"] for letter in page["letters"]])
        after = None if page["next"] is None else f"&after={page['next']}"
    assert places == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"value": "x" * 1001, "partition": 1}, "message_too_large"),
        ({"value": "x" * 1001, "delay": "1s", "partition": 0}, "message_too_large"),
        ({"value": "x" * 1000, "dedup_id": "one"}, "message_too_large"),
        ({"value": "x", "delay": "91d"}, "invalid_input"),
        ({"value": "x", "partition": 2}, "partition_not_found"),
    ],
    ids=str,
)
def test_messages_for_several_places_are_refused_whole(wrong: Any, code: str, http: Http) -> None:
    http.ask("PUT", "/v1/topics/orders", {"partitions": 2, "message_bytes_max": 1000})
    body = {"messages": [{"value": "a", "partition": 0}, {"value": "b"}, wrong]}
    assert http.post("/v1/topics/orders/messages", body).code == code
    stats = http.get("/v1/topics/orders/stats").json
    assert (stats["messages"], stats["delayed"]) == (0, 0)


def test_dead_letters_are_listed_page_by_page(orders: Http) -> None:
    orders.post("/v1/topics/orders/messages", {"messages": [{"value": str(n)} for n in range(5)]})
    receipts = [message["receipt"] for message in received(orders)]
    orders.post("/v1/topics/orders/groups/g/reject", {"receipts": receipts})
    seen, after = [], ""
    for _ in range(3):
        page = orders.get(f"/v1/topics/orders/dead-letters?limit=2{after}").json
        seen += [letter["message"]["value"] for letter in page["letters"]]
        assert page["count"] == 5
        after = f"&after={page['next']}"
    assert (seen, page["next"]) == (["0", "1", "2", "3", "4"], None)
    assert orders.post("/v1/topics/orders/dead-letters/purge").json == {"count": 5}


def test_messages_are_read_by_offset_and_time(orders: Http) -> None:
    orders.post("/v1/topics/orders/messages", {"messages": [{"value": str(n)} for n in range(5)]})
    base = "/v1/topics/orders/partitions/0"
    page = orders.get(f"{base}/messages?at=3").json
    assert [message["value"] for message in page["messages"]] == ["3", "4"]
    assert (page["next_offset"], page["start"], page["end"]) == (5, 0, 5)
    assert orders.get(f"{base}/messages?at=2000-01-01T00:00:00Z").json["messages"][0]["offset"] == 0
    assert orders.get(f"{base}/messages?at=6").code == "offset_out_of_range"
    assert orders.get(f"{base}/messages?at=yesterday").code == "invalid_input"
    assert orders.get(f"{base}?at=latest").json["at"] == 5
    assert orders.get("/v1/topics/orders/partitions/9").code == "partition_not_found"
    assert orders.ask("DELETE", "/v1/topics/orders/messages").json == {"count": 5}


# Waiting.


def test_a_poll_waits_and_is_woken(orders: Http, server: RunningServer) -> None:
    def poll() -> list[dict[str, Any]]:
        with Http(server.port) as other:
            return received(other, wait="20s")

    waiting = Background(poll)
    until(lambda: len(server.door.polls) == 1)
    assert orders.get("/v1/stats").json["polls"] == 1
    orders.post("/v1/topics/orders/messages", {"value": "x"})
    assert [message["value"] for message in waiting.result()] == ["x"]
    assert len(server.door.polls) == 0
    assert received(orders, wait="10ms") == []


def test_a_message_is_not_given_to_somebody_who_hung_up(
    orders: Http, server: RunningServer
) -> None:
    gone = Http(server.port)
    waiting = Background(lambda: received(gone, wait="30s"))
    until(lambda: len(server.door.polls) == 1)
    sock = gone._connection.sock
    assert sock is not None
    sock.shutdown(2)
    until(lambda: len(server.door.polls) == 0)
    with pytest.raises((http.client.HTTPException, OSError)):
        waiting.result()
    orders.post("/v1/topics/orders/messages", {"value": "x"})
    assert received(orders)[0]["delivery_count"] == 1


def test_polls_end_when_their_topic_does(orders: Http, server: RunningServer) -> None:
    def poll() -> str:
        with Http(server.port) as other:
            return other.post("/v1/topics/orders/groups/g/receive", {"wait": 20}).code

    waiting = Background(poll)
    until(lambda: len(server.door.polls) == 1)
    orders.ask("DELETE", "/v1/topics/orders")
    assert waiting.result() == "topic_not_found"


# Stream groups.


def test_a_member_of_a_stream_group(orders: Http) -> None:
    orders.post("/v1/topics/orders/messages", {"messages": [{"value": "a"}, {"value": "b"}]})
    base = "/v1/stream-groups/audit"
    me = orders.post(f"{base}/join", {"topics": ["orders"], "member_id": "me"}).json
    assert me["assigned"] == [{"topic": "orders", "partition": 0}]
    who = {"member_id": "me", "generation": me["generation"]}
    assert orders.post(f"{base}/heartbeat", who).json["assigned"] == me["assigned"]
    place = {"topic": "orders", "partition": 0}
    fetched = orders.post("/v1/fetch", {"positions": [place | {"offset": 0}]}).json["parts"][0]
    assert [message["value"] for message in fetched["messages"]] == ["a", "b"]
    assert orders.post("/v1/fetch", {"positions": [place | {"offset": 9}]}).json["parts"][0][
        "out_of_range"
    ]
    assert orders.post(f"{base}/commit", who | {"offsets": [place | {"offset": 1}]}).status == 204
    assert orders.get(f"{base}/offsets").json == {
        "offsets": [place | {"offset": 1, "metadata": ""}]
    }
    assert orders.get(base).json["lag"] == [place | {"lag": 1}]
    assert orders.ask("DELETE", base).code == "group_not_empty"
    assert orders.post(f"{base}/leave", who).status == 204
    assert orders.post(f"{base}/heartbeat", who).code == "unknown_member"
    assert orders.post(f"{base}/reset", {"topic": "orders", "to": "latest"}).status == 204
    assert orders.get("/v1/stream-groups").json == {"groups": ["audit"]}
    assert orders.ask("DELETE", base).status == 204
    assert orders.get(base).code == "group_not_found"


def test_a_fetch_names_only_so_many_positions(orders: Http) -> None:
    place = {"topic": "orders", "partition": 0, "offset": 0}
    answer = orders.post("/v1/fetch", {"positions": [place] * 10_001})
    assert (answer.status, answer.code) == (400, "invalid_input")
    assert "length <= 10000" in answer.json["detail"]
    assert len(orders.post("/v1/fetch", {"positions": [place] * 10_000}).json["parts"]) == 10_000
    schemas = orders.get("/openapi.json").json["components"]["schemas"]
    assert schemas["Fetch"]["properties"]["positions"]["maxItems"] == 10_000


# Statistics.


def test_the_table_of_topics_is_sorted_searched_and_paged(http: Http, broker: Broker) -> None:
    for n in range(5):
        http.ask("PUT", f"/v1/topics/t{n}")
        http.post(f"/v1/topics/t{n}/messages", {"messages": [{"value": "x"}] * n})
    http.ask("PUT", "/v1/namespaces/shop/topics/other")
    table = http.get("/v1/stats/topics?sort=messages&descending=true&limit=2").json
    assert ([row["topic"] for row in table["topics"]], table["total"]) == (["t4", "t3"], 6)
    table = http.get("/v1/stats/topics?search=t&offset=4").json
    assert [row["topic"] for row in table["topics"]] == ["t3", "t4"]
    assert http.get("/v1/namespaces/shop/stats").json["topics"] == 1
    summary = http.get("/v1/stats").json
    assert (summary["topics"], summary["messages"], summary["depth"]) == (6, 10, 10)
    assert http.get("/v1/stats/topics?sort=colour").code == "invalid_input"


def test_latencies_come_in_pages_of_whole_minutes(tmp_path: Path) -> None:
    clock = ManualClock()
    name = topic_name("orders")
    with (
        Broker(
            LocalEngine(tmp_path / "data", clock=clock, files=QuickFiles()), housekeeping=False
        ) as broker,
        RunningServer(broker) as server,
        Http(server.port) as http,
    ):
        broker.create_topic(name, {})
        for _ in range(5):
            broker.publish(name, Batch.build([b"x"]))
            (got,) = broker.receive(name, "g")
            broker.ack(name, 0, "g", got.nonce, None)
            clock.advance(60)
            broker.housekeep()
        path = "/v1/topics/orders/latencies"
        whole = http.get(path).json
        assert (len(whole["rows"]), whole["next"]) == (20, None)
        pages, since = [], "0"
        while since is not None:
            page = http.get(f"{path}?limit=5&since={since}").json
            pages.append(len(page["rows"]))
            assert page["rows"] == whole["rows"][sum(pages[:-1]) : sum(pages)]
            since = page["next"]
        assert pages == [8, 8, 4]
        when = "2023-11-14T22:16:00Z"
        assert len(http.get(f"{path}?since={when}").json["rows"]) == 8
        assert http.get(f"{path}?since=yesterday").code == "invalid_input"
        assert http.get(f"{path}?limit=0").code == "invalid_input"
        assert http.get("/v1/topics/none/latencies").code == "topic_not_found"
        assert http.get("/v1/namespaces/shop/topics/orders/latencies").status == 404


def test_the_stats_of_many_topics_take_few_requests(
    ps: Any, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "_STATS_PAGE", 7)
    names = [f"t{n:02}" for n in range(20)]
    for name in names:
        ps.create_topic(name)
    assert [stats.topic for stats in ps.all_stats()] == names
    until(lambda: server.door.requests.statuses["tabulate_topics", 200] == 3)


# What is refused.


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/nothing", None, 404, "not_found"),
        ("GET", "/nothing", None, 404, "not_found"),
        ("GET", "/v1/topics/", None, 404, "not_found"),
        ("POST", "/v1/topics", {}, 405, "method_not_allowed"),
        ("POST", "/v1/topics/orders/messages", b"{", 400, "invalid_input"),
        ("POST", "/v1/topics/orders/messages", b"\xff", 400, "invalid_input"),
        ("POST", "/v1/topics/orders/messages", b"[" * 100_000, 400, "invalid_input"),
        ("POST", "/v1/topics/orders/messages", {"valeu": "x"}, 400, "invalid_input"),
        ("POST", "/v1/topics/orders/messages", {"value_base64": 5}, 400, "invalid_input"),
        ("POST", "/v1/topics/orders/messages", {"value": "\ud800"}, 400, "invalid_input"),
        ("POST", "/v1/topics/orders/messages?ttl=1", {"value": "x"}, 400, "invalid_input"),
        ("POST", "/v1/topics/No!/messages", {"value": "x"}, 400, "invalid_input"),
        ("POST", "/v1/topics/none/messages", {"value": "x"}, 404, "topic_not_found"),
        ("PUT", "/v1/topics/new", {"partitons": 5}, 400, "invalid_input"),
        ("PUT", "/v1/topics/new", {"partitions": 10**9}, 400, "invalid_input"),
        ("GET", "/v1/topics/orders/messages?limit=-1", None, 400, "invalid_input"),
        ("GET", "/v1/topics/orders?colour=red", None, 400, "invalid_input"),
        ("POST", "/v1/topics/orders/groups/a%20b/receive", {}, 400, "invalid_input"),
        ("POST", "/v1/topics/orders/groups/g/receive", {"wait": 31}, 400, "invalid_input"),
        ("POST", "/v1/topics/orders/groups/g/receive", {"wait": -1}, 400, "invalid_input"),
        ("POST", "/v1/topics/orders/groups/g/ack", {"receipts": ["x"]}, 400, "invalid_receipt"),
        ("DELETE", "/v1/topics/orders/delayed/x", None, 400, "invalid_input"),
        ("GET", "/v1/stream-groups/none", None, 404, "group_not_found"),
        ("DELETE", "/v1/keys/none", None, 404, "key_not_found"),
    ],
)
def test_what_is_wrong_is_told_by_a_problem(
    orders: Http, method: str, path: str, body: Any, status: int, code: str
) -> None:
    answer = orders.ask(method, path, body)
    assert (answer.status, answer.code) == (status, code)


def test_a_body_without_its_type_is_refused(orders: Http) -> None:
    # A web page of a stranger can make a browser send such a request, and no other.
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = orders.ask(
            "POST", "/v1/topics/orders/messages", b'{"value": "x"}', content_type=kind
        )
        assert answer.code == "unsupported_media_type"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"id": 1, "of": [None, True]}, b'{"id": 1, "of": [null, true]}'),  # as it was written
        ([], b"[]"),
        (7, b"7"),
        (1.5, b"1.5"),
        (False, b"false"),
    ],
)
def test_a_value_may_be_any_json(http: Http, ps: Any, value: Any, stored: bytes) -> None:
    http.ask("PUT", "/v1/topics/orders")
    path = "/v1/topics/orders/messages"
    assert http.post(path, {"value": value}).status == 201
    own = {"value": value, "headers": {"Content-Type": "x/y"}}
    assert http.post(path, {"messages": [own, {"value": "text"}, {"value": None}]}).status == 201
    got = [(m.value, m.headers) for m in ps.peek("orders", partition=0)]
    assert got == [
        (stored, {"content-type": b"application/json"}),
        (stored, {"Content-Type": b"x/y"}),
        (b"text", {}),
        (None, {}),
    ]
    both = http.post(path, {"value": value, "value_base64": "eA=="})
    assert both.code == "invalid_input"


def test_a_value_that_is_nested_too_deep_is_refused(http: Http) -> None:
    http.ask("PUT", "/v1/topics/orders")
    for deep in (b"[" * 100_000, b'{"a":' * 5_000, b"[" * 2_000 + b"]" * 2_000):
        answer = http.ask("POST", "/v1/topics/orders/messages", b'{"value":' + deep + b"}")
        assert answer.code == "invalid_input"


@pytest.mark.parametrize(
    "value", [b'"\xff"', b'{"a":"\xff"}', b'[1,"\xc3"]', b"[1,]", b"nul", b"01"]
)
def test_a_value_that_is_no_json_is_refused(http: Http, value: bytes) -> None:
    http.ask("PUT", "/v1/topics/orders")
    answer = http.ask("POST", "/v1/topics/orders/messages", b'{"value":' + value + b"}")
    assert answer.code == "invalid_input"


def test_a_value_with_a_million_parts_takes_no_more_memory_than_its_bytes(
    http: Http, ps: Any
) -> None:
    http.ask("PUT", "/v1/topics/orders")
    value = b"[" + b"[]," * 1_000_000 + b"[]]"
    tracemalloc.start()
    try:
        answer = http.ask("POST", "/v1/topics/orders/messages", b'{"value":[' + value + b"]}")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.status == 201
    assert peak < 40 << 20  # as objects it would be 64 MB and more
    assert ps.peek("orders", partition=0)[0].value == b"[" + value + b"]"
