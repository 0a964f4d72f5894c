"""Messages pushed over a WebSocket: within credit, settled in band, on real connections."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.server import ServerProtocol
from websockets.sync.client import ClientConnection, connect

import penstock
from penstock.broker.broker import Broker
from penstock.client.client import Client
from penstock.errors import Forbidden
from penstock.server.keys import KeyStore
from penstock.server.push.pacing import PIECE_BYTES
from penstock.wire.columns import decode_delivered
from penstock.wire.push import ARROW_SUBPROTOCOL, JSON_SUBPROTOCOL, decode_frame
from tests.integration.server.running import RunningServer

SECONDS = 20


class Talk:
    """A connection, and what was said on it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self._refs = 0
        self._unread: list[dict[str, Any]] = []

    def say(self, kind: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": kind, **fields}))

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The answer, whatever comes before it."""
        self._refs += 1
        self.say(kind, ref=self._refs, **fields)
        return self.hear(lambda said: said.get("ref") == self._refs)

    def hear(self, wanted: str | Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        fits = (lambda said: said["type"] == wanted) if isinstance(wanted, str) else wanted
        for said in self._unread:
            if fits(said):
                self._unread.remove(said)
                return said
        while True:
            said = json.loads(self.connection.recv(timeout=SECONDS))
            if fits(said):
                return said
            self._unread.append(said)

    def subscribe(self, **fields: Any) -> dict[str, Any]:
        return self.ask("subscribe", **{"id": "s", "topic": "orders", "group": "g", **fields})

    def values(self) -> list[str]:
        return [message["value"] for message in self.hear("deliver")["messages"]]

    def is_quiet(self, seconds: float = 0.2) -> bool:
        try:
            said = json.loads(self.connection.recv(timeout=seconds))
        except TimeoutError:
            return True
        pytest.fail(f"this was not to be said: {said}")


@contextmanager
def talking(server: RunningServer, **options: Any) -> Iterator[Talk]:
    url = server.url.replace("http", "ws", 1) + "/v1/ws"
    options.setdefault("subprotocols", [JSON_SUBPROTOCOL])
    with connect(url, close_timeout=1, **options) as connection:
        yield Talk(connection)


@pytest.fixture
def talk(server: RunningServer, ps: Client) -> Iterator[Talk]:
    ps.create_topic("orders")
    with talking(server) as talk:
        assert talk.hear("hello")["frame_bytes_max"] == 1 << 20
        yield talk


def test_messages_are_pushed_within_credit_and_settled_in_band(talk: Talk, ps: Client) -> None:
    for number in range(5):
        ps.publish("orders", str(number))
    assert talk.subscribe()["type"] == "ok"
    assert talk.is_quiet()
    talk.say("credit", id="s", add=3)
    first = talk.hear("deliver")
    assert first["seq"] == 1
    assert [message["value"] for message in first["messages"]] == ["0", "1", "2"]
    assert talk.is_quiet()
    receipts = [message["receipt"] for message in first["messages"]]
    assert talk.ask("ack", id="s", receipts=receipts) == {"type": "ok", "ref": 2}
    assert group(ps).in_flight == 0
    talk.say("credit", id="s", add=10)
    assert talk.values() == ["3", "4"]
    ps.publish("orders", "5")  # what comes later is pushed as it comes
    assert talk.values() == ["5"]


def test_credit_in_bytes_is_spent_as_well(talk: Talk, ps: Client) -> None:
    ps.publish_batch("orders", [b"x" * 1000] * 4)
    talk.subscribe(credit=100, credit_bytes=1500, max_batch=1)
    assert len(talk.values()) == 1
    assert len(talk.values()) == 1  # it may be overdrawn once
    assert talk.is_quiet()
    talk.say("credit", id="s", add_bytes=1000)
    assert len(talk.values()) == 1


def test_nack_reject_and_extend_work_and_what_is_refused_is_named(talk: Talk, ps: Client) -> None:
    ps.publish_batch("orders", ["a", "b", "c"])
    talk.subscribe(credit=3)
    a, b, c = (message["receipt"] for message in talk.hear("deliver")["messages"])
    assert talk.ask("nack", id="s", receipts=[a], delay=0, error="again")["type"] == "ok"
    assert talk.ask("reject", id="s", receipts=[b], reason="no")["type"] == "ok"
    assert talk.ask("extend", id="s", receipts=[c], visibility="1h")["type"] == "ok"
    refused = talk.ask("ack", id="s", receipts=[b, c])["refused"]
    assert [(each["code"], each["receipt"]) for each in refused] == [("already_settled", b)]
    assert ps.dead_letters("orders").count() == 1
    talk.say("credit", id="s", add=1)
    [again] = talk.hear("deliver")["messages"]
    assert (again["value"], again["delivery_count"]) == ("a", 2)


def test_what_was_not_settled_can_be_settled_over_the_next_connection(
    server: RunningServer, ps: Client
) -> None:
    ps.create_topic("orders")
    ps.publish("orders", "1")
    with talking(server) as first:
        first.subscribe(credit=1)
        [message] = first.hear("deliver")["messages"]
    with talking(server) as second:
        second.subscribe()
        assert second.ask("ack", id="s", receipts=[message["receipt"]])["type"] == "ok"
    assert group(ps).depth == 0


def test_messages_are_published_over_the_socket(talk: Talk, ps: Client) -> None:
    ok = talk.ask("publish", topic="orders", messages=[{"value": {"n": 1}, "key": "k"}])
    assert ok["published"][0]["offset"] == 0
    [message] = ps.receive("orders", group="g")
    assert message.json() == {"n": 1}
    problem = talk.ask("publish", topic="gone", messages=[{"value": "x"}])["problem"]
    assert (problem["code"], problem["status"]) == ("topic_not_found", 404)


def test_a_log_is_peeked_at_as_it_grows(talk: Talk, ps: Client) -> None:
    ps.publish_batch("orders", ["0", "1", "2"])
    talk.subscribe(mode="peek", group=None, position="earliest", credit=2)
    got = talk.hear("deliver")
    assert [message["value"] for message in got["messages"]] == ["0", "1"]
    assert (got["partition"], got["next_offset"]) == (0, 2)
    talk.say("credit", id="s", add=10)
    assert talk.values() == ["2"]
    ps.publish("orders", "3")
    assert talk.values() == ["3"]
    assert group(ps) is None


def test_a_stream_is_a_member_of_its_group_and_commits(server: RunningServer, ps: Client) -> None:
    ps.create_topic("orders", partitions=2)
    for partition in (0, 1):
        ps.publish("orders", f"p{partition}", partition=partition)
    with talking(server) as talk:
        talk.subscribe(mode="stream", credit=10, position="earliest")
        assigned = talk.hear("assigned")["partitions"]
        assert [each["partition"] for each in assigned] == [0, 1]
        got = [talk.hear("deliver") for _ in range(2)]
        offsets = [
            {"topic": g["topic"], "partition": g["partition"], "offset": g["next_offset"]}
            for g in got
        ]
        assert talk.ask("commit", id="s", offsets=offsets)["type"] == "ok"
        assert len(ps.describe_stream_group("g").members) == 1
    ps.publish("orders", "later", partition=1)
    with talking(server) as talk:
        talk.subscribe(mode="stream", credit=10, position="earliest")
        assert talk.values() == ["later"]


def test_how_things_stand_is_watched(talk: Talk, ps: Client) -> None:
    talk.subscribe(mode="watch", topic=None, group=None)
    first = talk.hear("watched")
    assert [row["topic"] for row in first["topics"]] == ["orders"]
    ps.publish("orders", "1")
    changed = talk.hear(lambda said: said["type"] == "watched" and bool(said["topics"]))
    assert changed["topics"][0]["messages"] == 1
    assert changed["summary"]["messages"] == 1


def test_arrow_comes_in_binary_frames(server: RunningServer, ps: Client) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", ["a", "b"])
    with talking(server, subprotocols=[ARROW_SUBPROTOCOL]) as talk:
        talk.hear("hello")
        talk.say("subscribe", id="s", topic="orders", group="g", credit=10)
        frame = talk.connection.recv(timeout=SECONDS)
        assert isinstance(frame, bytes)
        head, body = decode_frame(frame)
        assert (head.type, head.id, head.seq) == ("deliver", "s", 1)
        [delivered] = decode_delivered(body)
        assert [m.value for batch, _ in delivered.pieces for m in batch.messages()] == [b"a", b"b"]
        lease = {"partition": delivered.partition, "lease": delivered.nonce}
        assert talk.ask("ack", id="s", leases=[lease])["type"] == "ok"


def test_subscriptions_end_by_themselves_and_by_being_told(talk: Talk, ps: Client) -> None:
    ps.create_topic("gone")
    talk.subscribe(id="g", topic="gone", credit=1)
    assert talk.ask("unsubscribe", id="g")["type"] == "ok"
    assert talk.ask("credit", id="g", add=1)["problem"]["code"] == "not_found"
    assert talk.subscribe(id="x", topic="nowhere")["problem"]["code"] == "topic_not_found"
    assert talk.subscribe(id="x", group=None)["problem"]["code"] == "invalid_input"
    assert talk.subscribe(id="y")["type"] == "ok"
    assert talk.subscribe(id="y")["problem"]["code"] == "invalid_input"
    talk.subscribe(id="d", topic="gone", credit=1)
    ps.delete_topic("gone")
    ended = talk.hear(lambda said: said.get("id") == "d")
    assert ended["problem"]["code"] == "topic_not_found"


@pytest.mark.parametrize(
    "said",
    ["", "[]", "{", '{"type":"x"}', '{"type":"credit"}', '{"type":"ping","more":1}', b"\xff"],
)
def test_what_is_not_understood_ends_the_connection(talk: Talk, said: str | bytes) -> None:
    talk.connection.send(said)
    assert closed(talk) == 4400


def test_a_frame_that_is_too_long_ends_the_connection(talk: Talk) -> None:
    talk.connection.send("x" * ((1 << 20) + 1))
    assert closed(talk) == 1009


@pytest.mark.parametrize("frame", [b"\x89\x80\0\0\0\0", b"\x8a\x80\0\0\0\0", b"\0\x80\0\0\0\0"])
def test_thousands_of_short_frames_leave_time_for_others(
    server: RunningServer, ps: Client, frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pings, pongs, and a message in pieces that are empty."""
    parsed = at_once = before = 0
    counted = threading.Event()

    def receive_data(protocol: ServerProtocol, data: bytes) -> None:
        nonlocal parsed
        parsed += len(data)
        receive(protocol, data)

    def tick() -> None:
        nonlocal at_once, before
        at_once, before = max(at_once, parsed - before), parsed
        counted.set() if parsed >= len(flood) else server.call_soon(tick)

    receive = ServerProtocol.receive_data
    flood = b"\1\x81\0\0\0\0x" * (frame[0] == 0) + frame * 20_000
    with talking(server) as talk:
        talk.hear("hello")
        monkeypatch.setattr(ServerProtocol, "receive_data", receive_data)
        server.call_soon(tick)
        talk.connection.socket.sendall(flood)
        assert counted.wait(SECONDS)
    assert at_once <= 2 * PIECE_BYTES


def test_messages_sent_ahead_are_all_answered_in_their_order(talk: Talk) -> None:
    for ref in range(5000):
        talk.say("ping", ref=ref)
    assert [talk.hear("ok")["ref"] for _ in range(5000)] == list(range(5000))


def test_a_long_message_comes_whole(talk: Talk, ps: Client) -> None:
    value = "x" * ((1 << 20) - 200)
    assert talk.ask("publish", topic="orders", messages=[{"value": value}])["type"] == "ok"
    assert ps.peek("orders")[0].text() == value


def closed(talk: Talk) -> int | None:
    """The code with which the server ends the connection."""
    with pytest.raises(ConnectionClosed) as caught:
        talk.hear(lambda said: False)
    return caught.value.rcvd.code if caught.value.rcvd else None


def group(ps: Client) -> Any:
    """How the group stands; None before it has received anything."""
    return next(iter(ps.stats("orders").groups), None)


class TestKeys:
    @pytest.fixture
    def keys(self, broker: Broker) -> KeyStore:
        return KeyStore.open(broker.folder)

    def test_a_key_comes_in_the_header_or_in_the_first_message(
        self, broker: Broker, keys: KeyStore
    ) -> None:
        token = keys.create("shop", "producer").token
        with RunningServer(broker, keys) as server:
            header = {"Authorization": f"Bearer {token}"}
            with talking(server, additional_headers=header) as talk:
                talk.hear("hello")
                problem = talk.subscribe()["problem"]
                assert problem["code"] == "forbidden"
            with talking(server) as talk:
                talk.say("auth", key=token)
                talk.hear("hello")
                assert talk.ask("ping")["type"] == "ok"
            for first in ({"type": "ping"}, {"type": "auth", "key": "psk_wrong"}):
                with talking(server) as talk:
                    talk.connection.send(json.dumps(first))
                    assert closed(talk) == 4401
            with talking(server, additional_headers={"Authorization": "Bearer no"}) as talk:
                assert closed(talk) == 4401

    def test_a_revoked_key_ends_its_connections(self, broker: Broker, keys: KeyStore) -> None:
        made = keys.create("shop", "consumer")
        with RunningServer(broker, keys) as server:
            header = {"Authorization": f"Bearer {made.token}"}
            with talking(server, additional_headers=header) as talk:
                talk.hear("hello")
                keys.revoke(made.key.id)
                assert closed(talk) == 4401

    def test_a_page_of_another_site_is_not_let_in(self, server: RunningServer) -> None:
        with talking(server, origin="https://evil.example") as talk:
            assert closed(talk) == 4400


def test_a_server_that_stops_says_so(broker: Broker) -> None:
    broker_server = RunningServer(broker)
    with broker_server as server, talking(server) as talk:
        talk.hear("hello")
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        talk.hear("draining")
        assert closed(talk) == 1012
        stopping.join()


def test_nothing_is_leased_for_who_does_not_read(server: RunningServer, ps: Client) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x" * 100_000] * 300)
    with talking(server, max_queue=1) as talk:
        talk.hear("hello")
        narrow = talk.connection.socket
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        talk.say("subscribe", id="s", topic="orders", group="g", credit=1000, max_batch=1)
        before = -1
        for _ in range(100):
            now = group(ps).in_flight if group(ps) else 0
            if now and now == before:
                break
            before = now
            threading.Event().wait(0.2)
        assert 0 < before < 300


def test_a_listener_goes_on_when_its_server_was_restarted(broker: Broker) -> None:
    with RunningServer(broker) as first:
        ps = penstock.connect(first.url)
        ps.create_topic("orders")
        ps.publish("orders", "before")
        listener = ps.listen("orders", group="g")
        held = next(listener)
    with RunningServer(broker, port=first.port), ps:
        held.ack()  # over whichever way there is
        ps.publish("orders", "after")
        assert next(listener).text() == "after"
        assert group(ps).in_flight == 1


def test_a_listener_without_the_right_is_told(broker: Broker) -> None:
    keys = KeyStore.open(broker.folder)
    token = keys.create("shop", "producer").token
    with (
        RunningServer(broker, keys) as server,
        penstock.connect(server.url, api_key=token) as ps,
        pytest.raises(Forbidden),
    ):
        next(ps.listen("orders", group="g"))


def test_other_paths_have_no_websocket(server: RunningServer) -> None:
    with pytest.raises((InvalidStatus, ConnectionClosed)):
        connect(server.url.replace("http", "ws", 1) + "/v1/topics")
