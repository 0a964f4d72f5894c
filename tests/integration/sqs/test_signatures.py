"""Signatures, where there are keys: botocore signs, and everything else is refused."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from penstock.broker.broker import Broker
from penstock.server.keys import KeyStore, NewKey, sqs_secret
from tests.integration.server.running import RunningServer
from tests.integration.sqs.clients import client
from tests.integration.sqs.test_standard import code_of, make


class Guarded:
    def __init__(self, broker: Broker) -> None:
        self.keys = KeyStore.open(broker.folder)
        self.admin = self.keys.create("ops", "admin")
        self.server = RunningServer(broker, sqs_accounts="shop=111122223333")
        self.url = self.server.url

    def client(self, key: NewKey, **how: Any) -> Any:
        return client(
            self.url,
            aws_access_key_id=key.key.id,
            aws_secret_access_key=how.pop("secret", sqs_secret(key.key)),
            **how,
        )


@pytest.fixture
def guarded(broker: Broker) -> Iterator[Guarded]:
    guarded = Guarded(broker)
    with guarded.server:
        yield guarded


@pytest.mark.parametrize("query", [False, True])
def test_what_a_key_signs_is_let_in(guarded: Guarded, query: bool) -> None:
    sqs = guarded.client(guarded.admin, query=query)
    url = make(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="ä&b=c+d %41")
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "ä&b=c+d %41"


def test_rights_and_namespaces_hold(guarded: Guarded) -> None:
    admin = guarded.client(guarded.admin)
    url = make(admin)
    producer = guarded.client(guarded.keys.create("p", "producer"))
    consumer = guarded.client(guarded.keys.create("c", "consumer"))
    producer.send_message(QueueUrl=url, MessageBody="x")
    (message,) = consumer.receive_message(QueueUrl=url)["Messages"]
    consumer.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    for call in (
        lambda: producer.receive_message(QueueUrl=url),
        lambda: consumer.send_message(QueueUrl=url, MessageBody="x"),
        lambda: consumer.purge_queue(QueueUrl=url),
        lambda: producer.create_queue(QueueName="other"),
    ):
        with pytest.raises(ClientError) as error:
            call()
        assert code_of(error) == "AccessDenied"
    shop = guarded.client(guarded.keys.create("s", "admin", "shop"))
    assert make(shop).endswith("/111122223333/jobs")
    with pytest.raises(ClientError) as error:
        shop.send_message(QueueUrl=url, MessageBody="x")
    assert code_of(error) == "AccessDenied"


def test_wrong_secrets_unknown_keys_and_none_are_refused(guarded: Guarded) -> None:
    with pytest.raises(ClientError) as error:
        guarded.client(guarded.admin, secret="wrong").list_queues()
    assert code_of(error) == "SignatureDoesNotMatch"
    with pytest.raises(ClientError) as error:
        client(guarded.url).list_queues()
    assert code_of(error) == "InvalidClientTokenId"
    status, answer = ask(guarded, b"{}", {})
    assert (status, answer["__type"]) == (403, "com.amazonaws.sqs#MissingAuthenticationToken")
    guarded.keys.revoke("ops")
    with pytest.raises(ClientError) as error:
        guarded.client(guarded.admin).list_queues()
    assert code_of(error) == "InvalidClientTokenId"


def test_each_part_of_a_signed_request_counts(guarded: Guarded) -> None:
    body = b'{"QueueNamePrefix": "a"}'
    headers = signed(guarded, body)
    assert ask(guarded, body, headers)[0] == 200
    assert ask(guarded, body.replace(b'"a"', b'"b"'), headers)[0] == 403
    assert ask(guarded, body, headers | {"X-Amz-Target": "AmazonSQS.ListQueuesX"})[0] == 403
    assert ask(guarded, body, headers, path="/?x=1")[0] == 403
    broken = headers["Authorization"]
    for wrong in (
        broken.replace("/sqs/", "/s3/"),
        broken.replace("Signature=", "Signature=0"),
        broken[:-1] + ("0" if broken[-1] != "0" else "1"),
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 " + "x=y," * 5000,
        f"Bearer {guarded.admin.token}",
    ):
        status, answer = ask(guarded, body, headers | {"Authorization": wrong})
        assert status in (400, 403), wrong[:40]
        assert answer["__type"].startswith("com.amazonaws.sqs#")


@pytest.mark.parametrize(("minutes", "status"), [(-4, 200), (4, 200), (-6, 400), (6, 400)])
def test_a_signature_is_good_for_five_minutes(
    guarded: Guarded, minutes: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = datetime.now(UTC) + timedelta(minutes=minutes)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *a, **k: at, raising=False)
    headers = signed(guarded, b"{}")
    assert headers["X-Amz-Date"] == at.strftime("%Y%m%dT%H%M%SZ")
    assert ask(guarded, b"{}", headers)[0] == status


def test_a_signed_url_is_good_until_it_expires(guarded: Guarded) -> None:
    sqs = guarded.client(guarded.admin)
    url = make(sqs)
    asked = {"Action": "SendMessage", "MessageBody": "signed url", "Version": "2012-11-05"}
    path = presigned(guarded, url, 3600, **asked)
    form = {"Content-Type": "application/x-www-form-urlencoded"}

    def status_of(path: str, body: bytes = b"") -> int:
        return ask(guarded, body, form, path=path, parse=False)[0]

    assert status_of(path) == 200
    assert status_of(path, b"MessageBody=other") == 403
    assert status_of(path.replace("3600", "3601")) == 403
    assert status_of(path.replace("signed%20url", "other")) == 403
    assert status_of(presigned(guarded, url, 8 * 86_400, **asked)) == 400
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "signed url"


def signed(guarded: Guarded, body: bytes) -> dict[str, str]:
    headers = {
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": "AmazonSQS.ListQueues",
    }
    request = AWSRequest("POST", guarded.url + "/", headers=headers, data=body)
    botocore.auth.SigV4Auth(credentials(guarded), "sqs", "eu-west-1").add_auth(request)
    return dict(request.headers.items())


def presigned(guarded: Guarded, url: str, expires_s: int, **parameters: str) -> str:
    """All of it in the query, as botocore signs a URL; the body is empty."""
    request = AWSRequest("POST", url, data=parameters)
    signer = botocore.auth.SigV4QueryAuth(credentials(guarded), "sqs", "eu-west-1", expires_s)
    signer.add_auth(request)
    signed_url: str = request.url
    return signed_url.removeprefix(guarded.url)


def credentials(guarded: Guarded) -> Credentials:
    return Credentials(guarded.admin.key.id, sqs_secret(guarded.admin.key))


def ask(
    guarded: Guarded, body: bytes, headers: dict[str, str], path: str = "/", parse: bool = True
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", guarded.server.port, timeout=10)
    given = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ListQueues"}
    connection.request("POST", path, body, given | headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, json.loads(data) if parse else data
