"""Bodies that are meant to hurt: refused in the shape of SQS, and with bounded memory."""

from __future__ import annotations

import http.client
import json
import tracemalloc
from typing import Any

import pytest

from penstock.broker.broker import Broker
from tests.integration.server.running import RunningServer
from tests.integration.sqs.test_standard import make, receive

JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"
BOMB = (
    '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1 or str()};" * 10}">' for n in range(1, 10))
    + "]><a>&a9;</a>"
)


def post(
    server: RunningServer,
    body: bytes,
    kind: str = JSON,
    action: str = "SendMessageBatch",
    **more: str,
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {"Content-Type": kind, "X-Amz-Target": f"AmazonSQS.{action}"} | more
    try:
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"QueueUrl": 5}',
        b'{"QueueUrl": "http://x/000000000000/none", "Entries": {}}',
        b'{"QueueUrl": "\\ud800"}',
        b'{"QueueUrl": "http://x/../../etc"}',
        b'{"QueueUrl": "/000000000000/' + b"x" * 300 + b'"}',
        b"[" * 100_000,
        b'{"Entries": ' + b"[" * 100_000,
        b'{"a": ' * 50_000,
        b'{"QueueUrl": "/000000000000/jobs", "Entries": [' + b"{}," * 200_000 + b"{}]}",
        b'{"Attributes": {' + b",".join(b'"%d":""' % n for n in range(200_000)) + b"}}",
    ],
)
def test_bodies_that_are_no_request_are_refused(server: RunningServer, body: bytes) -> None:
    tracemalloc.start()
    status, headers, answer = post(server, body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 400 <= status < 500
    told = json.loads(answer)
    assert told["__type"].startswith("com.amazonaws.sqs#")
    assert headers["x-amzn-query-error"].endswith(";Sender")
    assert peak < 32 << 20


@pytest.mark.parametrize(
    "form",
    [
        b"Action=Nothing",
        b"Action=SendMessage",
        b"Action=SendMessage&QueueUrl=/000000000000/jobs&MessageBody=%FF%FE",
        b"Action=SendMessage&QueueUrl=/000000000000/jobs&MessageBody=x&DelaySeconds=many",
        b"Action=ReceiveMessage&QueueUrl=/000000000000/jobs&MaxNumberOfMessages=1e9",
        b"Action=SendMessageBatch&QueueUrl=/000000000000/jobs&"
        + b"&".join(b"SendMessageBatchRequestEntry.%d.Id=a" % n for n in range(1, 1500)),
        b"Action=CreateQueue&QueueName=x&Attribute.1=y&Attribute.1.Name=z",
        b"Action=CreateQueue&QueueName=x&Attribute.99999999999999999999.Name=z",
        b"&".join(b"%d=1" % n for n in range(100_000)),
        "Action=SendMessage&QueueUrl=ü".encode(),
    ],
)
def test_forms_that_are_no_request_are_refused(server: RunningServer, form: bytes) -> None:
    make_jobs(server)
    status, _, answer = post(server, form, FORM)
    if b"QueueName=x" in form:
        return  # what is not understood of it is left out
    assert 400 <= status < 500, answer
    assert answer.startswith(b'<?xml version="1.0"?><ErrorResponse')


def test_xml_is_never_read_and_entities_are_text(sqs: Any, server: RunningServer) -> None:
    url = make(sqs)
    sqs.send_message(QueueUrl=url, MessageBody=BOMB)
    (message,) = receive(sqs, url)
    assert message["Body"] == BOMB
    for kind in ("text/xml", "application/xml", "application/soap+xml", "text/plain", ""):
        status, _, answer = post(server, BOMB.encode(), kind)
        assert status == 400
        assert b"is not understood" in answer


def test_a_body_that_is_too_long_is_refused_before_it_is_read(server: RunningServer) -> None:
    status, _, answer = post(server, b'"' + b"x" * (5 << 20))
    assert status == 413
    assert json.loads(answer)["__type"] == "com.amazonaws.sqs#RequestEntityTooLarge"


def test_pages_of_strangers_cannot_ask(server: RunningServer) -> None:
    form = b"Action=CreateQueue&QueueName=evil"
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert post(server, form, FORM, **headers)[0] == 403
    assert post(server, form, FORM, Host="evil.example")[0] == 403
    assert json.loads(post(server, b"{}", action="ListQueues")[2]) == {}


def test_a_full_disk_is_a_service_that_is_unavailable(broker: Broker) -> None:
    with RunningServer(broker, free_bytes_min=1 << 62) as server:
        make_jobs(server)
        body = json.dumps({"QueueUrl": "/000000000000/jobs", "MessageBody": "x"}).encode()
        broker.topic(broker.topics()[0]).partitions[0].log.reconfigure(
            broker.settings(broker.topics()[0]).log_config(1 << 62)
        )
        status, headers, answer = post(server, body, action="SendMessage")
        assert (status, headers["retry-after"]) == (503, "1")
        assert json.loads(answer)["__type"] == "com.amazonaws.sqs#ServiceUnavailable"


def make_jobs(server: RunningServer) -> None:
    assert post(server, b'{"QueueName": "jobs"}', action="CreateQueue")[0] == 200
