"""Redrive policies, and the tasks that move messages back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.server.running import RunningServer
from tests.integration.sqs.test_standard import code_of, counts, make, receive


def arn(name: str) -> str:
    return f"arn:aws:sqs:eu-west-1:000000000000:{name}"


def policy(target: str, receives: int = 1) -> str:
    return json.dumps({"deadLetterTargetArn": arn(target), "maxReceiveCount": receives})


def fail(sqs: Any, url: str, *texts: str, receives: int = 1) -> list[str]:
    """Send messages, and receive them until they are given up; their ids."""
    ids = [sqs.send_message(QueueUrl=url, MessageBody=text)["MessageId"] for text in texts]
    for _ in range(receives):
        assert len(receive(sqs, url, VisibilityTimeout=0)) == len(texts)
    assert receive(sqs, url) == []
    return ids


def until_done(sqs: Any, source: str) -> dict[str, Any]:
    for _ in range(200):
        (task,) = sqs.list_message_move_tasks(SourceArn=arn(source))["Results"]
        if task["Status"] not in ("RUNNING", "CANCELLING"):
            return dict(task)
        time.sleep(0.05)
    raise AssertionError(task)


def test_after_so_many_receives_a_message_is_in_the_other_queue(sqs: Any) -> None:
    dead = make(sqs, "any-name")
    url = make(sqs, "jobs", RedrivePolicy=policy("any-name", 3))
    assert make(sqs, "jobs", RedrivePolicy=policy("any-name", 3)) == url
    (id_,) = fail(sqs, url, "x", receives=3)
    (letter,) = receive(sqs, dead, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert (letter["Body"], letter["MessageId"]) == ("x", id_)
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn("jobs")
    assert "MessageAttributes" not in letter
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
    assert json.loads(found["Attributes"]["RedrivePolicy"]) == json.loads(policy("any-name", 3))
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    sqs.send_message(QueueUrl=url, MessageBody="y")
    for _ in range(5):
        (_,) = receive(sqs, url, VisibilityTimeout=0)


def test_a_redrive_policy_has_to_be_possible(sqs: Any) -> None:
    make(sqs, "dead", RedriveAllowPolicy='{"redrivePermission": "denyAll"}')
    allowed = {"redrivePermission": "byQueue", "sourceQueueArns": [arn("good")]}
    make(sqs, "picky", RedriveAllowPolicy=json.dumps(allowed))
    make(sqs, "dead.fifo", FifoQueue="true")
    make(sqs, "good", RedrivePolicy=policy("picky"))
    for wrong in (
        policy("nowhere"),
        policy("dead"),
        policy("picky"),
        policy("dead.fifo"),
        policy("dead", 0),
        policy("bad"),
        "{",
        '{"maxReceiveCount": 3}',
    ):
        with pytest.raises(ClientError) as error:
            make(sqs, "bad", RedrivePolicy=wrong)
        assert code_of(error) in ("InvalidParameterValue", "InvalidAttributeValue")
    assert sqs.list_queues(QueueNamePrefix="bad").get("QueueUrls") is None


def test_letters_move_back_to_where_they_came_from(sqs: Any) -> None:
    dead = make(sqs, "dead")
    one, two = (make(sqs, name, RedrivePolicy=policy("dead")) for name in ("one", "two"))
    fail(sqs, one, "a", "b")
    fail(sqs, two, "c")
    (gone, *_) = receive(sqs, dead, 1)
    sqs.delete_message(QueueUrl=dead, ReceiptHandle=gone["ReceiptHandle"])
    sqs.start_message_move_task(SourceArn=arn("dead"))
    task = until_done(sqs, "dead")
    assert task["Status"] == "COMPLETED"
    assert task["ApproximateNumberOfMessagesMoved"] == 2
    assert [m["Body"] for m in receive(sqs, one)] == ["b"]
    assert [m["Body"] for m in receive(sqs, two)] == ["c"]
    assert counts(sqs, dead) == (0, 0, 0)


def test_letters_move_elsewhere_at_a_rate_until_they_are_cancelled(sqs: Any) -> None:
    dead, other = make(sqs, "dead"), make(sqs, "other")
    url = make(sqs, "jobs", RedrivePolicy=policy("dead"))
    fail(sqs, url, *(f"{n}" for n in range(10)))
    started = sqs.start_message_move_task(
        SourceArn=arn("dead"), DestinationArn=arn("other"), MaxNumberOfMessagesPerSecond=1
    )
    with pytest.raises(ClientError) as error:
        sqs.start_message_move_task(SourceArn=arn("dead"))
    assert code_of(error) == "AWS.SimpleQueueService.UnsupportedOperation"
    handle = started["TaskHandle"]
    moved = sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"]
    task = until_done(sqs, "dead")
    assert task["Status"] == "CANCELLED"
    assert task["DestinationArn"] == arn("other")
    assert task["MaxNumberOfMessagesPerSecond"] == 1
    assert moved <= task["ApproximateNumberOfMessagesMoved"] < 10
    assert counts(sqs, other)[0] + counts(sqs, dead)[0] == 10
    with pytest.raises(ClientError) as error:
        sqs.cancel_message_move_task(TaskHandle=handle)
    assert code_of(error) == "ResourceNotFoundException"


def test_a_message_that_came_from_nowhere_fails_the_task(sqs: Any, server: RunningServer) -> None:
    dead = make(sqs, "dead")
    make(sqs, "jobs", RedrivePolicy=policy("dead"))
    sqs.send_message(QueueUrl=dead, MessageBody="x")
    sqs.start_message_move_task(SourceArn=arn("dead"))
    task = until_done(sqs, "dead")
    assert (task["Status"], task["FailureReason"]) == (
        "FAILED",
        "CouldNotDetermineMessageSource",
    )
    assert [m["Body"] for m in receive(sqs, dead)] == ["x"]
    with pytest.raises(ClientError) as error:
        sqs.start_message_move_task(SourceArn=arn("jobs"))
    assert code_of(error) == "InvalidParameterValue"
