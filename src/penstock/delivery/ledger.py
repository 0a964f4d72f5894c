"""The events of a group on a partition, and how the ledger stores them.

What happened to messages is appended here before it is believed; the state is the fold of it
(`state.py`). One ledger entry holds all events of one decision, so that a crash keeps all of them
or none. An entry is a MessagePack array of events; an event is an array that starts with its tag,
and its offsets are a run or a bitmap (`offsets.py`). New fields go to the end and need a default;
none is renamed or removed.

Times: `at_ns` is ledger time, the nanoseconds during which this group has been served. It stands
still while the broker is down, and no clock that is set can move it. `wall_us` is for people;
`until_us` ends leases whose broker was down for long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from penstock.delivery.offsets import EMPTY, Offsets, decode_hook, encode_hook
from penstock.errors import InvalidInput

Reason = Literal["max_retries", "rejected", "expired"]


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Messages of a lease that are alike."""

    priority: int
    offsets: Offsets
    delivery_count: int = 1  # this delivery included; more than 1: handed out before
    cursor: int = -1  # where the lane goes on when these are gone; -1: after the last of them


class Leased(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Messages were handed out together, in the order of the parts."""

    at_ns: int
    nonce: int
    visibility_ns: int
    consumer: str
    wall_us: int
    parts: tuple[Part, ...]
    passed: int  # below it every message has been handed out or does not exist
    keys: bytes = b""  # a uint64 for each new message, in the order of the parts; b"": not asked
    until_us: int = 0  # when it ends by the wall clock (`GroupQueue`); 0: nobody knows

    def __len__(self) -> int:
        """How many messages."""
        return sum([part.offsets.count for part in self.parts])


class Acked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Messages are done."""

    nonce: int
    offsets: Offsets


class Nacked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """Messages were given back, and wait before they are handed out again."""

    at_ns: int
    nonce: int
    offsets: Offsets
    delay_ns: int
    error: str = ""


class Rejected(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """Messages were given up; they are among the dead letters already."""

    nonce: int
    offsets: Offsets
    reason: Reason


class Extended(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """A lease was given this long from now on, for some of its messages or, if EMPTY, for all."""

    at_ns: int
    nonce: int
    visibility_ns: int
    offsets: Offsets = EMPTY
    until_us: int = 0  # as in `Leased`


class Expired(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """A lease ran out; what was left of it may be handed out again, perhaps after a delay."""

    at_ns: int
    nonce: int
    offsets: Offsets
    delay_ns: int = 0


class Dropped(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """Messages outlived their TTL before anyone got them (again)."""

    parts: tuple[Part, ...]
    passed: int


class Passed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=8):
    """Below this every message has been handed out or does not exist."""

    offset: int


class Trimmed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=9):
    """Everything below is done with: retention dropped it, or the group was purged."""

    before: int


class Sought(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=10):
    """The group starts again from an offset, whatever was done there before."""

    offset: int


class Truncated(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=11):
    """The log lost its end in a power cut; offsets from here on will be given out anew."""

    end: int


class TimePassed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=12):
    """Time went on while messages were in flight or waited for a retry, and nothing else told."""

    at_ns: int
    jumped_us: int  # by how much the wall clock was set, in all, while the broker was up


Event = (
    Leased
    | Acked
    | Nacked
    | Rejected
    | Extended
    | Expired
    | Dropped
    | Passed
    | Trimmed
    | Sought
    | Truncated
    | TimePassed
)


def decode(data: bytes | memoryview) -> list[Event]:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"not a ledger entry: {exc}") from exc


encode: Callable[[Sequence[Event]], bytes] = msgspec.msgpack.Encoder(enc_hook=encode_hook).encode
"""The events of one decision as one ledger entry."""

_decoder = msgspec.msgpack.Decoder(list[Event], dec_hook=decode_hook)
