"""The first call about a topic opens the logs of all its partitions, which may take seconds. It
waits for that; the event loop, and with it everybody else, does not: at any door."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.api import Api
from penstock.broker.broker import Broker
from penstock.client.client import Client
from penstock.client.local_link import LocalLink
from penstock.server.grpc.descriptors import message
from tests.integration.kafka.clients import Message, confluent_publish
from tests.integration.server import grpc_client
from tests.integration.server.asking import Http
from tests.integration.server.running import RunningServer
from tests.slow_opening import SlowEngine

QUEUE = "http://127.0.0.1/000000000000/wide"
GROUP = "/v1/topics/wide/groups/g"


def http(method: str, path: str, body: Any, **how: Any) -> Callable[[RunningServer, Any], bool]:
    def ask(server: RunningServer, receipt: str) -> bool:
        given = json.loads(json.dumps(body).replace("RECEIPT", receipt)) if body != b"x" else body
        with Http(server.port) as http:
            return http.ask(method, path, given, **how).status < 300

    return ask


def sqs(action: str, **parameters: Any) -> Callable[[RunningServer, Any], bool]:
    return http(
        "POST",
        "/",
        {"QueueUrl": QUEUE, **parameters},
        content_type="application/x-amz-json-1.0",
        x_amz_target=f"AmazonSQS.{action}",
    )


def grpc_publish(server: RunningServer, _: str) -> bool:
    client = grpc_client.Client(server.server.grpc.port)  # type: ignore[union-attr]
    return len(client.publish(b"x", topic="wide").runs) == 1


def grpc_receive(server: RunningServer, _: str) -> bool:
    client = grpc_client.Client(server.server.grpc.port)  # type: ignore[union-attr]
    return len(client.receive(topic="wide").messages) == 1


def grpc_ack(server: RunningServer, receipt: str) -> bool:
    client = grpc_client.Client(server.server.grpc.port)  # type: ignore[union-attr]
    asked = message("SettleRequest")(topic="wide", group="g", verb=1, receipts=[receipt])
    return not client("Queue.Settle", asked).refused


def kafka_produce(server: RunningServer, _: str) -> bool:
    confluent_publish(server.kafka, "wide", [Message(None, b"x")])
    return True


FETCH = {"positions": [{"topic": "wide", "partition": 0, "offset": 0}]}

CALLS: dict[str, Callable[[RunningServer, Any], bool]] = {
    "publish": http(
        "POST", "/v1/topics/wide/messages", b"x", content_type=("application/octet-stream")
    ),
    "publish JSON": http("POST", "/v1/topics/wide/messages", {"value": "x"}),
    "receive": http("POST", f"{GROUP}/receive", {}),
    "receive, the newest": http("POST", "/v1/topics/wide/groups/new/receive", {"start": "latest"}),
    "ack": http("POST", f"{GROUP}/ack", {"receipts": ["RECEIPT"]}),
    "fetch": http("POST", "/v1/fetch", FETCH),
    "fetch and wait": http("POST", "/v1/fetch", {**FETCH, "wait": "1s"}),
    "SendMessage": sqs("SendMessage", MessageBody="x"),
    "ReceiveMessage": sqs("ReceiveMessage"),
    "gRPC publish": grpc_publish,
    "gRPC receive": grpc_receive,
    "gRPC ack": grpc_ack,
    "Kafka produce": kafka_produce,
}


@pytest.fixture
def receipt(tmp_path: Path) -> str:
    """Of a message that was received when the topic was open; now it is not."""
    engine = SlowEngine(tmp_path, "none")
    with Client(LocalLink(Api(Broker(engine))), "default") as ps:
        ps.create_topic("wide", partitions=40)
        ps.publish("wide", b"1", partition=0)
        ps.publish("wide", b"2", partition=0)
        return ps.receive("wide", group="g", max_messages=1)[0].receipt


@pytest.fixture
def engine(receipt: str, tmp_path: Path) -> SlowEngine:
    return SlowEngine(tmp_path, "wide")


@pytest.fixture
def server(engine: SlowEngine) -> Iterator[RunningServer]:
    # Without housekeeping, which would open what was active before.
    with (
        Broker(engine, housekeeping=False) as broker,
        RunningServer(broker, grpc="127.0.0.1:0", kafka=True) as server,
    ):
        yield server
        engine.go_on.set()


@pytest.mark.parametrize("call", CALLS)
def test_nobody_else_waits_while_a_topic_is_opened(
    call: str, engine: SlowEngine, server: RunningServer, receipt: str
) -> None:
    with ThreadPoolExecutor(1) as beside, Http(server.port) as http:
        first = beside.submit(CALLS[call], server, receipt)
        try:
            assert engine.is_opening.wait(20)
            assert http.get("/healthz").status == 200
            assert http.ask("PUT", "/v1/topics/other", {}).status < 300
            assert http.post("/v1/topics/other/messages", {"value": "x"}).status == 201
            assert not first.done()
        finally:
            engine.go_on.set()
        assert first.result(30)
