"""The attributes of a queue, and the settings of the topic that they become.

What Penstock has a setting for becomes that setting; the rest (delays and waits that are the door's
matter, policies and keys that are only kept) lies in the topic's `attributes`, under `sqs.<name>`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings
from penstock.server.sqs.accounts import Addresses
from penstock.server.sqs.problems import SqsProblem, invalid

GROUP = "sqs"
"""The queue group of all that is received through this door."""

FIFO_SUFFIX = ".fifo"
IN_FLIGHT_MAX = 120_000
RECEIVE_MAX = 10
_PREFIX = "sqs."
_TAGS = "sqs.tags"
TAGS_MAX = 50

_NUMBERS: dict[str, tuple[int, int, int]] = {
    "DelaySeconds": (0, 900, 0),
    "MaximumMessageSize": (1024, 1 << 20, 1 << 20),
    "MessageRetentionPeriod": (60, 1_209_600, 345_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20, 0),
    "VisibilityTimeout": (0, 43_200, 30),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400, 300),
}
_CHOICES = {
    "ContentBasedDeduplication": ("false", "true"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
    "SqsManagedSseEnabled": ("true", "false"),
    "FifoQueue": ("true",),
}
_FIFO_ONLY = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
_TEXTS = ("Policy", "KmsMasterKeyId", "RedriveAllowPolicy")
_SETTABLE = {*_NUMBERS, *_CHOICES, *_TEXTS, "RedrivePolicy"}
COUNTED = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
READABLE = {*_SETTABLE, *COUNTED, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"}


class QueueView(NamedTuple):
    """What sending and receiving have to know of a queue."""

    settings: TopicSettings
    is_fifo: bool
    delay_s: int
    wait_s: int
    bytes_max: int
    dedup_by_content: bool
    dedup_per_group: bool


def queue_view(name: TopicName, settings: TopicSettings) -> QueueView:
    kept = settings.attributes

    def number(attribute: str) -> int:
        text = kept.get(_PREFIX + attribute, "")
        return int(text) if text.isascii() and text.isdigit() else _NUMBERS[attribute][2]

    return QueueView(
        settings=settings,
        is_fifo=name.topic.endswith(FIFO_SUFFIX),
        delay_s=number("DelaySeconds"),
        wait_s=number("ReceiveMessageWaitTimeSeconds"),
        bytes_max=number("MaximumMessageSize"),
        dedup_by_content=kept.get(f"{_PREFIX}ContentBasedDeduplication") == "true",
        dedup_per_group=kept.get(f"{_PREFIX}DeduplicationScope") == "messageGroup",
    )


def new_queue(is_fifo: bool) -> dict[str, Any]:
    """The settings of a queue about which nothing is said."""
    order = {"ordered_by_key": True, "key_run_max": RECEIVE_MAX} if is_fifo else {}
    return {
        "max_retries": None,
        "ttl": _NUMBERS["MessageRetentionPeriod"][2],
        "retention_mode": "consumed",
        "in_flight_max": IN_FLIGHT_MAX,
        **order,
    }


class Redrive(NamedTuple):
    """A redrive policy: after how many receives a message goes where."""

    target: TopicName
    receives_max: int


def settings_of(
    name: TopicName,
    given: Mapping[str, str],
    kept: Mapping[str, str],
    redrive_of: Callable[[str], Redrive],
) -> dict[str, Any]:
    """Attributes as changes of settings. `kept`: the topic's `attributes` so far. `redrive_of`
    parses a redrive policy, and checks that its target takes it."""
    settings: dict[str, Any] = {}
    attributes = dict(kept)
    is_fifo = name.topic.endswith(FIFO_SUFFIX)
    for attribute, value in given.items():
        if attribute not in _SETTABLE or (attribute in _FIFO_ONLY and not is_fifo):
            raise SqsProblem("InvalidAttributeName", f"Unknown Attribute {attribute:.100}.")
        _check(attribute, value)
        if attribute == "VisibilityTimeout":
            settings["visibility"] = int(value)
        elif attribute == "MessageRetentionPeriod":
            settings["ttl"] = int(value)
        elif attribute == "RedrivePolicy":
            if value:
                redrive = redrive_of(value)
                settings["max_retries"] = redrive.receives_max - 1
                settings["dead_letter_topic"] = redrive.target.topic
            else:
                settings["max_retries"] = settings["dead_letter_topic"] = None
        elif value or attribute not in _TEXTS:
            attributes[_PREFIX + attribute] = value
        else:
            attributes.pop(_PREFIX + attribute, None)
    if attributes != kept:
        settings["attributes"] = attributes
    return settings


def attributes_of(name: TopicName, settings: TopicSettings, addresses: Addresses) -> dict[str, str]:
    """Those that can be set, as they are."""
    found = {
        attribute: str(default)
        for attribute, (_, _, default) in _NUMBERS.items()
        if not attribute.startswith("Kms")
    }
    found["SqsManagedSseEnabled"] = "false"
    if name.topic.endswith(FIFO_SUFFIX):
        found |= {attribute: _CHOICES[attribute][0] for attribute in _FIFO_ONLY}
    for key, value in settings.attributes.items():
        attribute = key.removeprefix(_PREFIX)
        if key.startswith(_PREFIX) and attribute in _SETTABLE:
            found[attribute] = value
    found["VisibilityTimeout"] = str(settings.visibility_ms // 1000)
    kept_ms = settings.retention_ms if settings.ttl_ms is None else settings.ttl_ms
    if kept_ms is not None:
        found["MessageRetentionPeriod"] = str(kept_ms // 1000)
    if settings.dead_letter_topic is not None and settings.max_retries is not None:
        target = TopicName(name.namespace, settings.dead_letter_topic)
        policy = {
            "deadLetterTargetArn": addresses.arn(target),
            "maxReceiveCount": settings.max_retries + 1,
        }
        found["RedrivePolicy"] = msgspec.json.encode(policy).decode()
    return found


def parse_redrive(policy: str, addresses: Addresses) -> Redrive:
    fields = _object("RedrivePolicy", policy)
    count = fields.get("maxReceiveCount")
    try:
        receives_max = int(str(count))
    except ValueError:
        receives_max = 0
    if not 1 <= receives_max <= 1000:
        raise invalid("RedrivePolicy", policy, "maxReceiveCount must be from 1 to 1000.")
    target = fields.get("deadLetterTargetArn", "")
    return Redrive(addresses.accounts.of_arn(target, "RedrivePolicy"), receives_max)


def check_allows(
    target: TopicName, settings: TopicSettings, source: TopicName, addresses: Addresses
) -> None:
    """Raise SqsProblem unless a queue may be the target of dead letters of another one."""
    if target.namespace != source.namespace:
        raise invalid("RedrivePolicy", str(target), "Both queues must be of one account.")
    if target.topic.endswith(FIFO_SUFFIX) != source.topic.endswith(FIFO_SUFFIX):
        raise invalid("RedrivePolicy", str(target), "Both queues must be FIFO queues, or neither.")
    policy = settings.attributes.get(f"{_PREFIX}RedriveAllowPolicy")
    if not policy:
        return
    fields = _object("RedriveAllowPolicy", policy)
    permission = fields.get("redrivePermission", "allowAll")
    if permission == "allowAll":
        return
    names = []
    if permission == "byQueue":
        for arn in fields.get("sourceQueueArns", []):
            names.append(addresses.accounts.of_arn(arn, "RedriveAllowPolicy"))
    if source not in names:
        raise invalid(
            "RedrivePolicy", str(target), "The RedriveAllowPolicy of the queue does not allow it."
        )


def same(attribute: str, one: str | None, other: str) -> bool:
    """Whether two values mean the same."""
    if one == other:
        return True
    if one is None:
        return not other
    if attribute.endswith("Policy") and one and other:
        left, right = _object(attribute, one), _object(attribute, other)
        if attribute == "RedrivePolicy":
            left["maxReceiveCount"] = str(left.get("maxReceiveCount"))
            right["maxReceiveCount"] = str(right.get("maxReceiveCount"))
        return left == right
    return False


def tags_of(settings: TopicSettings) -> dict[str, str]:
    kept = settings.attributes.get(_TAGS)
    return msgspec.json.decode(kept, type=dict[str, str]) if kept else {}


def with_tags(kept: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """The topic's `attributes` with these tags."""
    if len(tags) > TAGS_MAX:
        raise SqsProblem("InvalidParameterValue", f"A queue has at most {TAGS_MAX} tags.")
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or len(value) > 256:
            raise invalid("Tags", key, "A key has 1 to 128 characters, a value at most 256.")
    rest = {name: value for name, value in kept.items() if name != _TAGS}
    return rest | ({_TAGS: msgspec.json.encode(tags).decode()} if tags else {})


def _check(attribute: str, value: str) -> None:
    if attribute in _NUMBERS:
        least, most, _ = _NUMBERS[attribute]
        is_number = value.isascii() and value.isdigit() and len(value) < 10
        if not is_number or not least <= int(value) <= most:
            raise _wrong(attribute, value, f"Must be between {least} and {most}")
    elif attribute in _CHOICES:
        if value not in _CHOICES[attribute]:
            raise _wrong(attribute, value, f"Must be {' or '.join(_CHOICES[attribute])}")
    elif attribute == "RedriveAllowPolicy" and value:
        permission = _object(attribute, value).get("redrivePermission")
        if permission not in ("allowAll", "denyAll", "byQueue"):
            raise _wrong(attribute, value, "redrivePermission is allowAll, denyAll or byQueue")


def _wrong(attribute: str, value: str, reason: str) -> SqsProblem:
    return SqsProblem(
        "InvalidAttributeValue",
        f"Invalid value {value!r:.200} for the parameter {attribute}. Reason: {reason}.",
    )


def _object(attribute: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise _wrong(attribute, text, "It is not a JSON object") from None
