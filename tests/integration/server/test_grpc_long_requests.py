"""Long requests over gRPC: worked on beside the event loop, and within limits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from penstock.broker.broker import Broker
from penstock.server.grpc import calls, requests
from penstock.server.grpc.descriptors import message
from penstock.server.grpc.requests import has_more_fields
from tests.integration.server.grpc_client import Client, code_of, publish_of
from tests.integration.server.running import RunningServer

MESSAGES_MAX = 100
PUBLISH = message("PublishRequest").DESCRIPTOR


@pytest.fixture
def server(broker: Broker) -> Iterator[RunningServer]:
    with RunningServer(broker, grpc="127.0.0.1:0", batch_messages_max=MESSAGES_MAX) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    client = Client(server.server.grpc.port)  # type: ignore[union-attr]
    client.ask("create_topic", topic="orders")
    yield client
    client.channel.close()


def field(number: int, inside: bytes, *, tag_bytes: int = 1) -> bytes:
    """A field as it goes over the wire; its tag may be longer than it has to be."""
    tag = number << 3 | 2
    tags = bytes([tag]) if tag_bytes == 1 else bytes([tag | 0x80, 0])
    length, count = b"", len(inside)
    while count > 0x7F:
        length, count = length + bytes([count & 0x7F | 0x80]), count >> 7
    return tags + length + bytes([count]) + inside


def publish_alone(client: Client, data: bytes) -> Any:
    call = client.channel.unary_unary("/penstock.v1.Messages/Publish")
    return call(data, timeout=20)


@pytest.mark.parametrize("tag_bytes", [1, 2])
def test_a_request_that_would_fill_the_memory_is_refused(client: Client, tag_bytes: int) -> None:
    headers = field(3, b"", tag_bytes=tag_bytes) * 600_000
    request = field(2, b"orders") + field(3, field(1, headers))
    assert code_of(lambda: publish_alone(client, request)) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "request_too_large",
    )
    messages = field(1, b"", tag_bytes=tag_bytes) * 600_000
    request = field(2, b"orders") + field(3, messages)
    with pytest.raises(grpc.RpcError, match="more than 1600 fields in one request"):
        publish_alone(client, request)
    assert client.publish(b"x").runs[0].offset == 0


def test_what_is_long_is_worked_on_beside_the_event_loop(
    client: Client, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            threads.append(threading.current_thread().name.partition("_")[0])
            return work(*args)

        return run

    monkeypatch.setattr(requests, "_decode", noted(requests._decode))
    monkeypatch.setattr(calls, "plain_batch", noted(calls.plain_batch))
    client.publish(b"x")
    assert "penstock-aside" not in threads
    threads.clear()
    client.publish(b"x" * (1 << 20))
    (several,) = client("Messages.PublishStream", iter([publish_of(b"x" * (1 << 20))]))
    assert several.runs[0].offset == 2
    assert threads == ["penstock-aside"] * 4


def test_requests_count_in_the_budget_of_all(server: RunningServer, client: Client) -> None:
    buffers = server.door.gate.buffers
    buffers.add(buffers.bytes_max - 1000)
    try:
        refused = code_of(lambda: client.publish(b"x" * 2000))
        assert refused == (grpc.StatusCode.UNAVAILABLE, "unavailable")
        with pytest.raises(grpc.RpcError, match="are under way"):
            list(client("Messages.PublishStream", iter([publish_of(b"x" * 2000)])))
    finally:
        buffers.give_back(buffers.bytes_max - 1000)
    client.publish(b"x" * 2000)
    list(client("Messages.PublishStream", iter([publish_of(b"x" * 2000)])))
    assert buffers.taken == 0


def test_what_is_no_request_is_told_so(client: Client) -> None:
    for data in (b"\xff" * 20, field(3, b"\xff" * (2 << 20)), b"\x1a" + b"\xff" * (2 << 20)):
        with pytest.raises(grpc.RpcError) as caught:
            publish_alone(client, data)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_fields_are_counted_where_there_are_lists() -> None:
    request = publish_of(*[b"\n\x1a" * 50] * 10, topic="orders")
    request.list.messages[3].headers.add(name="h", value=b"v")
    data = request.SerializeToString()
    fields = 2 + 10 + 10 + 1  # topic and list, the messages, their values, a header
    assert not has_more_fields(PUBLISH, data, fields)
    assert has_more_fields(PUBLISH, data, fields - 1)
    settle = message("SettleRequest")(topic="orders", group="g")
    settle.leases.add(offsets=range(50))
    data = settle.SerializeToString()
    assert has_more_fields(settle.DESCRIPTOR, data, 50)
    assert not has_more_fields(settle.DESCRIPTOR, data, 60)
