"""The receipt of a message: `topic:partition:offset:delivery_count:nonce`, the nonce in hex.

It goes out with the message and comes back when the message is settled. The nonce is that of the
lease; a message that was handed out again has another one, which is what fences the old holder.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.errors import InvalidReceipt

NONCE_BITS = 60  # an int up to here has two digits inside Python, and 32 bytes

# Only what `str` itself writes: no sign, no leading zero, no digit of another script.
_RECEIPT = re.compile(
    r"([^:\s]{1,200}):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,18}):([1-9][0-9]{0,9})"
    r":([0-9a-f]{15}|[1-9a-f][0-9a-f]{15})"
)


class Receipt(NamedTuple):
    topic: str
    partition: int
    offset: int
    delivery_count: int
    nonce: int

    def __str__(self) -> str:
        before, after = self.around(self.topic, self.partition, self.delivery_count, self.nonce)
        return f"{before}{self.offset}{after}"

    @staticmethod
    def around(topic: str, partition: int, delivery_count: int, nonce: int) -> tuple[str, str]:
        """What stands before and after the offset, for many messages of one lease."""
        return f"{topic}:{partition}:", f":{delivery_count}:{nonce:015x}"

    @staticmethod
    def is_receipt(text: str) -> bool:
        """Whether `parse` takes it."""
        return _RECEIPT.fullmatch(text) is not None

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Raises InvalidReceipt for anything that `str` of a receipt cannot give."""
        match = _RECEIPT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidReceipt(text)
        topic, partition, offset, count, nonce = match.groups()
        return cls(topic, int(partition), int(offset), int(count), int(nonce, 16))
