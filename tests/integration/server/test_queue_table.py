"""The cards and the table of a dashboard."""

from __future__ import annotations

from penstock.client.client import Client
from tests.integration.server.asking import Http


def test_queues_are_listed_by_page_without_their_dead_letters(http: Http, ps: Client) -> None:
    for number in range(5):
        ps.create_topic(f"t{number}")
    ps.in_namespace("team-a").create_topic("a")
    ps.publish_batch("t0", ["1", "2"])
    ps.publish("t1", "later", delay="1h")
    for message in ps.receive("t0", group="g", max_messages=1):
        message.reject("no")

    summary = http.get("/api/stats/summary").json
    assert summary == {
        "total_queues": 6,
        "namespaces": 2,
        "total_depth": 1,
        "total_scheduled": 1,
        "dlq_alerts": 1,
    }
    first = http.get("/api/stats?page=1&limit=4").json
    assert (first["total"], first["total_pages"], first["limit"]) == (6, 2, 4)
    assert [row["queue"] for row in first["queues"]] == ["t0", "t1", "t2", "t3"]
    assert (first["queues"][0]["depth"], first["queues"][0]["dead"]) == (1, 1)
    assert first["queues"][1]["scheduled"] == 1
    second = http.get("/api/stats?page=2&limit=4").json
    assert [(row["namespace"], row["queue"]) for row in second["queues"]] == [
        ("default", "t4"),
        ("team-a", "a"),
    ]
    assert http.get("/api/stats?page=3&limit=4").json["queues"] == []


def test_all_topics_by_priority(http: Http, ps: Client) -> None:
    ps.create_topic("a", partitions=2)
    ps.in_namespace("team-a").create_topic("b")
    ps.publish("a", "now", priority="critical", partition=1)
    (message,) = ps.receive("a", group="g")
    found = http.get("/priority/stats").json
    assert [each["topic"] for each in found["topics"]] == ["a", "team-a/b"]
    assert found["total"] == 2
    of_one = found["topics"][0]["partitions"][1]["lanes"]["critical"]
    assert of_one.keys() == {
        "ready",
        "in_flight",
        "enqueue_rate",
        "dequeue_rate",
        "last_served_us",
    }
    assert of_one["in_flight"] == 1
    assert of_one["last_served_us"] >= message.timestamp_us
    assert found["topics"][0] == http.get("/v1/topics/a/priority/stats").json
    page = http.get("/priority/stats?offset=1&limit=1").json
    assert [each["topic"] for each in page["topics"]] == ["team-a/b"]
    own = http.get("/v1/namespaces/team-a/priority/stats").json
    assert [each["topic"] for each in own["topics"]] == ["team-a/b"]
    assert http.get("/priority/stats?limit=10001").status == 400


def test_what_became_of_delayed_messages_of_all_topics(http: Http, ps: Client) -> None:
    ps.create_topic("a")
    shop = ps.in_namespace("shop")
    shop.create_topic("b")
    ps.publish("a", "later", delay="1h")
    shop.cancel("b", shop.publish("b", "never", delay="1h").id)
    found = http.get("/delay/stats").json
    assert (found["pending"], found["cancelled"]) == (1, 1)
    assert (found["delivered"], found["expired"]) == (0, 0)


def test_a_wrong_page_is_told(http: Http) -> None:
    for query in ("page=0", "limit=0", "limit=201", "page=x", "colour=red"):
        assert http.get(f"/api/stats?{query}").status == 400
