"""SendMessage and SendMessageBatch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from hashlib import sha256
from typing import Any, NamedTuple

from penstock.model.published import Placed
from penstock.record.batch import Batch
from penstock.record.plain import Single
from penstock.server.sqs.attributes import QueueView
from penstock.server.sqs.call import SqsCall, batch_result, check_batch, failed, when_durable
from penstock.server.sqs.envelope import (
    Headers,
    body_md5,
    body_of,
    headers_of,
    sent_md5,
    trace_of,
    uuid_text,
)
from penstock.server.sqs.problems import SqsProblem, invalid, missing
from penstock.server.sqs.requests import MessageToSend, SendEntry

_GROUP_LENGTH_MAX = 128
_ASIDE_BYTES = 64 << 10


class _Outgoing(NamedTuple):
    """A message that was checked."""

    sent: MessageToSend
    value: bytes
    headers: Headers
    group: bytes | None
    dedup_id: bytes | None
    delay_s: int
    size_bytes: int


def send_message(call: SqsCall) -> Any:
    view, sent = call.view(), call.parameters
    message = _checked(sent, view)
    if message.size_bytes > _ASIDE_BYTES:
        return _send_aside(call, [message])
    (result,), futures = _store(call, [message])
    return when_durable(result, futures)


def send_message_batch(call: SqsCall) -> Any:
    view, entries = call.view(), call.parameters.entries
    check_batch(entries)
    messages: list[_Outgoing] = []
    good: list[SendEntry] = []
    refused: list[dict[str, Any]] = []
    for entry in entries:
        try:
            messages.append(_checked(entry, view))
            good.append(entry)
        except SqsProblem as exc:
            refused.append(failed(entry.id, exc))
    total_bytes = sum(message.size_bytes for message in messages)
    if total_bytes > view.bytes_max:
        raise SqsProblem(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {view.bytes_max} bytes. You have sent "
            f"{total_bytes} bytes.",
        )
    if not messages:
        return batch_result([], refused)
    if total_bytes > _ASIDE_BYTES:
        return _send_batch_aside(call, good, messages, refused)
    stored, futures = _store(call, messages)
    return when_durable(_batch(good, stored, refused), futures)


async def _send_aside(call: SqsCall, messages: list[_Outgoing]) -> Any:
    (result,), futures = await call.door.aside(_store, call, messages)
    later = when_durable(result, futures)
    return later if isinstance(later, dict) else await later


async def _send_batch_aside(
    call: SqsCall,
    entries: list[SendEntry],
    messages: list[_Outgoing],
    refused: list[dict[str, Any]],
) -> Any:
    stored, futures = await call.door.aside(_store, call, messages)
    later = when_durable(_batch(entries, stored, refused), futures)
    return later if isinstance(later, dict) else await later


def _batch(
    entries: Sequence[SendEntry], stored: list[dict[str, Any]], refused: list[dict[str, Any]]
) -> dict[str, Any]:
    done = [{"Id": entry.id, **each} for entry, each in zip(entries, stored, strict=True)]
    return batch_result(done, refused)


def _checked(sent: MessageToSend, view: QueueView) -> _Outgoing:
    value = body_of(sent.message_body)
    headers = headers_of(sent.message_attributes) if sent.message_attributes else {}
    size_bytes = len(value)
    if headers:
        for name, attribute in sent.message_attributes.items():
            size_bytes += len(name) + len(attribute.data_type) + len(headers[name] or b"")
    if size_bytes > view.bytes_max:
        raise SqsProblem(
            "InvalidParameterValue",
            "One or more parameters are invalid. Reason: Message must be shorter than "
            f"{view.bytes_max} bytes.",
        )
    if sent.message_system_attributes:
        headers |= trace_of(sent.message_system_attributes)
    group, dedup_id, delay_s = sent.message_group_id, sent.message_deduplication_id, view.delay_s
    if sent.delay_seconds is not None:
        if not 0 <= sent.delay_seconds <= 900:
            raise invalid(
                "DelaySeconds", sent.delay_seconds, "DelaySeconds must be >= 0 and <= 900."
            )
        if view.is_fifo and sent.delay_seconds != delay_s:
            raise invalid(
                "DelaySeconds",
                sent.delay_seconds,
                "The request include parameter that is not valid for this queue type.",
            )
        delay_s = sent.delay_seconds
    if group is None and dedup_id is None and not view.is_fifo:
        return _Outgoing(sent, value, headers, None, None, delay_s, size_bytes)
    _check_id("MessageGroupId", group)
    _check_id("MessageDeduplicationId", dedup_id)
    if not view.is_fifo:
        if dedup_id is not None:
            raise invalid("MessageDeduplicationId", dedup_id, "The queue is not a FIFO queue.")
        return _Outgoing(sent, value, headers, _bytes(group), None, delay_s, size_bytes)
    if group is None:
        raise missing("MessageGroupId")
    if dedup_id is None:
        if not view.dedup_by_content:
            raise SqsProblem(
                "InvalidParameterValue",
                "The queue should either have ContentBasedDeduplication enabled or "
                "MessageDeduplicationId provided explicitly",
            )
        dedup_id = sha256(value).hexdigest()
    if view.dedup_per_group:
        dedup_id = f"{dedup_prefix(group)}{dedup_id}"
    return _Outgoing(sent, value, headers, _bytes(group), _bytes(dedup_id), delay_s, size_bytes)


def dedup_prefix(group: str) -> str:
    """What makes a deduplication id one of its message group alone."""
    return f"{len(group)}:{group}:"


def _store(
    call: SqsCall, messages: list[_Outgoing]
) -> tuple[list[dict[str, Any]], list[Future[None]]]:
    """Those that are delayed apart from those that are not; in their order."""
    results: dict[int, dict[str, Any]] = {}
    futures: list[Future[None]] = []
    delays = {message.delay_s for message in messages}
    for delay_s in delays:
        rows: Sequence[int] = range(len(messages))
        some = messages
        if len(delays) > 1:
            rows = [row for row in rows if messages[row].delay_s == delay_s]
            some = [messages[row] for row in rows]
        for placed in _publish(call, some, delay_s):
            futures.append(placed.durable)
            for nth, row in enumerate(placed.rows):
                ulid = placed.ulid + nth if placed.ulid else 0
                results[rows[row]] = _result(some[row], ulid)
    return [results[row] for row in range(len(messages))], futures


def _publish(call: SqsCall, messages: list[_Outgoing], delay_s: int) -> Sequence[Placed]:
    batch = _batch_of(messages)
    dedup_ids = None
    if messages[0].dedup_id is not None:
        dedup_ids = [message.dedup_id for message in messages]
    if not delay_s:
        return call.api.publish(call.queue, batch, dedup_ids=dedup_ids)
    ids, _, _ = call.api.delay(call.queue, batch, delay=delay_s, dedup_ids=dedup_ids)
    return ids.placed


def _batch_of(messages: list[_Outgoing]) -> Batch:
    if len(messages) == 1 and not messages[0].headers and messages[0].group is None:
        return Single(messages[0].value)
    keys = [message.group for message in messages]
    headers = [message.headers for message in messages]
    return Batch.build(
        [message.value for message in messages],
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
    )


def _result(message: _Outgoing, ulid: int) -> dict[str, Any]:
    sent = message.sent
    result: dict[str, Any] = {
        "MessageId": uuid_text(ulid),
        "MD5OfMessageBody": body_md5(message.value),
    }
    if sent.message_attributes:
        result["MD5OfMessageAttributes"] = sent_md5(sent.message_attributes)
    if sent.message_system_attributes:
        result["MD5OfMessageSystemAttributes"] = sent_md5(sent.message_system_attributes)
    if message.dedup_id is not None:
        result["SequenceNumber"] = sequence_number(ulid)
    return result


def sequence_number(ulid: int) -> str:
    """Ascends with the messages of a queue; a delayed one has it from the beginning, too."""
    return str(ulid)


def _check_id(parameter: str, given: str | None) -> None:
    is_ascii = given is None or (given.isascii() and given.isprintable() and " " not in given)
    if given is not None and not (is_ascii and 1 <= len(given) <= _GROUP_LENGTH_MAX):
        raise invalid(
            parameter,
            given,
            "It can only include alphanumeric and punctuation characters, 1 to 128 in length.",
        )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
