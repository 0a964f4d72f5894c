"""Calls that a client makes again after a lost answer: each is stored once.

A caller makes one call at a time, and numbers them upwards; a client with many calls under way is
as many callers. So it is enough to know the last call of each that a log has taken. Both numbers
stand in the frames of the log (as producer id, negated, and base sequence), and this is their fold.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

import msgspec

from penstock.errors import InvalidInput, OutOfOrderSequence

CALLER_MIN = 16
"""Below are no callers: negated, these numbers say what else a frame may be of."""

_Call: TypeAlias = tuple[int, int, bytes]
"""The number, the first offset and the first id of what was stored."""


class Callers:
    """The last call of each caller to a log.

    The caller of this checks, appends and records under one lock. Beyond `callers_max` the one that
    was silent longest is forgotten: a call of its that is made again would be stored again.
    """

    def __init__(self, callers_max: int = 10_000) -> None:
        self.callers_max = callers_max
        self._calls: OrderedDict[int, _Call] = OrderedDict()  # last: heard of last

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, caller: int, number: int) -> tuple[int, int] | None:
        """The first offset and the first id of what this call has stored; None: nothing yet.

        Raises OutOfOrderSequence for a late copy of a call that its caller has given up."""
        last = self._calls.get(caller)
        if last is None or number > last[0]:
            return None
        if number < last[0]:
            raise OutOfOrderSequence(caller, number, last[0] + 1)
        return last[1], int.from_bytes(last[2], "big")

    def record(self, caller: int, number: int, offset: int, ulid: int) -> None:
        """A call was stored; also how a recovery tells what stands in the log."""
        calls = self._calls
        calls[caller] = number, offset, ulid.to_bytes(16, "big")
        calls.move_to_end(caller)
        if len(calls) > self.callers_max:
            calls.popitem(last=False)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self._calls)

    def restore(self, data: bytes | memoryview) -> None:
        try:
            self._calls = OrderedDict(_decoder.decode(data))
        except msgspec.DecodeError as exc:
            raise InvalidInput(f"not a snapshot of callers: {exc}") from exc


_decoder = msgspec.msgpack.Decoder(dict[int, _Call])
