"""What every consumer can read of a message, however it got it."""

from __future__ import annotations

from penstock.record.batch import Message
from penstock.record.json_values import ReadablePayload
from penstock.record.schema import Priority


class DeliveredPayload(ReadablePayload):
    """A message that was delivered."""

    __slots__ = ()
    _message: Message

    @property
    def value(self) -> bytes | None:
        return self._message.value

    @property
    def key(self) -> bytes | None:
        return self._message.key

    @property
    def headers(self) -> dict[str, bytes | None]:
        return self._message.headers

    @property
    def priority(self) -> Priority:
        return Priority(self._message.priority)

    @property
    def timestamp_us(self) -> int:
        return self._message.timestamp_us

    @property
    def expires_at_us(self) -> int | None:
        return self._message.expires_at_us

    @property
    def offset(self) -> int:
        return self._message.offset

    @property
    def id(self) -> str:
        return self._message.id
