"""How many functions of ours one request passes, from the application to the answer: each of them
costs every request.

The counts may fall; a change that adds a call has to be worth it. `python -m
tests.unit.server.test_request_path` prints all paths.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.server.application import Application, open_application
from penstock.server.metrics import MeteredFiles
from tests.path_length import differs, show, still_broker, usual_path

_WARM_UP = 20
_TOPIC = "/v1/topics/orders"
_QUEUE = "http://127.0.0.1/000000000000/jobs"
_JSON, _RAW, _AMZ = "application/json", "application/octet-stream", "application/x-amz-json-1.0"


class StillLoop(asyncio.SelectorEventLoop):
    """No timer of it is ever due."""

    def time(self) -> float:
        return 0.0


class Asked:
    """An application in this process, and requests to it without a connection."""

    def __init__(self, folder: str) -> None:
        self._open = ExitStack()
        broker = self._open.enter_context(still_broker(folder, MeteredFiles()))
        self.app: Application = open_application(broker)
        self.loop = StillLoop()
        self.ask("PUT", _TOPIC, b"{}", _JSON)
        self.sqs("CreateQueue", {"QueueName": "jobs"})

    def close(self) -> None:
        self.app.close()
        self._open.close()
        self.loop.close()

    def ask(self, method: str, path: str, body: bytes, kind: str, action: str = "") -> Any:
        headers = [(b"host", b"127.0.0.1"), (b"content-type", kind.encode())]
        if action:
            headers.append((b"x-amz-target", f"AmazonSQS.{action}".encode()))
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": headers,
        }
        answer: list[dict[str, Any]] = []

        bodies = [body]

        async def receive() -> dict[str, Any]:
            if not bodies:  # nobody hangs up
                await asyncio.Event().wait()
            return {"type": "http.request", "body": bodies.pop()}

        async def send(message: dict[str, Any]) -> None:
            answer.append(message)

        self.loop.run_until_complete(self.app(scope, receive, send))  # type: ignore[arg-type]
        assert answer[0]["status"] < 300, answer
        return json.loads(answer[1]["body"] or b"null")

    def http(self, path: str, body: dict[str, Any]) -> Any:
        return self.ask("POST", _TOPIC + path, json.dumps(body).encode(), _JSON)

    def sqs(self, action: str, parameters: dict[str, Any]) -> Any:
        return self.ask("POST", "/", json.dumps(parameters).encode(), _AMZ, action)

    # What is asked often.

    def publish(self) -> Any:
        return self.ask("POST", _TOPIC + "/messages", b"paid", _RAW)

    def publish_json(self) -> Any:
        return self.http("/messages", {"value": "paid"})

    def receive(self) -> Any:
        return self.http("/groups/billing/receive", {"max_messages": 1})

    def ack(self) -> Callable[[], Any]:
        (message,) = self.receive()["messages"]
        return lambda: self.http("/groups/billing/ack", {"receipts": [message["receipt"]]})

    def send(self) -> Any:
        return self.sqs("SendMessage", {"QueueUrl": _QUEUE, "MessageBody": "paid"})

    def receive_10(self) -> Any:
        return self.sqs("ReceiveMessage", {"QueueUrl": _QUEUE, "MaxNumberOfMessages": 10})

    def delete_10(self) -> Callable[[], Any]:
        received = self.receive_10()["Messages"]
        assert len(received) == 10
        entries = [
            {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
            for number, message in enumerate(received)
        ]
        return lambda: self.sqs("DeleteMessageBatch", {"QueueUrl": _QUEUE, "Entries": entries})

    def paths(self) -> dict[str, list[str]]:
        for _ in range(20 * _WARM_UP):
            self.send()
        for _ in range(2 * _WARM_UP):
            self.publish()
            self.publish_json()
        asked: dict[str, Callable[[], Callable[[], Any]]] = {
            "publish": lambda: self.publish,
            "publish JSON": lambda: self.publish_json,
            "receive": lambda: self.receive,
            "ack": self.ack,
            "SendMessage": lambda: self.send,
            "ReceiveMessage of 10": lambda: self.receive_10,
            "DeleteMessageBatch of 10": self.delete_10,
        }
        return {name: usual_path(prepare) for name, prepare in asked.items()}


@pytest.fixture
def asked(tmp_path: Path) -> Any:
    asked = Asked(str(tmp_path))
    yield asked
    asked.close()


def test_requests_pass_no_more_functions_than_before(asked: Asked) -> None:
    paths = asked.paths()
    assert {name: len(path) for name, path in paths.items()} == PASSED, "\n".join(
        f"{name}: {differs(PASSED[name], path)}"
        for name, path in paths.items()
        if len(path) != PASSED[name]
    )


PASSED = {
    "publish": 77,
    "publish JSON": 93,
    "receive": 96,
    "ack": 95,
    "SendMessage": 98,
    "ReceiveMessage of 10": 321,
    "DeleteMessageBatch of 10": 150,
}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        here = Asked(folder)
        for title, passed in here.paths().items():
            print(f"{title}: {show(passed)}\n")
        here.close()
