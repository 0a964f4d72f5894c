"""Folders of GoQueue (github.com/abd-ulbasit/goqueue): topics, partitions, groups; big endian.

A segment is one message after the other, each a header of 34 bytes (32 in older folders, which the
CRC32C tells apart), key, value and headers. Delayed messages are in the log, and not visible until
an index of delays says so, or never, if they were cancelled; dead letters are JSON in topics of
their own. What does not fit is
damage: it is told, and reading goes on at the next message that does.
"""

from __future__ import annotations

import base64
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from penstock.errors import InvalidInput
from penstock.transfer.foreign import ForeignDamage, ForeignMessage, ForeignTopic, GroupPosition

_HEAD = Struct(">2sBBIQQBBHI")  # 32 bytes; then, but in older folders, the length of headers
_COMPRESSED, _HEADERS, _CONTROL = 1, 2, 8
_DELAY_HEAD = Struct(">4sHHQ")
_DELAY = Struct(">qqII8x")
_PENDING, _DELIVERED = 0, 1
_SEGMENT = re.compile(r"\d{20}\.log")
_DEAD = ".dlq"
_VALUE_BYTES_MAX = 100 << 20


class _Position(msgspec.Struct):
    offset: int


class _TopicPositions(msgspec.Struct):
    partitions: dict[str, _Position] = {}


class _Positions(msgspec.Struct):
    topics: dict[str, _TopicPositions] = {}


_REASONS = {"MAX_RETRIES_EXCEEDED": "max_retries", "TTL_EXPIRED": "expired"}


class GoQueueLetter(msgspec.Struct, rename=lambda name: name.replace("_", "")):
    """A dead letter as it is stored there, or as its documents write the fields."""

    original_topic: str
    original_partition: int = -1
    original_offset: int = -1
    original_key: str | None = None
    original_value: str | None = None
    delivery_attempts: int = 0
    last_error: str = ""
    last_group: str = ""
    last_consumer: str = ""
    reason: str = ""
    dlq_reason: str = ""

    @property
    def why(self) -> str:
        """In the words of Penstock, if it has one for it."""
        reason = self.reason or self.dlq_reason
        return _REASONS.get(reason, reason.lower())


class GoQueueFolder:
    """A data folder. Opened for reading only."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.path.abspath(os.fspath(folder))
        self.damage: list[ForeignDamage] = []
        self._logs = os.path.join(self.folder, "logs")
        if not os.path.isdir(self._logs):
            raise InvalidInput(f"{folder} is no data folder of GoQueue: there is no logs/ in it")
        self.source_id = f"goqueue-{blake2b(self.folder.encode(), digest_size=8).hexdigest()}"

    def topics(self) -> list[ForeignTopic]:
        found = []
        for name in sorted(os.listdir(self._logs)):
            numbers = [n for n in os.listdir(os.path.join(self._logs, name)) if n.isdigit()]
            if numbers:
                size = sum(
                    os.path.getsize(path) for n in numbers for path in self._segments(name, int(n))
                )
                dead = name.removesuffix(_DEAD) if name.endswith(_DEAD) else None
                found.append(ForeignTopic(name, max(map(int, numbers)) + 1, size, dead))
        return found

    def positions(self) -> list[GroupPosition]:
        found = []
        folder = os.path.join(self.folder, "offsets")
        for group in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, group, "offsets.json")
            try:
                with open(path, "rb") as file:
                    stored = msgspec.json.decode(file.read(), type=_Positions)
            except FileNotFoundError:
                continue
            except msgspec.MsgspecError as exc:
                self.damage.append(ForeignDamage(path, 0, str(exc)))
                continue
            for topic, positions in stored.topics.items():
                for number, position in positions.partitions.items():
                    if number.isdigit():
                        found.append(GroupPosition(group, topic, int(number), position.offset))
        return found

    def read(self, topic: ForeignTopic, partition: int, after: int) -> Iterator[ForeignMessage]:
        pending, gone = self._delays(topic.name, partition)
        for path in self._segments(topic.name, partition):
            for message in self._read_segment(path):
                if message.number > after and message.number not in gone:
                    due_us = pending.get(message.number)
                    yield message if due_us is None else message._replace(deliver_at_us=due_us)

    def _segments(self, topic: str, partition: int) -> list[str]:
        folder = os.path.join(self._logs, topic, str(partition))
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return [os.path.join(folder, name) for name in sorted(filter(_SEGMENT.fullmatch, names))]

    def _read_segment(self, path: str) -> Iterator[ForeignMessage]:
        with open(path, "rb") as file:
            data = file.read()
        at, is_lost = 0, False
        while at < len(data):
            found = _stored(data, at)
            if isinstance(found, str):
                if not any(data[at:]):
                    return
                if not is_lost:
                    self.damage.append(ForeignDamage(path, at, found))
                next_at = data.find(b"GQ", at + 1)
                is_lost, at = True, len(data) if next_at < 0 else next_at
                continue
            is_lost = False
            try:
                if not found.flags & _CONTROL:
                    yield found.message()
            except (ValueError, IndexError, zlib.error) as exc:
                self.damage.append(ForeignDamage(path, at, str(exc)))
            at = found.next_at

    def _delays(self, topic: str, partition: int) -> tuple[dict[int, int], set[int]]:
        """By offset, when a message that waits falls due, in microseconds; and those that were
        cancelled, or expired as they waited."""
        pending: dict[int, int] = {}
        gone: set[int] = set()
        for path in self._delay_indexes(topic):
            with open(path, "rb") as file:
                data = file.read()
            if len(data) < _DELAY_HEAD.size or not data.startswith(b"GQDL"):
                self.damage.append(ForeignDamage(path, 0, "it is no index of delays"))
                continue
            for at in range(_DELAY_HEAD.size, len(data) - _DELAY.size + 1, _DELAY.size):
                offset, deliver_ns, number, state = _DELAY.unpack_from(data, at)
                if number == partition and state == _PENDING:
                    pending[offset] = -(-deliver_ns // 1000)
                elif number == partition and state != _DELIVERED:
                    gone.add(offset)
        return pending, gone

    def _delay_indexes(self, topic: str) -> Iterator[str]:
        """Of a topic, wherever a version keeps them."""
        for base in ("delays", "delay"):
            folder = os.path.join(self.folder, base)
            for root, _, files in os.walk(folder):
                parts = os.path.relpath(root, folder).split(os.sep)
                for name in sorted(files):
                    if topic in (*parts, name.rpartition(".")[0]):
                        yield os.path.join(root, name)


class _Stored(NamedTuple):
    next_at: int
    flags: int
    offset: int
    timestamp_ns: int
    priority: int
    key: bytes
    value: bytes
    headers: bytes

    def message(self) -> ForeignMessage:
        value = self.value
        if self.flags & _COMPRESSED:
            value = _decompressed(value)
        return ForeignMessage(
            self.offset,
            None if self.flags & 4 else value,
            self.key or None,
            _headers(self.headers) if self.flags & _HEADERS else {},
            min(self.priority, 4),
            self.timestamp_ns // 1000,
        )


def letter_of(message: ForeignMessage) -> GoQueueLetter | None:
    """None: it is none."""
    try:
        fields = msgspec.json.decode(message.value or b"", type=dict[str, Any])
        plain = {name.replace("_", "").lower(): value for name, value in fields.items()}
        return msgspec.convert(plain, GoQueueLetter)
    except msgspec.MsgspecError:
        return None


def letter_bytes(text: str | None) -> bytes | None:
    """Go writes bytes as base64; what is none is text."""
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return text.encode()


def _stored(data: bytes, at: int) -> _Stored | str:
    """The message there, or why there is none."""
    if at + _HEAD.size > len(data):
        return "the last message is cut off"
    magic, version, flags, crc, offset, time_ns, priority, _, key_bytes, value_bytes = (
        _HEAD.unpack_from(data, at)
    )
    if magic != b"GQ" or version != 1:
        return "a message is damaged"
    is_cut = False
    for head_bytes in (34, 32):
        header_bytes = 0
        if head_bytes == 34:
            if at + 34 > len(data):
                continue
            header_bytes = int.from_bytes(data[at + 32 : at + 34], "big")
        key_at = at + head_bytes
        value_at = key_at + key_bytes
        headers_at = value_at + value_bytes
        end = headers_at + header_bytes
        if end > len(data):
            is_cut = True
        elif crc32c(data[at + 8 : end]) == crc:
            return _Stored(
                end,
                flags,
                offset,
                time_ns,
                priority,
                data[key_at:value_at],
                data[value_at:headers_at],
                data[headers_at:end],
            )
    return "the last message is cut off" if is_cut else "a message does not fit its checksum"


def _headers(data: bytes) -> Mapping[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    count, at = int.from_bytes(data[:2], "big"), 2
    for _ in range(count):
        parts = []
        for _ in range(2):
            length = int.from_bytes(data[at : at + 2], "big")
            if at + 2 + length > len(data):
                raise ValueError("a header is longer than its message")
            parts.append(data[at + 2 : at + 2 + length])
            at += 2 + length
        found[parts[0].decode("utf-8", "replace")] = parts[1]
    return found


def _decompressed(value: bytes) -> bytes:
    """gzip or deflate, whichever it is; both are told by their first bytes."""
    for bits in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        unpacker = zlib.decompressobj(bits)
        try:
            found = unpacker.decompress(value, _VALUE_BYTES_MAX)
        except zlib.error:
            continue
        if unpacker.unconsumed_tail:
            raise ValueError(f"a value has more than {_VALUE_BYTES_MAX} bytes")
        if unpacker.eof:
            return found
    raise ValueError("the value is neither gzip nor deflate; it may be encrypted, too")
