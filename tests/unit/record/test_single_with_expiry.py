from __future__ import annotations

import pytest

from penstock.record.batch import Batch
from penstock.record.frame import EXPIRES, decode_rows, read_header
from penstock.record.plain import Single
from penstock.record.single_with_expiry import SingleWithExpiry, single_of_body
from penstock.record.writing import encode


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, 5000])
def test_single_message_with_expiry_is_laid_down_as_arrow_does(length: int) -> None:
    value, expires_at_us = b"x" * length, 1_900_000_000_000_000
    single = Single(value).expiring(expires_at_us)
    batch = Batch.build([value]).expiring(expires_at_us)

    assert type(single) is SingleWithExpiry
    assert type(batch) is Batch
    assert single.body() == bytes(batch.data.serialize())
    one, other = encode(single, 7, 1 << 90, 5), encode(batch, 7, 1 << 90, 5)
    assert b"".join(map(bytes, one.buffers)) == b"".join(map(bytes, other.buffers))
    assert one.priorities == other.priorities
    assert one.priorities & EXPIRES


def test_message_with_expiry_is_the_same_from_memory_as_from_its_frame() -> None:
    single = SingleWithExpiry(b"value", 99, priority=1)

    frame = memoryview(b"".join(map(bytes, encode(single, 7, 1 << 90, 5).buffers)))
    read = decode_rows(frame, 0, read_header(frame, 0))

    stored = single.stored_at(7, 1 << 90, 5)
    assert type(read) is SingleWithExpiry
    assert stored.messages() == read.messages()
    assert stored == read
    assert stored.expires_us().tolist() == read.expires_us().tolist() == [99]


def test_moment_that_a_message_has_stays() -> None:
    single = SingleWithExpiry(b"value", 99)

    assert single.expiring(5).messages()[0].expires_at_us == 99
    assert single.stamped(7).timestamp_us == 7
    assert single.slice(0, 1).messages() == single.messages()
    assert len(single.slice(1, 0)) == 0
    assert single.with_headers([{"h": b"1"}]).messages()[0].headers == {"h": b"1"}


@pytest.mark.parametrize("length", [0, 1, 8, 100])
def test_body_is_read_without_arrow_only_if_it_is_laid_down_to_the_byte(length: int) -> None:
    body = SingleWithExpiry(b"v" * length, 99).body()
    moment_and_value = slice(body.index((99).to_bytes(8, "little")), len(body))

    assert single_of_body(memoryview(body)) == (b"v" * length, 99)
    for cut in range(len(body)):
        assert single_of_body(memoryview(body[:cut])) is None
    for at in range(moment_and_value.start):
        changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        assert single_of_body(memoryview(changed)) is None
    if length % 8:  # what fills up to 8 bytes is zero
        assert single_of_body(memoryview(body[:-1] + b"\1")) is None
