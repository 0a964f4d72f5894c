"""Standard queues, as boto3 sees them, in both protocols."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

import penstock
from penstock.broker.broker import Broker
from penstock.model.names import TopicName
from penstock.record.batch import Batch
from tests.integration.server.running import RunningServer


def code_of(error: Any) -> str:
    return str(error.value.response["Error"]["Code"])


def make(sqs: Any, name: str = "jobs", **attributes: str) -> str:
    return str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])


def receive(sqs: Any, url: str, count: int = 10, **how: Any) -> list[dict[str, Any]]:
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, **how)
    messages: list[dict[str, Any]] = found.get("Messages", [])
    return messages


def counts(sqs: Any, url: str) -> tuple[int, int, int]:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    names = ("", "NotVisible", "Delayed")
    visible, hidden, delayed = (int(found[f"ApproximateNumberOfMessages{n}"]) for n in names)
    return visible, hidden, delayed


def test_send_receive_delete(sqs: Any, server: RunningServer) -> None:
    url = make(sqs)
    assert url == f"{server.url}/000000000000/jobs"
    sent = sqs.send_message(QueueUrl=url, MessageBody="größer <&> \r\n\t\U0001f600")
    (message,) = receive(sqs, url, AttributeNames=["All"])
    assert message["MessageId"] == sent["MessageId"]
    assert message["Body"] == "größer <&> \r\n\t\U0001f600"
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    sent_s = int(message["Attributes"]["SentTimestamp"]) / 1000
    assert abs(sent_s - time.time()) < 10
    assert counts(sqs, url) == (0, 1, 0)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert counts(sqs, url) == (0, 0, 0)
    assert receive(sqs, url) == []


def test_message_attributes_of_each_type_with_their_md5(sqs: Any) -> None:
    url = make(sqs)
    attributes = {
        "text": {"DataType": "String", "StringValue": "ä"},
        "n": {"DataType": "Number", "StringValue": "-12.5"},
        "n.kind": {"DataType": "Number.float", "StringValue": "1e3"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "png": {"DataType": "Binary.png", "BinaryValue": b"\x89PNG"},
    }
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="x",
        MessageAttributes=attributes,
        MessageSystemAttributes={
            "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}
        },
    )
    (message,) = receive(sqs, url, MessageAttributeNames=["All"], AttributeNames=["AWSTraceHeader"])
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"] == {"AWSTraceHeader": "Root=1-2-3"}
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
    )
    (some,) = receive(sqs, url, MessageAttributeNames=["n.*", "text"])
    assert set(some["MessageAttributes"]) == {"n", "n.kind", "text"}


def test_the_md5_of_attributes_is_that_of_amazon(json_sqs: Any) -> None:
    # From the documentation's algorithm, worked out by hand for one attribute.
    from hashlib import md5
    from struct import pack

    def part(data: bytes) -> bytes:
        return pack(">I", len(data)) + data

    expected = md5(part(b"a") + part(b"String") + b"\x01" + part(b"v")).hexdigest()
    sent = json_sqs.send_message(
        QueueUrl=make(json_sqs),
        MessageBody="x",
        MessageAttributes={"a": {"DataType": "String", "StringValue": "v"}},
    )
    assert sent["MD5OfMessageAttributes"] == expected


def test_a_batch_fails_entry_by_entry(sqs: Any) -> None:
    url = make(sqs)
    answer = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "a", "MessageBody": "1"},
            {"Id": "b", "MessageBody": "\x01"},
            {"Id": "c", "MessageBody": "3", "DelaySeconds": 901},
            {"Id": "d", "MessageBody": "4", "DelaySeconds": 60},
        ],
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["a", "d"]
    assert {entry["Id"]: entry["Code"] for entry in answer["Failed"]} == {
        "b": "InvalidMessageContents",
        "c": "InvalidParameterValue",
    }
    assert counts(sqs, url) == (1, 0, 1)
    (message,) = receive(sqs, url)
    changed = sqs.change_message_visibility_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "x", "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 100},
            {"Id": "y", "ReceiptHandle": "nonsense", "VisibilityTimeout": 100},
        ],
    )
    assert [entry["Id"] for entry in changed["Successful"]] == ["x"]
    assert [entry["Code"] for entry in changed["Failed"]] == ["ReceiptHandleIsInvalid"]
    gone = sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "x", "ReceiptHandle": message["ReceiptHandle"]},
            {"Id": "y", "ReceiptHandle": "!"},
        ],
    )
    assert [entry["Id"] for entry in gone["Successful"]] == ["x"]
    assert gone["Failed"][0]["SenderFault"] is True


def test_a_batch_has_to_be_one(sqs: Any) -> None:
    url = make(sqs)

    def send(*entries: tuple[str, str]) -> str:
        with pytest.raises(ClientError) as error:
            sqs.send_message_batch(
                QueueUrl=url, Entries=[{"Id": i, "MessageBody": b} for i, b in entries]
            )
        return code_of(error)

    prefix = "AWS.SimpleQueueService."
    assert send(*((str(n), "x") for n in range(11))) == f"{prefix}TooManyEntriesInBatchRequest"
    assert send(("a", "x"), ("a", "y")) == f"{prefix}BatchEntryIdsNotDistinct"
    assert send(("a b", "x")) == f"{prefix}InvalidBatchEntryId"
    half = "x" * (600 << 10)
    assert send(("a", half), ("b", half)) == f"{prefix}BatchRequestTooLong"
    assert counts(sqs, url) == (0, 0, 0)


def test_the_longest_message_is_a_mebibyte_with_its_attributes(sqs: Any) -> None:
    url = make(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x" * (1 << 20))
    with pytest.raises(ClientError) as error:
        sqs.send_message(
            QueueUrl=url,
            MessageBody="x" * (1 << 20),
            MessageAttributes={"a": {"DataType": "String", "StringValue": "v"}},
        )
    assert code_of(error) == "InvalidParameterValue"
    (message,) = receive(sqs, url)
    assert len(message["Body"]) == 1 << 20


def test_a_long_poll_gets_what_comes_while_it_waits(json_sqs: Any, server: RunningServer) -> None:
    url = make(json_sqs, ReceiveMessageWaitTimeSeconds="20")
    json_sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=1)
    began = time.monotonic()
    (message,) = receive(json_sqs, url)
    assert message["Body"] == "later"
    assert 0.8 < time.monotonic() - began < 15
    assert receive(json_sqs, url, WaitTimeSeconds=0) == []


def test_visibility_of_nothing_and_old_receipts(sqs: Any) -> None:
    url = make(sqs, VisibilityTimeout="0")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (first,) = receive(sqs, url)
    (second,) = receive(sqs, url, VisibilityTimeout=30, AttributeNames=["All"])
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    received_ms = int(second["Attributes"]["ApproximateFirstReceiveTimestamp"])
    assert received_ms >= int(second["Attributes"]["SentTimestamp"])
    assert receive(sqs, url) == []
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])  # good, though old
    with pytest.raises(ClientError) as error:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=5
        )
    assert code_of(error) == "InvalidParameterValue"
    assert counts(sqs, url) == (0, 0, 0)


def test_what_is_visible_again_is_not_in_flight(sqs: Any) -> None:
    url = make(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = receive(sqs, url, VisibilityTimeout=0)
    with pytest.raises(ClientError) as error:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=5
        )
    assert code_of(error) == "AWS.SimpleQueueService.MessageNotInflight"


def test_attributes_of_a_queue(sqs: Any, server: RunningServer) -> None:
    url = make(sqs, DelaySeconds="3", VisibilityTimeout="77", MessageRetentionPeriod="600")
    assert make(sqs, VisibilityTimeout="77") == url
    with pytest.raises(ClientError) as error:
        make(sqs, VisibilityTimeout="78")
    assert code_of(error) == "QueueAlreadyExists"
    sqs.set_queue_attributes(
        QueueUrl=url, Attributes={"DelaySeconds": "4", "Policy": '{"Version": "2012-10-17"}'}
    )
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert found["QueueArn"] == "arn:aws:sqs:eu-west-1:000000000000:jobs"
    for name, value in {
        "DelaySeconds": "4",
        "VisibilityTimeout": "77",
        "MessageRetentionPeriod": "600",
        "MaximumMessageSize": "1048576",
        "ReceiveMessageWaitTimeSeconds": "0",
        "Policy": '{"Version": "2012-10-17"}',
    }.items():
        assert found[name] == value
    assert abs(int(found["CreatedTimestamp"]) - time.time()) < 30
    some = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["DelaySeconds"])
    assert some["Attributes"] == {"DelaySeconds": "4"}
    for wrong, expected in (
        ({"DelaySeconds": "901"}, "InvalidAttributeValue"),
        ({"Colour": "red"}, "InvalidAttributeName"),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
    ):
        with pytest.raises(ClientError) as error:
            sqs.set_queue_attributes(QueueUrl=url, Attributes=wrong)
        assert code_of(error) == expected


def test_queues_are_listed_by_prefix_and_page(sqs: Any) -> None:
    urls = [make(sqs, f"q-{n}") for n in range(5)]
    make(sqs, "other")
    assert sqs.list_queues(QueueNamePrefix="q-")["QueueUrls"] == urls
    first = sqs.list_queues(QueueNamePrefix="q-", MaxResults=2)
    assert first["QueueUrls"] == urls[:2]
    second = sqs.list_queues(QueueNamePrefix="q-", MaxResults=3, NextToken=first["NextToken"])
    assert second["QueueUrls"] == urls[2:]
    assert "NextToken" not in second
    assert sqs.get_queue_url(QueueName="q-3")["QueueUrl"] == urls[3]
    sqs.delete_queue(QueueUrl=urls[3])
    with pytest.raises(ClientError) as error:
        sqs.get_queue_url(QueueName="q-3")
    assert code_of(error) == "AWS.SimpleQueueService.NonExistentQueue"
    for call in (
        lambda: sqs.send_message(QueueUrl=urls[3], MessageBody="x"),
        lambda: sqs.receive_message(QueueUrl=urls[3]),
        lambda: sqs.delete_queue(QueueUrl=urls[3]),
        lambda: sqs.purge_queue(QueueUrl=urls[3]),
    ):
        with pytest.raises(ClientError) as error:
            call()
        assert code_of(error) == "AWS.SimpleQueueService.NonExistentQueue"


def test_tags_and_permissions_are_kept(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="jobs", tags={"team": "a", "x": "1"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"team": "b"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["x"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "b"}
    sqs.add_permission(
        QueueUrl=url, Label="all", AWSAccountIds=["111122223333"], Actions=["SendMessage"]
    )
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]
    assert "SQS:SendMessage" in found["Policy"]
    sqs.remove_permission(QueueUrl=url, Label="all")
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])


def test_purge_takes_all_and_rests_a_minute(sqs: Any) -> None:
    url = make(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.send_message(QueueUrl=url, MessageBody="y", DelaySeconds=100)
    receive(sqs, url, 1)
    sqs.purge_queue(QueueUrl=url)
    assert counts(sqs, url) == (0, 0, 0)
    with pytest.raises(ClientError) as error:
        sqs.purge_queue(QueueUrl=url)
    assert code_of(error) == "AWS.SimpleQueueService.PurgeQueueInProgress"


def test_an_account_is_a_namespace(sqs: Any, server: RunningServer) -> None:
    with penstock.connect(server.url, namespace="shop") as shop:
        shop.create_topic("Orders_1", max_retries=None)
        shop.publish("Orders_1", b"\xff\x00", headers={"a": "b"})
        url = f"{server.url}/111122223333/Orders_1"
        assert (
            sqs.get_queue_url(QueueName="Orders_1", QueueOwnerAWSAccountId="111122223333")[
                "QueueUrl"
            ]
            == url
        )
        (message,) = receive(sqs, url, MessageAttributeNames=["All"])
        assert message["Body"] == "/wA="
        assert message["MessageAttributes"] == {
            "a": {"DataType": "String", "StringValue": "b"},
            "penstock-encoding": {"DataType": "String", "StringValue": "base64"},
        }
        sqs.send_message(QueueUrl=url, MessageBody="back")
        assert [m.value for m in shop.receive("Orders_1", "native")] == [b"\xff\x00", b"back"]
    with pytest.raises(ClientError) as error:
        receive(sqs, f"{server.url}/999999999999/Orders_1")
    assert code_of(error) == "AWS.SimpleQueueService.NonExistentQueue"


def test_a_queue_holds_so_many_in_flight_and_no_more(json_sqs: Any, broker: Broker) -> None:
    url = make(json_sqs, VisibilityTimeout="600")
    name, count = TopicName("default", "jobs"), 120_000
    broker.publish(name, Batch.build([b"x"] * (count + 1)))
    for _ in range(2):
        broker.receive(name, "sqs", count // 2)
    with pytest.raises(ClientError) as error:
        receive(json_sqs, url)
    assert code_of(error) == "OverLimit"


def test_bodies_alone_are_told_as_with_all_attributes(sqs: Any, server: RunningServer) -> None:
    """Whether messages were stored together or not, and lie side by side or not."""
    url = make(sqs)
    entries = [{"Id": str(n), "MessageBody": f"body {n}"} for n in range(8)]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]
    with penstock.connect(server.url) as ps:
        ps.publish_batch("jobs", [b"\xff\x00", b"two\nlines"])
    fields = ("MessageId", "MD5OfBody", "Body")

    def told(**how: Any) -> dict[str, tuple[str, ...]]:
        found = receive(sqs, url, VisibilityTimeout=0, **how)
        handles.update((each["Body"], each["ReceiptHandle"]) for each in found)
        return {each["MessageId"]: tuple(each[name] for name in fields) for each in found}

    handles: dict[str, str] = {}
    alone = told()
    assert len(alone) == 10
    assert told(AttributeNames=["All"], MessageAttributeNames=["All"]) == alone
    for entry, done in zip(entries, sent, strict=True):
        body = entry["MessageBody"]
        assert alone[done["MessageId"]] == (done["MessageId"], done["MD5OfMessageBody"], body)
    assert {"/wA=", "two\nlines"} < handles.keys()
    for body in ("body 1", "body 4", "two\nlines"):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=handles[body])
    left = told()
    gone = {"body 1", "body 4", "two\nlines"}
    assert left == {id_: each for id_, each in alone.items() if each[2] not in gone}


def test_letters_received_together_have_the_ids_that_they_had(sqs: Any) -> None:
    dead = make(sqs, "dead")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]
    policy = {"deadLetterTargetArn": arn["QueueArn"], "maxReceiveCount": "1"}
    url = make(sqs, VisibilityTimeout="0", RedrivePolicy=json.dumps(policy))
    entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(5)]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]
    for _ in range(2):
        receive(sqs, url)
    found: dict[str, str] = {}
    while len(found) < 5:
        found |= {each["MessageId"]: each["Body"] for each in receive(sqs, dead)}
    assert found == {each["MessageId"]: each["Id"] for each in sent}
