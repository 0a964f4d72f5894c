"""How large an Arrow stream would become, before Arrow is given it.

Arrow believes what a stream says about itself: the lengths of its buffers, and what they unpack to.
So whatever comes over a wire, in a request or in an answer, is measured first.
"""

from __future__ import annotations

import struct

from penstock.errors import InvalidInput, RequestTooLarge

_BATCHES_MAX = 10_000
_RECORD_BATCH = 3  # of the union MessageHeader
_CONTINUATION = 0xFFFFFFFF


def check_sizes(body: bytes, bytes_max: int) -> None:
    """Refuse what would not fit, message by message of the stream, before any is unpacked."""
    view = memoryview(body)
    at, total = 0, 0
    for _ in range(_BATCHES_MAX + 1):
        if at >= len(view):
            return
        (length,) = struct.unpack_from("<I", view, at)
        at += 4
        if length == _CONTINUATION:
            (length,) = struct.unpack_from("<I", view, at)
            at += 4
        if length == 0:
            return
        metadata = view[at : at + length]
        at += length
        if length > len(view) or at > len(view):
            raise InvalidInput("body is not an Arrow IPC stream: it ends too early")
        message = _Table.root(metadata)
        body_length = message.int64(3)
        if body_length < 0 or at + body_length > len(view):
            raise InvalidInput("body is not an Arrow IPC stream: it ends too early")
        if message.uint8(1) == _RECORD_BATCH:
            total += _unpacked_bytes(message.table(2), view[at : at + body_length])
            if total > bytes_max:
                raise RequestTooLarge(f"the body would unpack to more than {bytes_max} bytes")
        at += body_length
    raise RequestTooLarge(f"more than {_BATCHES_MAX} record batches in one stream")


def _unpacked_bytes(batch: _Table | None, data: memoryview) -> int:
    """What the buffers of a record batch take; a compressed one starts with its raw length."""
    if batch is None:
        return 0
    compressed = batch.table(3) is not None
    total = 0
    for offset, length in batch.buffers(2):
        if offset < 0 or length < 0 or offset + length > len(data):
            raise InvalidInput("body is not an Arrow IPC stream: a buffer lies outside of it")
        if compressed and length >= 8:
            (raw,) = struct.unpack_from("<q", data, offset)
            total += length if raw == -1 else max(raw, 0)
        else:
            total += length
    return total


class _Table:
    """As much of FlatBuffers as it takes to find the sizes in the metadata of a message."""

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position
        (back,) = struct.unpack_from("<i", data, position)
        self._vtable = position - back
        if not 0 <= self._vtable < len(data):
            raise InvalidInput("body is not an Arrow IPC stream: its metadata is damaged")
        (self._vtable_bytes,) = struct.unpack_from("<H", data, self._vtable)

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        (position,) = struct.unpack_from("<I", data, 0)
        return cls(data, position)

    def uint8(self, field: int) -> int:
        at = self._field(field)
        return 0 if at is None else self._data[at]

    def int64(self, field: int) -> int:
        at = self._field(field)
        return 0 if at is None else int(struct.unpack_from("<q", self._data, at)[0])

    def table(self, field: int) -> _Table | None:
        at = self._field(field)
        if at is None:
            return None
        return _Table(self._data, at + struct.unpack_from("<I", self._data, at)[0])

    def buffers(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two 64-bit numbers."""
        at = self._field(field)
        if at is None:
            return []
        at += struct.unpack_from("<I", self._data, at)[0]
        (count,) = struct.unpack_from("<I", self._data, at)
        if count * 16 > len(self._data):
            raise InvalidInput("body is not an Arrow IPC stream: its metadata is damaged")
        numbers = struct.unpack_from(f"<{count * 2}q", self._data, at + 4)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _field(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._vtable_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self._data, self._vtable + slot)
        return self._position + offset if offset else None
