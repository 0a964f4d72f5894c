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
    r"([^:\s]{1,200}):(0|[1-9][0-9]{0,9}):(0|[1-9][0-9]{0,18}):([1-9][0-9]{0,9}):([0-9a-f]{15,16})"
)


class Receipt(NamedTuple):
    topic: str
    partition: int
    offset: int
    delivery_count: int
    nonce: int

    def __str__(self) -> str:
        return (
            f"{self.topic}:{self.partition}:{self.offset}:{self.delivery_count}:{self.nonce:015x}"
        )

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Raises InvalidReceipt for anything that `str` of a receipt cannot give."""
        match = _RECEIPT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidReceipt(text)
        topic, partition, offset, count, nonce = match.groups()
        if nonce[0] == "0" and len(nonce) > 15:
            raise InvalidReceipt(text)
        return cls(topic, int(partition), int(offset), int(count), int(nonce, 16))
