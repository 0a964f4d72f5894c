"""Folders of LedgerQ (github.com/1mb-dev/ledgerq): one queue in segments, little endian.

A segment is a header of 64 bytes and entries. An entry is its length, type, flags, id, timestamp in
nanoseconds, then what its flags name (priority, expiry, headers, compression), the payload, a
CRC32C of all that, and four zero bytes. What does not fit is damage: it is told, and reading goes
on at the next entry that does, so that one bad byte costs one message.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from penstock.errors import InvalidInput
from penstock.transfer.foreign import ForeignDamage, ForeignMessage, ForeignTopic, GroupPosition

_MAGIC = 0x4C445151
_HEADER_BYTES = 64
_ENTRY = Struct("<IBBQq")
_HEADER = Struct("<IHHQqQQ")
_CRC = Struct("<I")
_METADATA = Struct("<IQQ")
_DATA, _TYPES = 1, (1, 2, 3)
_COMPRESSED, _EXPIRES, _HEADERS, _PRIORITY = 0x01, 0x04, 0x08, 0x10
_ENTRY_BYTES_MAX = 256 << 20
_PAYLOAD_BYTES_MAX = 100 << 20
_SEGMENT = re.compile(r"\d{20}\.log")
_PRIORITIES = {0: 2, 1: 1, 2: 0}  # low, which is the default there, medium, high


class _Retry(msgspec.Struct):
    msg_id: int
    retry_count: int = 0
    failure_reason: str = ""


class _Retries(msgspec.Struct):
    entries: list[_Retry] = []


class LedgerQFolder:
    """One queue. Opened for reading only."""

    def __init__(
        self, folder: str | os.PathLike[str], topic: str, dead_letters_of: str | None = None
    ) -> None:
        """`dead_letters_of`: it is the dead-letter queue of that topic."""
        self.folder = os.path.abspath(os.fspath(folder))
        self.damage: list[ForeignDamage] = []
        self._topic = topic
        self._dead_letters_of = dead_letters_of
        self._segments = sorted(filter(_SEGMENT.fullmatch, _listed(self.folder)))
        if not self._segments:
            raise InvalidInput(f"{folder} is no folder of LedgerQ: it holds no segment")
        self._retries = self._read_retries()
        self.source_id = f"ledgerq-{self._digest()}"

    def topics(self) -> list[ForeignTopic]:
        sizes = [os.path.getsize(os.path.join(self.folder, name)) for name in self._segments]
        return [ForeignTopic(self._topic, 1, sum(sizes), self._dead_letters_of)]

    def positions(self) -> list[GroupPosition]:
        path = os.path.join(self.folder, "metadata.dat")
        try:
            with open(path, "rb") as file:
                data = file.read(24)
            version, _, read_id = _METADATA.unpack_from(data)
        except FileNotFoundError:
            return []
        except struct_error:
            self.damage.append(ForeignDamage(path, 0, "the read position is missing"))
            return []
        if version != 1:
            self.damage.append(ForeignDamage(path, 0, f"version {version} is not known"))
            return []
        return [GroupPosition("ledgerq", self._topic, 0, read_id)]

    def read(self, topic: ForeignTopic, partition: int, after: int) -> Iterator[ForeignMessage]:
        for name in self._segments:
            for message in self._read_segment(os.path.join(self.folder, name)):
                if message.number > after:
                    yield message

    def _read_segment(self, path: str) -> Iterator[ForeignMessage]:
        with open(path, "rb") as file:
            header = file.read(_HEADER_BYTES)
            if len(header) < _HEADER_BYTES or _HEADER.unpack_from(header)[0] != _MAGIC:
                self.damage.append(ForeignDamage(path, 0, "the header of the segment is damaged"))
            elif crc32c(header[:60]) != _CRC.unpack_from(header, 60)[0]:
                self.damage.append(ForeignDamage(path, 0, "the header does not fit its checksum"))
            data = file.read()
        at, is_lost = 0, False
        while at < len(data):
            entry = _entry(data, at)
            if isinstance(entry, str):
                if not any(data[at:]):
                    return  # zeros that were laid out beforehand
                if not is_lost:
                    self.damage.append(ForeignDamage(path, _HEADER_BYTES + at, entry))
                is_lost, at = True, _next_entry(data, at + 1)
                continue
            is_lost, at = False, entry.next_at
            if entry.kind == _DATA:
                try:
                    yield self._message(entry)
                except (ValueError, zlib.error, struct_error, IndexError) as exc:
                    self.damage.append(ForeignDamage(path, entry.at + _HEADER_BYTES, str(exc)))

    def _message(self, entry: _Entry) -> ForeignMessage:
        body, at = entry.body, 0
        priority, expires_us = 2, None
        headers: dict[str, bytes | None] = {}
        if entry.flags & _PRIORITY:
            priority, at = _PRIORITIES.get(body[at], 2), at + 1
        if entry.flags & _EXPIRES:
            expires_us, at = (
                int.from_bytes(body[at : at + 8], "little", signed=True) // 1000,
                at + 8,
            )
        if entry.flags & _HEADERS:
            headers, at = _headers(body, at)
        payload = body[at:]
        if entry.flags & _COMPRESSED:
            payload = _decompressed(payload)
        retry = self._retries.get(entry.id)
        if retry is not None:
            headers["ledgerq-retry-count"] = b"%d" % retry.retry_count
            if retry.failure_reason:
                headers["ledgerq-failure-reason"] = retry.failure_reason.encode()
        return ForeignMessage(
            entry.id, payload, None, headers, priority, entry.timestamp_ns // 1000, expires_us
        )

    def _read_retries(self) -> dict[int, _Retry]:
        path = os.path.join(self.folder, ".retry_state.json")
        try:
            with open(path, "rb") as file:
                found = msgspec.json.decode(file.read(), type=_Retries)
            return {each.msg_id: each for each in found.entries}
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as exc:
            self.damage.append(ForeignDamage(path, 0, str(exc)))
            return {}

    def _digest(self) -> str:
        """Of where it is."""
        return blake2b(self.folder.encode(), digest_size=8).hexdigest()


class _Entry(NamedTuple):
    at: int
    next_at: int
    kind: int
    flags: int
    id: int
    timestamp_ns: int
    body: bytes


def _entry(data: bytes, at: int) -> _Entry | str:
    """The entry there, or why there is none."""
    if at + _ENTRY.size + 8 > len(data):
        return "the last entry is cut off"
    length, kind, flags, id_, timestamp_ns = _ENTRY.unpack_from(data, at)
    end = at + length
    if kind not in _TYPES or not _ENTRY.size + 4 <= length <= _ENTRY_BYTES_MAX:
        return "an entry is damaged"
    if end > len(data):
        return "the last entry is cut off"
    if crc32c(data[at : end - 4]) != _CRC.unpack_from(data, end - 4)[0]:
        return "an entry does not fit its checksum"
    body = data[at + _ENTRY.size : end - 4]
    return _Entry(at, end + 4, kind, flags, id_, timestamp_ns, body)


def _next_entry(data: bytes, at: int) -> int:
    """Where an entry begins again. Only what looks like one is checked as a whole."""
    for start in range(at, len(data) - _ENTRY.size - 8):
        if data[start + 4] in _TYPES and not data[start + 5] & 0xE0:
            length = int.from_bytes(data[start : start + 4], "little")
            fits = _ENTRY.size + 4 <= length <= len(data) - start
            if fits and isinstance(_entry(data, start), _Entry):
                return start
    return len(data)


def _headers(body: bytes, at: int) -> tuple[dict[str, bytes | None], int]:
    def text(at: int) -> tuple[bytes, int]:
        length = int.from_bytes(body[at : at + 2], "little")
        if at + 2 + length > len(body):
            raise ValueError("a header is longer than its entry")
        return body[at + 2 : at + 2 + length], at + 2 + length

    count, at = int.from_bytes(body[at : at + 2], "little"), at + 2
    found: dict[str, bytes | None] = {}
    for _ in range(count):
        name, at = text(at)
        value, at = text(at)
        found[name.decode("utf-8", "replace")] = value
    return found, at


def _decompressed(payload: bytes) -> bytes:
    if payload[:1] != b"\x01":
        raise ValueError(f"compression {payload[:1].hex()} is not known")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    found = unpacker.decompress(payload[1:], _PAYLOAD_BYTES_MAX)
    if unpacker.unconsumed_tail:
        raise ValueError(f"a payload has more than {_PAYLOAD_BYTES_MAX} bytes")
    return found


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(f"there is no folder {folder}") from None
