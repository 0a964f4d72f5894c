"""Values of the broker as messages of `penstock.v1`, and back."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from penstock.errors import InvalidInput
from penstock.model.deliveries import (
    Delivered,
    Extend,
    LeasePart,
    Nack,
    Refusal,
    Rejection,
    Settle,
    Verb,
)
from penstock.model.messages import NewMessage
from penstock.model.names import TopicName, topic_name
from penstock.model.published import Placed
from penstock.model.receipts import Receipt
from penstock.model.values import Base64, HeaderValue
from penstock.record.batch import Batch, Message
from penstock.record.schema import ulid_text
from penstock.server.grpc.descriptors import message
from penstock.wire.columns import encode_compact, encode_delivered

_PRIORITIES = (2, 0, 1, 2, 3, 4)
"""Of the broker, by the number of the enum; unspecified is normal."""
_VERBS: dict[int, Verb] = {1: "ack", 2: "nack", 3: "reject", 4: "extend"}
_US = 1_000_000

_Message = message("Message")
_Received = message("Received")
_Run = message("Run")
_Refusal = message("Refusal")


def topic_of(asked: Any) -> TopicName:
    return topic_name(asked.topic, asked.namespace or "default")


def seconds_of(asked: Any, field: str) -> float | None:
    """A duration, exactly enough; None: it is not given."""
    if not asked.HasField(field):
        return None
    given = getattr(asked, field)
    found: float = given.seconds + given.nanos / 1e9
    if found < 0:
        raise InvalidInput(f"{field} is negative")
    return found


def optional(asked: Any, field: str) -> Any:
    return getattr(asked, field) if asked.HasField(field) else None


def plain_batch(given_list: Any) -> Batch | None:
    """Messages as one batch; None: some have what is to be said of each message."""
    messages = given_list.messages
    values = [each.value for each in messages]
    if sum(map(_bytes_alone, map(len, values))) == given_list.ByteSize():
        return Batch.build(values)  # the usual case: they have a value and nothing else
    values = []
    keys: list[bytes | None] = []
    headers: list[dict[str, bytes | None] | None] = []
    priorities: list[int] = []
    for each in messages:
        given = {field.name for field, _ in each.ListFields()}
        if given & _OF_EACH:
            return None
        values.append(each.value if "value" in given else None)
        keys.append(each.key if "key" in given else None)
        headers.append(_headers(each) if "headers" in given else None)
        priorities.append(_priority(each))
    return Batch.build(
        values,
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
        priority=priorities if set(priorities) != {2} else 2,
    )


@lru_cache(4096)
def _bytes_alone(length: int) -> int:
    """What a message in a list takes that is a value of this length and nothing else."""
    inner = 1 + _varint_bytes(length) + length
    return 1 + _varint_bytes(inner) + inner


def _varint_bytes(number: int) -> int:
    return (number.bit_length() + 6) // 7 or 1


_OF_EACH = {"ttl", "delay", "deliver_at", "partition", "dedup_id", "dedup_window"}


def new_messages(messages: Sequence[Any]) -> list[NewMessage]:
    """The same with all that can be said of each."""
    found = []
    for each in messages:
        headers: dict[str, HeaderValue] = {
            name: None if value is None else Base64(base64=_base64(value))
            for name, value in _headers(each).items()
        }
        deliver_at = None
        if each.HasField("deliver_at"):
            deliver_at = each.deliver_at.seconds + each.deliver_at.nanos / 1e9
        found.append(
            NewMessage(
                value_base64=_base64(each.value) if each.HasField("value") else None,
                key_base64=_base64(each.key) if each.HasField("key") else None,
                headers=headers or None,
                priority=_priority(each),
                ttl=seconds_of(each, "ttl"),
                delay=seconds_of(each, "delay"),
                deliver_at=deliver_at,
                partition=optional(each, "partition"),
                dedup_id=each.dedup_id or None,
                dedup_window=seconds_of(each, "dedup_window"),
            )
        )
    return found


def run_of(placed: Placed) -> Any:
    rows = placed.rows
    is_range = isinstance(rows, range)
    return _Run(
        partition=placed.partition,
        offset=placed.first_offset,
        count=len(rows),
        id=ulid_text(placed.ulid) if placed.ulid else "",
        rows=() if is_range else rows,
        row=rows.start if isinstance(rows, range) else 0,
        duplicate=placed.duplicate,
        dead_letter=placed.dead_letter,
    )


def run_of_one(row: int, stored: Any) -> Any:
    """Of what was published as messages that each say where they want to go."""
    run = _Run(
        partition=stored.partition or 0,
        offset=-1 if stored.offset is None else stored.offset,
        count=1,
        id=stored.id,
        row=row,
        duplicate=stored.duplicate,
        dead_letter=stored.dead_letter,
    )
    if stored.deliver_at_us is not None:
        _set_time(run.deliver_at, stored.deliver_at_us)
    return run


def message_of(given: Message) -> Any:
    found = _Message()
    _fill_common(found, given)
    _fill_own(found, given)
    return found


def hand_out(answer: Any, name: TopicName, delivered: Sequence[Delivered], asked: Any) -> None:
    """Fill an answer that hands messages out, in place: copying them would cost as much again.

    `asked` says in which form.
    """
    for part in delivered:
        answer.leases.add(partition=part.partition, lease=part.nonce)
    if asked.arrow:
        compact = encode_compact(delivered) if asked.pieces else None
        if compact is None:
            answer.arrow = encode_delivered(delivered)
        else:
            answer.arrow, answer.pieces = compact
        return
    add, topic = answer.messages.add, str(name)
    for part in delivered:
        for batch, count in part.pieces:
            alike, seen = _Received(partition=part.partition, delivery_count=count), None
            before, after = Receipt.around(topic, part.partition, count, part.nonce)
            for each in batch.messages():
                common = each.timestamp_us, each.expires_at_us, each.priority
                if common != seen:
                    _fill_common(alike.message, each)
                    seen = common
                received = add()
                received.CopyFrom(alike)  # much cheaper than to set the same again
                received.receipt = f"{before}{each.offset}{after}"
                _fill_own(received.message, each)


def _fill_own(found: Any, given: Message) -> None:
    found.offset = given.offset
    found.id = ulid_text(given.ulid)
    if (value := given.value) is not None:
        found.value = value
    if (key := given.key) is not None:
        found.key = key
    if headers := given.headers:
        for name, value in headers.items():
            found.headers.add(name=name, value=value)


def _fill_common(found: Any, given: Message) -> None:
    """What messages that were published together mostly have in common."""
    found.priority = given.priority + 1
    _set_time(found.timestamp, given.timestamp_us)
    if given.expires_at_us is not None:
        _set_time(found.expires_at, given.expires_at_us)
    else:
        found.ClearField("expires_at")


def settle_of(asked: Any) -> tuple[Verb, Settle]:
    verb = _VERBS.get(asked.verb)
    if verb is None:
        raise InvalidInput("verb says what is to be done: ack, nack, reject or extend")
    named: dict[str, Any] = {
        "receipts": list(asked.receipts),
        "leases": [
            LeasePart(
                partition=each.partition,
                lease=each.lease,
                offsets=list(each.offsets) or None,
            )
            for each in asked.leases
        ],
        "even_if_lost": asked.even_if_lost,
    }
    match verb:
        case "nack":
            return verb, Nack(**named, delay=seconds_of(asked, "delay"), error=asked.error)
        case "reject":
            return verb, Rejection(**named, reason=asked.error)
        case "extend":
            visibility = seconds_of(asked, "visibility")
            if visibility is None:
                raise InvalidInput("visibility says how long the messages are to be held")
            return verb, Extend(**named, visibility=visibility)
    return verb, Settle(**named)


def refusal_of(refused: Refusal) -> Any:
    return _Refusal(
        code=refused.code,
        detail=refused.detail,
        partition=refused.partition,
        offset=refused.offset,
        receipt=refused.receipt or "",
        lease=refused.lease,
    )


def decode_fields(text: str, kind: type[Any]) -> Any:
    """A call from the JSON of its fields."""
    try:
        return msgspec.json.decode(text or "{}", type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as exc:
        raise InvalidInput(f"fields: {exc}") from None


def _priority(given: Any) -> int:
    if not 0 <= given.priority < len(_PRIORITIES):
        raise InvalidInput(f"priority {given.priority} is not known")
    return _PRIORITIES[given.priority]


def _headers(given: Any) -> dict[str, bytes | None]:
    return {each.name: optional(each, "value") for each in given.headers}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _set_time(time: Any, us: int) -> None:
    time.seconds, rest = divmod(us, _US)
    time.nanos = rest * 1000
