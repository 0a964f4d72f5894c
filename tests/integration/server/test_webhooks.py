"""Messages posted to a real receiver: signed, retried, dead-lettered, and only where they may."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
from standardwebhooks import Webhook

import penstock
from penstock.broker.broker import Broker
from penstock.client.client import Client
from penstock.errors import InvalidInput, TopicNotFound, WebhookNotFound
from penstock.model.names import topic_name
from penstock.record.plain import Single
from penstock.server.webhooks import endpoint, outcomes
from tests.integration.server.receiver import Answer, Got, Receiver
from tests.integration.server.running import RunningServer

LOCAL = {"webhook_networks": "127.0.0.0/8", "webhook_http": True}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def ps(broker: Broker) -> Iterator[Client]:
    with RunningServer(broker, **LOCAL) as server, penstock.connect(server.url) as ps:
        ps.create_topic("orders", backoff=("20ms", 1, "20ms"))
        yield ps


def until(holds: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "it did not come to that"
        threading.Event().wait(0.02)
    return found


def depth(ps: Client, name: str = "orders") -> int:
    groups = {group.group: group.depth for group in ps.stats("orders").groups}
    return groups.get(f"webhook.{name}", -1)


def answering(*statuses: int) -> Callable[[Got], Answer]:
    """These, one after the other, then 204."""
    left = iter(statuses)
    return lambda _: (next(left, 204), {}, b"")


def test_a_message_is_posted_with_a_signature_that_a_receiver_accepts(
    ps: Client, receiver: Receiver
) -> None:
    made = ps.create_webhook("orders", receiver.url, headers={"x-shop": "1"})
    published = ps.publish("orders", {"what": "apples"}, headers={"type": "order.made"})
    [got] = receiver.wait(1)
    event = Webhook(made.secret).verify(got.body, got.headers)
    assert event["data"] == {"what": "apples"}
    assert event["type"] == "order.made"
    assert got.headers["webhook-id"] == published.id
    assert got.headers["x-shop"] == "1"
    assert got.headers["content-type"] == "application/json"
    until(lambda: depth(ps) == 0)
    [attempt] = ps.webhook_attempts("orders")
    assert (attempt.status, attempt.error, attempt.attempt) == (204, "", 1)


def test_failures_are_retried_under_the_same_id_and_then_dead(
    ps: Client, receiver: Receiver
) -> None:
    ps.alter_topic("orders", max_retries=2)
    receiver.answers = answering(500, 302, 400, 500, 204)
    ps.create_webhook("orders", receiver.url)
    ps.publish("orders", b"a")
    first = receiver.wait(3)
    assert len({got.headers["webhook-id"] for got in first}) == 1
    [letter] = until(lambda: list(ps.dead_letters("orders")))
    assert letter.message.value == b"a"
    assert "3 attempts, the last: the receiver answered 400" in letter.origin.error
    ps.publish("orders", b"b")
    receiver.wait(5)
    until(lambda: depth(ps) == 0)
    assert [attempt.attempt for attempt in ps.webhook_attempts("orders")] == [2, 1, 3, 2, 1]


def test_a_message_is_held_through_a_pause_of_many_hours(
    ps: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease lasts 12 hours at most, and the standard's pauses are up to a day."""
    monkeypatch.setattr(endpoint, "_HOLD_S_MAX", 0.1)
    monkeypatch.setattr(outcomes, "STANDARD_SCHEDULE_S", (0.01, 86_400.0))
    receiver.answers = answering(500, 500)
    ps.create_webhook("orders", receiver.url, retries="standard")
    ps.publish("orders", b"a")
    receiver.wait(2)

    def held() -> Any:
        return [*ps.in_flight("orders", group="webhook.orders")]

    [first] = held()
    beyond_us = first.deadline_us + 250_000  # of several extensions
    [later] = until(lambda: [each for each in held() if each.deadline_us > beyond_us])
    assert later.receipt == first.receipt
    assert len(receiver.got) == 2


def test_what_waits_for_a_retry_takes_little_memory(ps: Client, receiver: Receiver) -> None:
    """Large messages that failed are given back to the broker, which has them on the disk."""
    count, size = 40, 1 << 20
    ps.alter_topic("orders", backoff=("1h", 1, "1h"))
    for _ in range(count):
        ps.publish("orders", b"x" * size)
    receiver.answers = answering(*[503] * count * 2)
    ps.create_webhook("orders", receiver.url, concurrency=count)
    receiver.wait(count)

    def states() -> list[str]:
        return [each.state for each in ps.in_flight("orders", "webhook.orders")]

    until(lambda: states().count("retrying") >= count - 16)  # 16 MiB may wait
    assert states().count("leased") >= 15


def test_a_receiver_that_is_gone_disables_its_webhook(ps: Client, receiver: Receiver) -> None:
    receiver.answers = lambda _: (410, {}, b"bye")
    ps.create_webhook("orders", receiver.url)
    ps.publish("orders", b"a")
    until(lambda: ps.webhook("orders").disabled)
    assert "gone" in ps.webhook("orders").disabled
    receiver.answers = answering()
    assert ps.resume_webhook("orders").disabled == ""
    receiver.wait(2)
    until(lambda: depth(ps) == 0)


def test_a_receiver_can_abort_a_message(ps: Client, receiver: Receiver) -> None:
    receiver.answers = lambda _: (400, {"webhook-delivery": "abort-message"}, b"")
    ps.create_webhook("orders", receiver.url)
    ps.publish("orders", b"a")
    until(lambda: ps.dead_letters("orders").count() == 1)
    assert len(receiver.got) == 1


def test_only_what_the_filter_fits_is_posted(ps: Client, receiver: Receiver) -> None:
    ps.create_webhook(
        "orders", receiver.url, types=["made"], key_prefix="c-", only_headers={"eu": "1"}
    )
    good = {"type": "made", "eu": "1"}
    ps.publish("orders", b"no type", key="c-1", headers={"eu": "1"})
    ps.publish("orders", b"no key", headers=good)
    ps.publish("orders", b"other", key="c-1", headers={"type": "made", "eu": "0"})
    ps.publish("orders", b"yes", key="c-1", headers=good)
    [got] = receiver.wait(1)
    assert json.loads(got.body)["data"] == "yes"
    until(lambda: depth(ps) == 0)
    assert len(receiver.got) == 1


def test_several_messages_go_in_one_request_and_raw_values_as_they_are(
    ps: Client, receiver: Receiver
) -> None:
    ps.publish_batch("orders", [b"1", b"two", b"\xff"])
    ps.create_webhook("orders", receiver.url, batch=10)
    [got] = receiver.wait(1)
    assert [event["data"] for event in json.loads(got.body)] == [1, "two", {"base64": "/w=="}]
    ps.delete_webhook("orders")
    ps.create_webhook("orders", receiver.url, name="raw", payload="raw")
    assert {got.body for got in receiver.wait(4)[1:]} == {b"1", b"two", b"\xff"}


def test_a_rotated_secret_signs_beside_the_old_one(ps: Client, receiver: Receiver) -> None:
    old = ps.create_webhook("orders", receiver.url).secret
    new = ps.rotate_webhook("orders").secret
    ps.publish("orders", b"a")
    [got] = receiver.wait(1)
    for secret in (old, new):
        Webhook(secret).verify(got.body, got.headers)
    assert ps.create_webhook("orders", receiver.url).secret == ""  # it is shown once


def test_a_paused_webhook_posts_nothing_until_it_is_resumed(ps: Client, receiver: Receiver) -> None:
    ps.create_webhook("orders", receiver.url, paused=True)
    ps.publish("orders", b"a")
    ps.test_webhook("orders")
    [test] = receiver.wait(1)
    assert json.loads(test.body)["type"] == "penstock.test"
    [attempt] = until(lambda: ps.webhook_attempts("orders"))
    assert attempt.test
    ps.resume_webhook("orders")
    assert json.loads(receiver.wait(2)[1].body)["data"] == "a"


def test_a_dead_receiver_does_not_delay_others(ps: Client, receiver: Receiver) -> None:
    release = threading.Event()

    def answer(got: Got) -> Answer:
        if got.path == "/slow":
            release.wait(20)
        return 204, {}, b""

    receiver.answers = answer
    ps.create_webhook("orders", receiver.url.replace("/hook", "/slow"), name="slow")
    ps.create_webhook("orders", receiver.url, name="quick")
    ps.publish_batch("orders", [str(n).encode() for n in range(30)])
    try:
        until(lambda: depth(ps, "quick") == 0)
        assert depth(ps, "slow") == 30
    finally:
        release.set()


def test_webhooks_outlive_the_server(broker: Broker, receiver: Receiver) -> None:
    with RunningServer(broker, **LOCAL) as server, penstock.connect(server.url) as ps:
        ps.create_topic("orders")
        ps.create_webhook("orders", receiver.url)
        ps.publish("orders", b"a")
        receiver.wait(1)
        until(lambda: depth(ps) == 0)
    broker.publish(topic_name("orders"), Single(b"b"))
    with RunningServer(broker, **LOCAL):
        assert json.loads(receiver.wait(2)[1].body)["data"] == "b"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://example.com", {}),
        ("example.com/hook", {}),
        ("https://user:pw@example.com/", {}),
        ("https://example.com:99999/", {}),
        ("https://example.com/", {"headers": {"Host": "evil"}}),
        ("https://example.com/", {"headers": {"x": "a\r\nb"}}),
        ("https://example.com/", {"headers": {"webhook-id": "1"}}),
        ("https://example.com/", {"concurrency": 0}),
        ("https://example.com/", {"timeout": "2h"}),
        ("https://example.com/", {"secret": "whsec_short"}),
        ("https://example.com/", {"payload": "raw", "batch": 5}),
        ("https://example.com/", {"name": "no spaces"}),
        ("https://example.com/", {"colour": "red"}),
    ],
)
def test_what_can_never_work_is_refused(ps: Client, url: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ps.create_webhook("orders", url, **options)
    assert ps.webhooks() == []


def test_what_is_not_there_is_told(ps: Client) -> None:
    with pytest.raises(WebhookNotFound):
        ps.webhook("nothing")
    with pytest.raises(TopicNotFound):
        ps.create_webhook("nothing", "https://example.com/")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "[fe80::1]",
        "[fd00::1]",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
    ],
)
def test_nothing_is_posted_to_an_address_that_is_not_public(
    broker: Broker, receiver: Receiver, host: str
) -> None:
    port = receiver.url.split(":")[2].split("/")[0]
    server = RunningServer(broker, webhook_http=True)
    with server, penstock.connect(server.url) as ps:
        ps.create_topic("orders", exist_ok=True)
        ps.create_webhook("orders", f"http://{host}:{port}/hook", timeout="5s")
        ps.test_webhook("orders")
        [attempt] = until(lambda: ps.webhook_attempts("orders"))
        assert attempt.error
        assert attempt.status is None
    assert receiver.got == []


def test_a_server_posts_nothing_to_itself(broker: Broker) -> None:
    """Also where loopback is allowed, and whatever port it was given."""
    server = RunningServer(broker, grpc="127.0.0.1:0", **LOCAL)
    with server, penstock.connect(server.url) as ps:
        ps.create_topic("orders")
        for name, port in (("http", server.port), ("grpc", server.server.grpc.port)):  # type: ignore[union-attr]
            ps.create_webhook("orders", f"http://127.0.0.1:{port}/v1/topics", name=name)
            ps.test_webhook(name)
            [attempt] = until(lambda name=name: ps.webhook_attempts(name))  # type: ignore[misc]
            assert "this server itself" in attempt.error
            assert attempt.status is None


def test_a_redirect_is_not_followed(ps: Client, receiver: Receiver) -> None:
    with Receiver() as inner:
        for status in (300, 301, 302, 303, 307, 308):
            receiver.answers = lambda _, status=status: (status, {"location": inner.url}, b"")
            ps.create_webhook("orders", receiver.url, name=f"to{status}")
            ps.test_webhook(f"to{status}")
            [attempt] = until(lambda name=f"to{status}": ps.webhook_attempts(name))  # type: ignore[misc]
            assert attempt.status == status
            assert "not followed" in attempt.error
        assert inner.got == []


def test_a_name_that_leads_elsewhere_the_next_time_gains_nothing(
    broker: Broker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is checked is the address that is connected to, whatever a resolver said before."""
    port = int(receiver.url.split(":")[2].split("/")[0])
    asked: list[str] = []

    async def resolve(_: Any, host: str, *args: Any, **more: Any) -> list[Any]:
        asked.append(host)
        return [
            {
                "hostname": host,
                "host": "127.0.0.1" if len(asked) > 1 else "192.0.2.1",
                "port": port,
                "family": socket.AF_INET,
                "proto": 0,
                "flags": 0,
            }
        ]

    monkeypatch.setattr(aiohttp.ThreadedResolver, "resolve", resolve)
    monkeypatch.setattr(aiohttp.resolver, "DefaultResolver", aiohttp.ThreadedResolver)
    monkeypatch.setattr(aiohttp.connector, "DefaultResolver", aiohttp.ThreadedResolver)
    server = RunningServer(broker, webhook_http=True)
    with server, penstock.connect(server.url) as ps:
        ps.create_topic("orders")
        for number in range(2):
            ps.create_webhook("orders", f"http://shop{number}.example:{port}/", name=f"n{number}")
            ps.test_webhook(f"n{number}")
            [attempt] = until(lambda name=f"n{number}": ps.webhook_attempts(name))  # type: ignore[misc]
            assert "not a public address" in attempt.error
    assert asked == ["shop0.example", "shop1.example"]
    assert receiver.got == []


def test_plain_http_is_refused_unless_it_is_allowed(broker: Broker, receiver: Receiver) -> None:
    server = RunningServer(broker, webhook_networks="127.0.0.0/8")
    with server, penstock.connect(server.url) as ps:
        ps.create_topic("orders")
        ps.create_webhook("orders", receiver.url)
        ps.test_webhook("orders")
        [attempt] = until(lambda: ps.webhook_attempts("orders"))
        assert "https" in attempt.error
    assert receiver.got == []
