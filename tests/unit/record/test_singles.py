"""Runs of single messages: what they give is what reading frame by frame gives, and no more."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from penstock.record.batch import Batch
from penstock.record.frame import decode
from penstock.record.salt import PLAIN, Salt
from penstock.record.schema import READ_SCHEMA
from penstock.record.singles import RUN_MIN, Singles, read_singles
from penstock.record.writing import encode_single
from tests.unit.record.forge import alter, body_of, forge

FIRST = 40


def frames_of(count: int, random: Random, salt: Salt = PLAIN) -> list[bytes]:
    """Frames of values of all short lengths, at five priorities and times of any order."""
    return [
        b"".join(
            encode_single(
                random.randbytes(random.choice([0, 1, 7, 8, 9, 100, 3000])),
                FIRST + nth,
                random.getrandbits(104) << 24,
                random.randrange(1 << 50),
                random.randrange(5),
                salt,
            ).buffers
        )
        for nth in range(count)
    ]


def read(frames: list[bytes], skip: int = 0, count: int = 99, **limits: Any) -> Singles:
    run = read_singles(
        memoryview(b"".join(frames)),
        limits.get("position", 0),
        limits.get("salt", PLAIN),
        FIRST,
        skip,
        count,
        limits.get("bytes_max", 1 << 30),
    )
    assert run is not None
    singles, end = run
    assert end == sum(map(len, frames[: skip + len(singles)])), "it says where it ended"
    return singles


def one_by_one(frames: list[bytes], salt: Salt = PLAIN) -> list[Batch]:
    return [decode(memoryview(frame), 0, salt).batch for frame in frames]


@pytest.mark.parametrize("seed", range(5))
def test_a_run_is_what_its_frames_are(seed: int) -> None:
    random, salt = Random(seed), Salt.random()
    frames = frames_of(20, random, salt)

    singles = read(frames, salt=salt)

    batches = one_by_one(frames, salt)
    assert singles.messages() == [message for batch in batches for message in batch.messages()]
    table = pa.Table.from_batches([singles.record_batch()])
    assert table == pa.Table.from_batches([b.record_batch() for b in batches], READ_SCHEMA)
    assert singles.payload_bytes == sum(batch.payload_bytes for batch in batches)
    assert singles.frames_bytes == sum(map(len, frames))
    assert (singles.base_offset, singles.next_offset) == (FIRST, FIRST + 20)


def test_some_rows_of_a_run_stay_at_their_offsets() -> None:
    singles = read(frames_of(20, Random(1)))
    every = singles.messages()

    apart = singles.take([2, 5, 11])

    assert singles.slice(3, 4).messages() == every[3:7]
    assert apart.messages() == [every[2], every[5], every[11]]
    assert apart.slice(1).messages() == [every[5], every[11]]
    for part in (singles.slice(3, 4), singles.slice(18), apart, apart.slice(1)):
        in_columns = Batch(part.data, part.columns, priority=part.priority)
        in_columns.base_offset = part.base_offset
        assert in_columns.messages() == part.messages()
        assert part.offset_numbers().tolist() == [message.offset for message in part.messages()]
        assert part.next_offset == part.messages()[-1].offset + 1


def test_a_run_of_one_priority_needs_no_column_of_it() -> None:
    frames = [alter(frame, priorities=1 << 4) for frame in frames_of(9, Random(2))]

    singles = read(frames)

    assert singles.priority_mask == 1 << 4
    assert "priority" not in singles.data.schema.names
    assert singles.priorities.to_pylist() == [4] * 9


def test_a_run_keeps_its_limits() -> None:
    frames = frames_of(20, Random(3))
    every = read(frames).messages()

    assert read(frames, skip=4, count=7).messages() == every[4:11]
    room = sum(map(len, frames[4:10]))
    assert read(frames, skip=4, bytes_max=room).messages() == every[4:10]
    assert read(frames, skip=4, bytes_max=room - 1).messages() == every[4:9]
    cut = [*frames[:9], frames[9][:-1]]
    assert read(cut).messages() == every[:9]


@pytest.mark.parametrize(
    "fields",
    [
        {"magic": b"PNSL"},
        {"crc": 7},
        {"version": 2},
        {"flags": 1},
        {"codec": 1},
        {"priorities": 0},
        {"priorities": 0b11},
        {"priorities": 1 << 5},
        {"priorities": 1 << 2 | 1 << 7},
        {"columns": 0},
        {"columns": 0b11000},
        {"reserved": 1},
        {"raw_bytes": 8},
        {"base_offset": FIRST + 5},
        {"span": 2},
        {"row_count": 0},
        {"row_count": 2},
        {"first_timestamp": 1 << 52},
    ],
    ids=lambda fields: "=".join(map(str, *fields.items())),
)
def test_a_run_ends_before_a_frame_that_is_no_single_message(fields: dict[str, Any]) -> None:
    frames = frames_of(9, Random(4))
    every = read(frames).messages()
    frames[6] = alter(frames[6], **fields)

    assert read(frames).messages() == every[:6]


def test_a_run_ends_before_a_body_that_is_no_single_value() -> None:
    frames = frames_of(9, Random(5))
    every = read(frames).messages()
    honest = body_of({"value": [b"12345678"]})
    for at in range(0, len(honest) - 8, 4):  # each word of Arrow's metadata, and both ends
        body = bytearray(honest)
        body[at] ^= 0x10
        frames[6] = forge(bytes(body), base_offset=FIRST + 6)

        assert read(frames).messages() == every[:6], at

    frames[6] = forge(body_of({"value": [None]}), base_offset=FIRST + 6)
    assert read(frames).messages() == every[:6]


def test_few_frames_are_no_run() -> None:
    frames = frames_of(RUN_MIN + 3, Random(6))
    buffer = memoryview(b"".join(frames))

    assert read_singles(buffer, 0, PLAIN, FIRST, 4, 99, 1 << 30) is None
    assert read_singles(buffer, 0, PLAIN, FIRST, 0, RUN_MIN - 1, 1 << 30) is None
    assert read_singles(buffer, 0, PLAIN, FIRST, RUN_MIN + 4, 99, 1 << 30) is None
    assert read_singles(buffer[:0], 0, PLAIN, FIRST, 0, 99, 1 << 30) is None
