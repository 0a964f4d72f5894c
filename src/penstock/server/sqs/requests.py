"""What can be asked of the SQS API: a struct for each action, with the names of its parameters."""

from __future__ import annotations

import msgspec


class SqsRequest(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """One request; parameters that are not known are passed over, as SQS does."""


class QueueRequest(SqsRequest, frozen=True, kw_only=True):
    queue_url: str = ""
    """With the older protocol also the path of the request."""


class AttributeValue(SqsRequest, frozen=True, kw_only=True):
    """A message attribute."""

    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None


class CreateQueue(SqsRequest, frozen=True, kw_only=True):
    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = msgspec.field(default_factory=dict, name="tags")


class GetQueueUrl(SqsRequest, frozen=True, kw_only=True):
    queue_name: str
    owner: str | None = msgspec.field(default=None, name="QueueOwnerAWSAccountId")


class ListQueues(SqsRequest, frozen=True, kw_only=True):
    queue_name_prefix: str = ""
    max_results: int | None = None
    next_token: str = ""


class DeleteQueue(QueueRequest, frozen=True, kw_only=True):
    pass


class PurgeQueue(QueueRequest, frozen=True, kw_only=True):
    pass


class GetQueueAttributes(QueueRequest, frozen=True, kw_only=True):
    attribute_names: list[str] = []


class SetQueueAttributes(QueueRequest, frozen=True, kw_only=True):
    attributes: dict[str, str]


class ListQueueTags(QueueRequest, frozen=True, kw_only=True):
    pass


class TagQueue(QueueRequest, frozen=True, kw_only=True):
    tags: dict[str, str]


class UntagQueue(QueueRequest, frozen=True, kw_only=True):
    tag_keys: list[str]


class AddPermission(QueueRequest, frozen=True, kw_only=True):
    label: str
    accounts: list[str] = msgspec.field(name="AWSAccountIds")
    actions: list[str]


class RemovePermission(QueueRequest, frozen=True, kw_only=True):
    label: str


class ListDeadLetterSourceQueues(QueueRequest, frozen=True, kw_only=True):
    max_results: int | None = None
    next_token: str = ""


class MessageToSend(SqsRequest, frozen=True, kw_only=True):
    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] = {}
    message_system_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(MessageToSend, frozen=True, kw_only=True):
    queue_url: str = ""


class BatchEntry(SqsRequest, frozen=True, kw_only=True):
    id: str = ""


class SendEntry(MessageToSend, frozen=True, kw_only=True):
    id: str = ""


class SendMessageBatch(QueueRequest, frozen=True, kw_only=True):
    entries: list[SendEntry] = []


class ReceiveMessage(QueueRequest, frozen=True, kw_only=True):
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class DeleteMessage(QueueRequest, frozen=True, kw_only=True):
    receipt_handle: str


class DeleteEntry(BatchEntry, frozen=True, kw_only=True):
    receipt_handle: str


class DeleteMessageBatch(QueueRequest, frozen=True, kw_only=True):
    entries: list[DeleteEntry] = []


class ChangeMessageVisibility(QueueRequest, frozen=True, kw_only=True):
    receipt_handle: str
    visibility_timeout: int


class VisibilityEntry(BatchEntry, frozen=True, kw_only=True):
    receipt_handle: str
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatch(QueueRequest, frozen=True, kw_only=True):
    entries: list[VisibilityEntry] = []


class StartMessageMoveTask(SqsRequest, frozen=True, kw_only=True):
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class CancelMessageMoveTask(SqsRequest, frozen=True, kw_only=True):
    task_handle: str


class ListMessageMoveTasks(SqsRequest, frozen=True, kw_only=True):
    source_arn: str
    max_results: int = 1
