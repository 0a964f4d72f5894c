"""The outcome of an ack, nack, reject or extend on one partition."""

from __future__ import annotations

from concurrent.futures import Future

import msgspec

from penstock.errors import DeliveryError
from penstock.log.base import DONE


class Settlement(msgspec.Struct, frozen=True):
    refused: dict[int, type[DeliveryError]]
    """By offset: why it could not be settled."""
    durable: Future[None]


SETTLED = Settlement({}, DONE)
"""The outcome when all is well and there is nothing to wait for, as it nearly always is."""
