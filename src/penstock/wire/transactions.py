"""Transactions over the wire: a head, and the messages as Arrow streams behind it.

The body is the length of the head, 4 bytes, little endian; the head as JSON (`TransactionHead`);
and the streams, one after the other, each as long as the head says. Where messages fall due at
times of their own, those are the column `timestamp`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from penstock.durations import parse_ns, parse_us
from penstock.errors import InvalidInput
from penstock.model.messages import EACH_ROW
from penstock.model.names import dedup_names
from penstock.model.settings import parse_dedup_window_ms, parse_ttl_us
from penstock.model.transactions import (
    MessagesHead,
    StagedMessages,
    StagedTransaction,
    TransactionHead,
)
from penstock.model.values import as_duration, parse_time
from penstock.record.batch import Batch
from penstock.wire.columns import encode_new

TRANSACTION_TYPE = "application/vnd.penstock.transaction"

DecodeMessages: TypeAlias = Callable[[bytes], tuple[Batch, Sequence[bytes | None] | None]]

_LENGTH = struct.Struct("<I")
_encoder = msgspec.json.Encoder()
_heads = msgspec.json.Decoder(TransactionHead)


def encode_transaction(staged: StagedTransaction) -> bytes:
    heads, streams = [], []
    for each in staged.messages:
        head, stream = _encode_messages(each)
        heads.append(head)
        streams.append(stream)
    try:
        data = _encoder.encode(
            TransactionHead(
                id=staged.id,
                producer=staged.producer,
                epoch=staged.epoch,
                messages=heads,
                settle=list(staged.settle),
                offsets=list(staged.offsets),
            )
        )
    except (TypeError, ValueError, UnicodeEncodeError, OverflowError) as exc:
        raise InvalidInput(f"this cannot be sent: {exc}") from None
    return b"".join((_LENGTH.pack(len(data)), data, *streams))


def decode_transaction(body: bytes, namespace: str, decode: DecodeMessages) -> StagedTransaction:
    """What `encode_transaction` made; `decode` reads its streams, with the trust that their sender
    deserves. Raises InvalidInput for anything else."""
    if len(body) < _LENGTH.size:
        raise InvalidInput("body is not a transaction: it ends too early")
    (head_bytes,) = _LENGTH.unpack_from(body)
    at = _LENGTH.size + head_bytes
    try:
        head = _heads.decode(body[_LENGTH.size : at])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidInput(f"body is not a transaction: {exc}") from None
    if at + sum(each.bytes for each in head.messages) != len(body):
        raise InvalidInput("body is not a transaction: it is not as long as its head says")
    messages = []
    for each in head.messages:
        batch, dedup_ids = decode(body[at : at + each.bytes])
        messages.append(_decode_messages(each, batch, dedup_ids))
        at += each.bytes
    return StagedTransaction(
        id=head.id,
        namespace=namespace,
        producer=head.producer,
        epoch=head.epoch,
        messages=messages,
        settle=head.settle,
        offsets=head.offsets,
    )


def _encode_messages(staged: StagedMessages) -> tuple[MessagesHead, bytes]:
    batch, at = staged.batch, staged.deliver_at
    deliver_at: str | float | None = None
    if isinstance(at, np.ndarray):
        if len(at) != len(batch):
            raise InvalidInput(f"{len(batch)} messages, but {len(at)} of deliver_at")
        batch, deliver_at = batch.stamped(at), EACH_ROW
    elif at is not None:
        whole, rest = divmod(max(parse_us(at, "deliver_at"), 0), 1_000_000)
        deliver_at = f"{whole}.{rest:06d}"
    delay = None
    if staged.delay is not None:
        delay = f"{-(-parse_ns(staged.delay, 'delay') // 1000)}us"
    ids = None if staged.dedup_ids is None else dedup_names(staged.dedup_ids, len(batch))
    window = staged.dedup_window
    stream = encode_new(batch, ids)
    head = MessagesHead(
        topic=staged.topic,
        bytes=len(stream),
        partition=staged.partition,
        ttl=None if staged.ttl is None else f"{parse_ttl_us(staged.ttl)}us",
        delay=delay,
        deliver_at=deliver_at,
        dedup_window=None if window is None else f"{parse_dedup_window_ms(window)}ms",
    )
    return head, stream


def _decode_messages(
    head: MessagesHead, batch: Batch, dedup_ids: Sequence[bytes | None] | None
) -> StagedMessages:
    deliver_at = None
    if head.deliver_at == EACH_ROW:
        deliver_at, batch = batch.timestamps_us(), batch.stamped(None)
    elif head.deliver_at is not None:
        deliver_at = parse_time(head.deliver_at, "deliver_at")  # type: ignore[assignment]
    window = head.dedup_window
    return StagedMessages(
        topic=head.topic,
        batch=batch,
        partition=head.partition,
        ttl=None if head.ttl is None else as_duration(head.ttl),
        delay=None if head.delay is None else as_duration(head.delay),
        deliver_at=deliver_at,
        dedup_ids=dedup_ids,
        dedup_window=None if window is None else as_duration(window),
    )
