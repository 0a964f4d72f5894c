"""ReceiveMessage, and what is done with receipt handles: delete, change the visibility."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from typing import Any

from penstock.broker.api import Api
from penstock.errors import AlreadySettled, InvalidReceipt, LeaseLost
from penstock.model.dead_letters import ORIGIN_HEADER, Origin
from penstock.model.deliveries import Delivered, Extend, Refusal, Settle, Verb
from penstock.model.names import TopicName
from penstock.model.receipts import Receipt
from penstock.record.batch import Message
from penstock.record.schema import BITS, parse_ulid
from penstock.server.sqs.attributes import GROUP, IN_FLIGHT_MAX, RECEIVE_MAX
from penstock.server.sqs.call import SqsCall, batch_result, check_batch, failed, when_durable
from penstock.server.sqs.envelope import (
    TRACE_HEADER,
    attributes_md5,
    body_md5,
    shown_attributes,
    shown_body,
    uuid_text,
)
from penstock.server.sqs.letters import letter_origin
from penstock.server.sqs.problems import SqsProblem, invalid
from penstock.server.sqs.requests import DeleteEntry, ReceiveMessage, VisibilityEntry
from penstock.server.sqs.sending import dedup_prefix, sequence_number

VISIBILITY_S_MAX = 43_200
_MORE_THAN_BODIES = BITS["headers"] | BITS["offset"] | BITS["id"]
"""Columns with which it has to be looked at each message: a dead letter has another one's id."""
_WAIT_S_MAX = 20
_DEDUP_HEADER = "penstock-dedup-id"
_URL_SAFE, _FROM_URL_SAFE = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")
_NOT_DONE = "Message does not exist or is not available for visibility timeout change."


def receive_message(call: SqsCall) -> Any:
    view, wanted = call.view(), call.parameters
    _check_wanted(wanted)
    wait_s = view.wait_s if wanted.wait_time_seconds is None else wanted.wait_time_seconds
    attempt = wanted.receive_request_attempt_id if view.is_fifo else None
    if attempt is not None:
        known = call.state.attempts.get((call.queue, attempt), _now_s(call))
        if known is not None and (again := _same_again(call, known, wanted)):
            return {"Messages": again}
    take = _taker(call, wanted)
    delivered = take()
    if delivered is not None or not wait_s or call.door.stopping:
        if delivered is None and not view.is_fifo:
            _check_in_flight(call)
        return _received(call, wanted, delivered or [], attempt)
    poll = call.door.polls.wait(
        [call.queue],
        ("sqs", None),
        call.while_good(take),
        lambda found: _received(call, wanted, found or [], attempt),
        wait_s,
    )
    return poll.future


def delete_message(call: SqsCall) -> Any:
    entry = DeleteEntry(receipt_handle=call.parameters.receipt_handle)
    (problem,), futures = _settle(call, "ack", [entry])
    if problem is not None:
        raise problem
    return when_durable(None, futures)


def delete_message_batch(call: SqsCall) -> Any:
    entries = call.parameters.entries
    call.view()
    check_batch(entries)
    problems, futures = _settle(call, "ack", entries)
    return when_durable(_batch(entries, problems), futures)


def change_message_visibility(call: SqsCall) -> Any:
    asked = call.parameters
    entry = VisibilityEntry(
        receipt_handle=asked.receipt_handle, visibility_timeout=asked.visibility_timeout
    )
    (problem,), futures = _change([entry], call)
    if problem is not None:
        raise problem
    return when_durable(None, futures)


def change_message_visibility_batch(call: SqsCall) -> Any:
    entries = call.parameters.entries
    call.view()
    check_batch(entries)
    problems, futures = _change(entries, call)
    return when_durable(_batch(entries, problems), futures)


def handle_of(receipt: str) -> str:
    return b2a_base64(receipt.encode(), newline=False).translate(_URL_SAFE).decode("ascii")


def receipt_of(handle: str, topic: str) -> str:
    """Raises ReceiptHandleIsInvalid if it is no handle, or of another queue."""
    try:
        receipt = a2b_base64(handle.encode().translate(_FROM_URL_SAFE)).decode()
        if receipt.startswith(topic + ":") and Receipt.is_receipt(receipt):
            return receipt
    except ValueError:  # it is no base64, or not of text
        pass
    raise SqsProblem(
        "ReceiptHandleIsInvalid", f"The input receipt handle {handle!r:.200} is not valid."
    )


def _check_wanted(wanted: ReceiveMessage) -> None:
    if not 1 <= wanted.max_number_of_messages <= RECEIVE_MAX:
        raise invalid(
            "MaxNumberOfMessages",
            wanted.max_number_of_messages,
            f"Must be between 1 and {RECEIVE_MAX}, if provided.",
        )
    _check_visibility(wanted.visibility_timeout)
    wait_s = wanted.wait_time_seconds
    if wait_s is not None and not 0 <= wait_s <= _WAIT_S_MAX:
        raise invalid("WaitTimeSeconds", wait_s, f"Must be >= 0 and <= {_WAIT_S_MAX}, if provided.")


def _check_visibility(visibility_s: int | None) -> None:
    if visibility_s is not None and not 0 <= visibility_s <= VISIBILITY_S_MAX:
        raise invalid(
            "VisibilityTimeout", visibility_s, f"Must be between 0 and {VISIBILITY_S_MAX}."
        )


def _taker(call: SqsCall, wanted: ReceiveMessage) -> Any:
    api, door, key = call.api, call.door, call.key

    def take() -> list[Delivered] | None:
        if door.long_calls.is_busy(call.queue):
            return None
        return (
            api.receive(
                call.queue,
                GROUP,
                wanted.max_number_of_messages,
                wanted.visibility_timeout,
                key.name if key is not None else "",
            )
            or None
        )

    return take


def _check_in_flight(call: SqsCall) -> None:
    """Nothing came: because too much is in flight?"""
    in_flight = call.api.count_in_flight(call.queue, GROUP)
    if in_flight >= IN_FLIGHT_MAX:
        raise SqsProblem("OverLimit", f"{in_flight} messages are in flight already.")


def _received(
    call: SqsCall, wanted: ReceiveMessage, delivered: list[Delivered], attempt: str | None
) -> dict[str, Any]:
    topic, shown = str(call.queue), []
    system = {*wanted.attribute_names, *wanted.message_system_attribute_names}
    bodies_alone = not system and not wanted.message_attribute_names
    for each in delivered:
        for batch, count in each.pieces:
            before, after = Receipt.around(topic, each.partition, count, each.nonce)
            if bodies_alone and len(batch) > 1 and not batch.columns & _MORE_THAN_BODIES:
                first, ulid = batch.base_offset or 0, batch.ulid
                shown += [
                    _body(ulid + row, handle_of(f"{before}{first + row}{after}"), value)
                    for row, value in enumerate(batch.values.to_pylist())
                ]
                continue
            for message in batch.messages():
                handle = handle_of(f"{before}{message.offset}{after}")
                if bodies_alone and ORIGIN_HEADER not in message.headers:
                    shown.append(_body(message.ulid, handle, message.value))
                else:
                    shown.append(_shown(call, wanted, system, message, each, count, handle))
    if attempt is not None and shown:
        call.state.attempts.put((call.queue, attempt), shown, _now_s(call))
    return {"Messages": shown} if shown else {}


def _shown(
    call: SqsCall,
    wanted: ReceiveMessage,
    system: set[str],
    message: Message,
    lease: Delivered,
    count: int,
    handle: str,
) -> dict[str, Any]:
    headers = message.headers
    origin = letter_origin(headers) if ORIGIN_HEADER in headers else None
    ulid = message.ulid if origin is None else parse_ulid(origin.id)
    shown = _body(ulid, handle, message.value)
    if system:
        found = _system_attributes(call, message, lease, count, ulid, origin)
        if "All" not in system:
            found = {name: value for name, value in found.items() if name in system}
        if found:
            shown["Attributes"] = found
    if wanted.message_attribute_names:
        names = wanted.message_attribute_names
        is_base64 = shown_body(message.value)[1]
        attributes = shown_attributes(headers, names, is_base64=is_base64)
        if attributes:
            shown["MessageAttributes"] = attributes
            shown["MD5OfMessageAttributes"] = attributes_md5(attributes)
    return shown


def _body(ulid: int, handle: str, value: bytes | None) -> dict[str, Any]:
    """What is told of every message."""
    body, is_base64 = shown_body(value)
    return {
        "MessageId": uuid_text(ulid),
        "ReceiptHandle": handle,
        "MD5OfBody": body_md5(body if is_base64 else value or b""),
        "Body": body,
    }


def _system_attributes(
    call: SqsCall,
    message: Message,
    lease: Delivered,
    count: int,
    ulid: int,
    origin: Origin | None,
) -> dict[str, str]:
    now_ms = call.api.clock.wall_ns() // 1_000_000
    first_us = lease.first_delivery_us(message.offset)
    found = {
        "SenderId": call.addresses.accounts.account(call.queue.namespace),
        "SentTimestamp": str(ulid >> 80),
        "ApproximateReceiveCount": str(count),
        "ApproximateFirstReceiveTimestamp": str(now_ms if first_us is None else first_us // 1000),
    }
    headers = message.headers
    if message.key is not None:
        group, is_base64 = shown_body(message.key)
        if not is_base64:
            found["MessageGroupId"] = group
            if call.view().is_fifo:
                found["SequenceNumber"] = sequence_number(ulid)
                dedup_id = shown_body(headers.get(_DEDUP_HEADER))[0]
                found["MessageDeduplicationId"] = dedup_id.removeprefix(dedup_prefix(group))
    if TRACE_HEADER in headers:
        found["AWSTraceHeader"] = shown_body(headers[TRACE_HEADER])[0]
    if origin is not None and origin.topic:
        source = TopicName(call.queue.namespace, origin.topic)
        found["DeadLetterQueueSourceArn"] = call.addresses.arn(source)
    return found


def _same_again(
    call: SqsCall, shown: list[dict[str, Any]], wanted: ReceiveMessage
) -> list[dict[str, Any]]:
    """What a receive gave whose answer may be lost, held for as long again; without what is
    settled, or over."""
    visibility_s = wanted.visibility_timeout
    if visibility_s is None:
        visibility_s = call.view().settings.visibility_ms // 1000
    entries = [
        VisibilityEntry(receipt_handle=each["ReceiptHandle"], visibility_timeout=visibility_s)
        for each in shown
    ]
    problems, _ = _change(entries, call)
    return [each for each, problem in zip(shown, problems, strict=True) if problem is None]


def _settle(call: SqsCall, verb: Verb, entries: Sequence[DeleteEntry]) -> Any:
    """What is wrong with each, None where nothing is, and when the rest is durable."""
    return _settle_all(
        call, verb, entries, lambda receipts: Settle(receipts=receipts, even_if_lost=True)
    )


def _change(entries: Sequence[VisibilityEntry], call: SqsCall) -> Any:
    problems: list[SqsProblem | None] = [None] * len(entries)
    futures = []
    by_time: dict[int, list[int]] = {}
    for row, entry in enumerate(entries):
        try:
            if entry.visibility_timeout is None:
                raise invalid("VisibilityTimeout", "", "It has to be given.")
            _check_visibility(entry.visibility_timeout)
            by_time.setdefault(entry.visibility_timeout, []).append(row)
        except SqsProblem as exc:
            problems[row] = exc
    for visibility_s, rows in by_time.items():
        some = [entries[row] for row in rows]
        found, durable = _settle_all(
            call,
            "extend",
            some,
            lambda receipts, s=visibility_s: Extend(
                receipts=receipts, visibility=s, even_if_lost=True
            ),
        )
        futures += durable
        for row, problem in zip(rows, found, strict=True):
            problems[row] = problem
    return problems, futures


def _settle_all(
    call: SqsCall, verb: Verb, entries: Sequence[DeleteEntry | VisibilityEntry], how: Any
) -> Any:
    topic, is_fifo = str(call.queue), call.view().is_fifo
    problems: list[SqsProblem | None] = []
    receipts: list[str] = []
    for entry in entries:
        try:
            receipts.append(receipt_of(entry.receipt_handle, topic))
            problems.append(None)
        except SqsProblem as exc:
            receipts.append("")
            problems.append(exc)
    good = [receipt for receipt in receipts if receipt]
    if not good:
        return problems, []
    settling = call.api.settle(verb, call.queue, GROUP, how(good))
    if not settling.refused:
        return problems, settling.durable
    refused = {refusal.receipt: refusal for refusal in settling.refused}
    for row, receipt in enumerate(receipts):
        if receipt in refused:
            problems[row] = _problem(verb, refused[receipt], is_fifo, entries[row].receipt_handle)
    return problems, settling.durable


def _problem(verb: Verb, refusal: Refusal, is_fifo: bool, handle: str) -> SqsProblem | None:
    """None: it is as if it had been done. Deleting what is gone is no error."""
    if verb == "ack":
        if is_fifo and refusal.code == LeaseLost.code:
            return invalid("ReceiptHandle", handle, "The receipt handle has expired.")
        return None
    if refusal.code == LeaseLost.code:
        if is_fifo:
            return invalid("ReceiptHandle", handle, "The receipt handle has expired.")
        return SqsProblem("MessageNotInflight", "The message referred to isn't in flight.")
    assert refusal.code in (AlreadySettled.code, InvalidReceipt.code)
    return invalid("ReceiptHandle", handle, _NOT_DONE)


def _batch(entries: Sequence[Any], problems: Sequence[SqsProblem | None]) -> dict[str, Any]:
    done, refused = [], []
    for entry, problem in zip(entries, problems, strict=True):
        if problem is None:
            done.append({"Id": entry.id})
        else:
            refused.append(failed(entry.id, problem))
    return batch_result(done, refused)


def _now_s(call: SqsCall) -> float:
    api: Api = call.api
    return api.clock.monotonic_ns() / 1e9
