"""The stored form of events: pinned, compact, and closed to what is not an event."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.ledger import (
    Acked,
    Dropped,
    Event,
    Expired,
    Extended,
    Leased,
    Nacked,
    Part,
    Passed,
    Rejected,
    Sought,
    TimePassed,
    Trimmed,
    Truncated,
    decode,
    encode,
)
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.errors import InvalidInput

HOLES = Offsets.of([3, 4, 9])
EVERY_EVENT: list[Event] = [
    Leased(1, 2, 3, "anna", 4, (Part(0, HOLES, 1, 7), Part(2, Offsets.one(5), 2)), 6, b"k" * 24),
    Acked(2, HOLES),
    Nacked(1, 2, HOLES, 3, "boom"),
    Rejected(2, HOLES, "rejected"),
    Extended(1, 2, 3, EMPTY),
    Extended(1, 2, 3, HOLES),
    Expired(1, 2, HOLES),
    Dropped((Part(1, HOLES, 0),), 9),
    Passed(7),
    Trimmed(8),
    Sought(9),
    Truncated(10),
    TimePassed(11, -12),
]


def test_the_stored_form_does_not_change() -> None:
    """Written once by hand. Whoever changes the format must still read this."""
    golden = bytes.fromhex(
        "95"
        "9a 01 01 02 03 a4616e6e61 04 91 94 02 93 05 02 c0 01 ff 07 c400 08"
        "93 02 02 93 05 01 c0"
        "96 03 01 02 93 06 01 c0 cd03e8 a4626f6f6d"
        "95 06 09 02 93 06 01 c0 0a"
        "93 0c 09 fe".replace(" ", "")
    )
    events = [
        Leased(1, 2, 3, "anna", 4, (Part(2, Offsets.run(5, 7)),), 7, b"", 8),
        Acked(2, Offsets.one(5)),
        Nacked(1, 2, Offsets.one(6), 1000, "boom"),
        Expired(9, 2, Offsets.one(6), 10),
        TimePassed(9, -2),
    ]

    assert encode(events) == golden
    assert decode(golden) == events


def test_what_was_stored_before_leases_had_an_end_by_the_wall_clock_is_still_read() -> None:
    golden = bytes.fromhex(
        "93"
        "99 01 01 02 03 a4616e6e61 04 91 94 02 93 05 02 c0 01 ff 07 c400"
        "95 05 01 02 03 93 00 00 c0"
        "94 06 01 02 93 06 01 c0".replace(" ", "")
    )
    assert decode(golden) == [
        Leased(1, 2, 3, "anna", 4, (Part(2, Offsets.run(5, 7)),), 7),
        Extended(1, 2, 3),
        Expired(1, 2, Offsets.one(6)),
    ]


def test_a_bitmap_is_stored_in_the_portable_format_of_roaring() -> None:
    entry = encode([Acked(1, HOLES)])

    # One bucket of 2^32, in it one array container, key 0, with three values at byte 16.
    bucket, container = "0100000000000000 00000000", "3a300000 01000000 0000 0200 10000000"
    assert (bucket + container + "0300 0400 0900").replace(" ", "") in entry.hex()


def test_every_event_comes_back() -> None:
    assert decode(encode(EVERY_EVENT)) == EVERY_EVENT


def test_an_ack_is_small_whether_of_one_message_or_of_ten_thousand() -> None:
    offset, nonce = 10**10, 1 << 59

    assert len(encode([Acked(nonce, Offsets.one(offset))])) < 32
    assert len(encode([Acked(nonce, Offsets.run(offset, offset + 10_000))])) < 32
    with_holes = Offsets.of(o for o in range(offset, offset + 10_000) if o % 1000)
    assert len(encode([Acked(nonce, with_holes)])) < 110
    scattered = Offsets.of(range(offset, offset + 30_000, 3))
    assert len(encode([Acked(nonce, scattered)])) < 20_000


@given(st.lists(st.sampled_from(EVERY_EVENT), max_size=5), st.data())
def test_damaged_bytes_are_an_error_with_a_code(events: list[Event], data: st.DataObject) -> None:
    entry = bytearray(encode(events))
    where = data.draw(st.integers(0, len(entry) - 1))
    entry[where] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(entry)))

    for damaged in (bytes(entry), bytes(entry[:cut])):
        with suppress(InvalidInput):
            decode(damaged)


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x91\x91\x63", b"\x91\x92\x08\xa1x", b"\x90\x90"])
def test_what_is_not_an_entry_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode(data)
