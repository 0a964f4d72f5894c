"""What callers may give, as calls carry it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol, TypeAlias, TypeGuard

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.delivery.offsets import Int64s
from penstock.durations import Duration, Moment, parse_ns, parse_us
from penstock.errors import InvalidInput, InvalidReceipt
from penstock.model.names import TopicName, parse_topic
from penstock.model.receipts import Receipt
from penstock.model.settings import SettingsGiven, parse_settings
from penstock.model.topic_options import TopicOptions
from penstock.model.values import Seconds, Time
from penstock.record.batch import Batch, HeaderMap, Payload
from penstock.record.json_values import encode_json, is_json_like, with_content_type
from penstock.record.plain import WORTH_IT_MAX, Plain, Single
from penstock.record.schema import Priority


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _PydanticModel(Protocol):
    def model_dump_json(self) -> str: ...


Value: TypeAlias = (
    Payload
    | dict[str, Any]
    | list[Any]
    | tuple[Any, ...]
    | msgspec.Struct
    | _Dataclass
    | _PydanticModel
)
"""Bytes and text go as they are; dicts, lists, structs, dataclasses and models as JSON."""

Messages: TypeAlias = Sequence[Value] | pa.Table | pa.RecordBatch | Batch


_PLAIN_TYPES = {bytes, str, type(None)}


def seconds(duration: Duration, name: str) -> Seconds:
    """A duration, checked in the words of the broker."""
    parse_ns(duration, name)
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def maybe_seconds(duration: Duration | None, name: str) -> Seconds | None:
    return None if duration is None else seconds(duration, name)


def maybe_time(moment: Moment | None, name: str) -> Time | None:
    """A moment, checked in the words of the broker."""
    if moment is None:
        return None
    us = max(parse_us(moment, name), 0)
    return moment.isoformat() if isinstance(moment, datetime) else us / 1e6


def plain_settings(given: TopicOptions) -> SettingsGiven:
    """Settings of a topic, checked in the words of the broker before they are sent."""
    # Some are a matter of what the topic has already: those are left to the broker.
    by_topic = ("partitions", "codec_level")
    parse_settings({name: value for name, value in given.items() if name not in by_topic})
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def receipts_by_topic(receipts: str | Sequence[str]) -> dict[TopicName, list[str]]:
    """Receipts by the topics that they name, or InvalidReceipt, before any is used."""
    several = [receipts] if isinstance(receipts, str) else receipts
    if not isinstance(several, Sequence):
        raise InvalidInput(f"a receipt or a list of them is wanted, not {receipts!r:.100}")
    topics: dict[TopicName, list[str]] = {}
    for text in several:
        receipt = Receipt.parse(text)
        try:
            name = parse_topic(receipt.topic)
        except InvalidInput:
            raise InvalidReceipt(text) from None
        topics.setdefault(name, []).append(text)
    return topics


def as_batch(
    messages: Messages,
    keys: Sequence[Payload] | None,
    headers: Sequence[HeaderMap | None] | None,
    priority: int | str | Sequence[int | str],
) -> Batch:
    """Messages as `publish_batch` takes them, as a batch."""
    if isinstance(messages, Batch | pa.Table | pa.RecordBatch):
        if keys is not None or headers is not None or priority != Priority.NORMAL:
            raise InvalidInput("a table brings its own columns 'key', 'headers' and 'priority'")
        return messages if isinstance(messages, Batch) else Batch.from_arrow(messages)
    if isinstance(messages, str | bytes):
        raise InvalidInput("a list of messages is wanted; publish() takes a single one")
    if not hasattr(messages, "__len__"):
        raise InvalidInput(f"a list of messages or a table is wanted, not {messages!r:.100}")
    if keys is None and headers is None and priority == Priority.NORMAL and _is_short(messages):
        return Plain(messages)  # laid down faster without Arrow's help
    if isinstance(messages, list | tuple) and not _PLAIN_TYPES.issuperset(map(type, messages)):
        messages, headers = _with_json(messages, headers)
    return Batch.build(messages, keys=keys, headers=headers, priority=priority)  # type: ignore[arg-type]


def one_message(
    value: Value, key: Payload, headers: HeaderMap | None, priority: int | str
) -> Batch:
    """A message as `publish` takes it, as a batch."""
    if type(value) is bytes and key is None and headers is None and priority == Priority.NORMAL:
        return Single(value)
    if type(value) not in _PLAIN_TYPES and is_json_like(value):
        value, headers = encode_json(value), with_content_type(headers)
    if key is None and headers is None:
        return Single.build_one(value, priority)  # type: ignore[arg-type]
    return Batch.build(
        [value],  # type: ignore[list-item]
        keys=None if key is None else [key],
        headers=None if headers is None else [headers],
        priority=priority,
    )


def _with_json(
    messages: Sequence[Any], headers: Sequence[HeaderMap | None] | None
) -> tuple[list[Any], list[HeaderMap | None] | None]:
    """Those that are JSON encoded, and told to be so by a header."""
    rows = [row for row, value in enumerate(messages) if is_json_like(value)]
    if not rows:
        return list(messages), headers if headers is None else list(headers)
    values = list(messages)
    named: list[HeaderMap | None] = [None] * len(values) if headers is None else list(headers)
    for row in rows:
        values[row] = encode_json(values[row])
        if row < len(named):
            named[row] = with_content_type(named[row])
    return values, named


def _is_short(messages: Any) -> TypeGuard[list[bytes]]:
    """Whether it is a list of a few bytes, and nothing else."""
    return (
        type(messages) is list
        and 0 < len(messages) <= WORTH_IT_MAX
        and set(map(type, messages)) == {bytes}
    )


def moments_us(moments: Sequence[Moment] | NDArray[Any]) -> Int64s:
    """Moments as `schedule_batch` takes them, in microseconds since 1970."""
    if set(map(type, moments)) == {float}:
        # Many at once. Up to here, which is the year 2255, a float counts microseconds exactly.
        stamps = np.array(moments)
        if (np.abs(stamps) < 9e9).all():
            return np.rint(stamps * 1e6).astype(np.int64)
    return np.array([parse_us(moment, "deliver_at") for moment in moments], np.int64)


def parse_text(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise InvalidInput(f"{name} must be text, not {type(text).__name__}")
    return text


def parse_limit(limit: int | None) -> int:
    """How many may be listed; without a limit as many as there are."""
    if limit is None:
        return 1 << 62
    if type(limit) is not int or limit < 0:
        raise InvalidInput(f"limit is {limit!r:.100}; it must be a whole number from 0 up")
    return limit
