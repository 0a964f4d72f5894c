"""FIFO queues: message groups, deduplication, runs of a group, attempts."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.sqs.test_standard import code_of, counts, make, receive


def fifo(sqs: Any, name: str = "jobs.fifo", **attributes: str) -> str:
    return make(sqs, name, FifoQueue="true", **attributes)


def send(sqs: Any, url: str, body: str, group: str = "g", **how: Any) -> dict[str, Any]:
    found: dict[str, Any] = sqs.send_message(
        QueueUrl=url, MessageBody=body, MessageGroupId=group, **how
    )
    return found


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def test_a_group_comes_in_runs_and_in_order(sqs: Any) -> None:
    url = fifo(sqs, ContentBasedDeduplication="true")
    for group, body in zip("aabac", ("a1", "a2", "b1", "a3", "c1"), strict=True):
        send(sqs, url, body, group)
    first = receive(sqs, url, 4, AttributeNames=["All"])
    assert bodies(first) == ["a1", "a2", "b1", "a3"]
    numbers = [int(message["Attributes"]["SequenceNumber"]) for message in first]
    assert numbers == sorted(numbers)
    assert first[0]["Attributes"]["MessageGroupId"] == "a"
    send(sqs, url, "a4", "a")
    assert bodies(receive(sqs, url)) == ["c1"]
    for message in first:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert bodies(receive(sqs, url)) == ["a4"]


def test_a_failed_one_comes_again_before_the_rest_of_its_group(sqs: Any) -> None:
    url = fifo(sqs, ContentBasedDeduplication="true")
    for body in ("1", "2", "3"):
        send(sqs, url, body)
    one, two = receive(sqs, url, 2)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
    assert receive(sqs, url) == []
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=two["ReceiptHandle"], VisibilityTimeout=0
    )
    assert bodies(receive(sqs, url, 1)) == ["2"]


def test_a_second_send_has_the_first_ones_id(sqs: Any) -> None:
    url = fifo(sqs)
    first = send(sqs, url, "x", MessageDeduplicationId="d")
    second = send(sqs, url, "y", "other", MessageDeduplicationId="d")
    assert (second["MessageId"], second["SequenceNumber"]) == (
        first["MessageId"],
        first["SequenceNumber"],
    )
    (message,) = receive(sqs, url, AttributeNames=["All"])
    assert (message["Body"], message["MessageId"]) == ("x", first["MessageId"])
    assert message["Attributes"]["MessageDeduplicationId"] == "d"
    assert message["Attributes"]["SequenceNumber"] == first["SequenceNumber"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    send(sqs, url, "z", MessageDeduplicationId="d")
    assert receive(sqs, url) == []


def test_deduplication_by_content_and_for_each_group(sqs: Any) -> None:
    url = fifo(
        sqs,
        ContentBasedDeduplication="true",
        DeduplicationScope="messageGroup",
        FifoThroughputLimit="perMessageGroupId",
    )
    for group in ("a", "b", "a"):
        send(sqs, url, "same", group)
    found = receive(sqs, url, AttributeNames=["MessageDeduplicationId", "MessageGroupId"])
    assert [message["Attributes"]["MessageGroupId"] for message in found] == ["a", "b"]
    ids = {message["Attributes"]["MessageDeduplicationId"] for message in found}
    assert len(ids) == 1
    assert len(ids.pop()) == 64


def test_a_queue_with_a_delay_deduplicates_too(sqs: Any) -> None:
    url = fifo(sqs, ContentBasedDeduplication="true", DelaySeconds="1")
    first, second = send(sqs, url, "x"), send(sqs, url, "x")
    assert first["MessageId"] == second["MessageId"]
    assert counts(sqs, url) == (0, 0, 1)
    (message,) = receive(sqs, url, WaitTimeSeconds=10, AttributeNames=["All"])
    assert message["MessageId"] == first["MessageId"]
    assert message["Attributes"]["SequenceNumber"] == first["SequenceNumber"]


def test_an_attempt_that_is_made_again_gives_the_same_messages(sqs: Any) -> None:
    url = fifo(sqs, ContentBasedDeduplication="true")
    for n in range(3):
        send(sqs, url, str(n), f"g{n}")
    first = receive(sqs, url, 2, ReceiveRequestAttemptId="once")
    assert receive(sqs, url, 2, ReceiveRequestAttemptId="once") == first
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first[0]["ReceiptHandle"])
    assert receive(sqs, url, 2, ReceiveRequestAttemptId="once") == first[1:]
    assert bodies(receive(sqs, url, 2, ReceiveRequestAttemptId="another")) == ["2"]


def test_what_a_fifo_queue_asks_for(sqs: Any) -> None:
    url = fifo(sqs)
    for how in (
        {"MessageGroupId": "g"},
        {"MessageDeduplicationId": "d"},
        {"MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 5},
        {"MessageGroupId": "g g", "MessageDeduplicationId": "d"},
    ):
        with pytest.raises(ClientError) as error:
            sqs.send_message(QueueUrl=url, MessageBody="x", **how)
        assert code_of(error) in ("InvalidParameterValue", "MissingParameter")
    with pytest.raises(ClientError):
        make(sqs, "x.fifo")
    with pytest.raises(ClientError):
        make(sqs, "x", FifoQueue="true")
    assert receive(sqs, url) == []


def test_an_expired_receipt_is_refused_on_a_fifo_queue(sqs: Any) -> None:
    url = fifo(sqs, ContentBasedDeduplication="true")
    send(sqs, url, "x")
    (message,) = receive(sqs, url, VisibilityTimeout=0)
    with pytest.raises(ClientError, match="has expired") as error:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert code_of(error) == "InvalidParameterValue"
    assert bodies(receive(sqs, url)) == ["x"]
