"""The last frames of a log are cut at every byte, zeroed, overwritten with garbage.

What was not durable yet is cut off at the last whole frame, and nothing else. What was durable is
never cut: it is reported as damage, and its offsets are not given to other messages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from penstock.config import LogConfig
from penstock.log.local import LocalLog
from penstock.record.batch import Batch, Message
from tests.integration.log.image import FOLDER, Image, image_of, in_memory, on_disk, open_log
from tests.segment_file import frames_of
from tests.simulation.disk import SimulatedFiles

FRAMES = 6
ROWS = 3
SEGMENT = f"{0:020}.log"
CONFIG = LogConfig(fsync="never", free_bytes_min=0)

Tear = Callable[[bytes, int], bytes]

TEARS: dict[str, Tear] = {
    "cut": lambda data, at: data[:at],
    "zero fill": lambda data, at: data[:at] + bytes(len(data) - at),
    "garbage fill": lambda data, at: data[:at] + Random(at).randbytes(len(data) - at),
    "zeros beyond": lambda data, at: data[:at] + bytes(4096),
    "stale frames beyond": lambda data, at: data[:at] + bytes(-at % 8) + data[:at],
}


def values(frame: int) -> list[bytes]:
    return [b"%d.%d" % (frame, row) for row in range(ROWS)]


def values_of(frames: int) -> list[bytes]:
    """Of the first so many frames."""
    return [value for frame in range(frames) for value in values(frame)]


@pytest.fixture(scope="module")
def untorn() -> Image:
    """A log of which all but the last two frames is durable."""
    files = SimulatedFiles()
    log = open_log(FOLDER, CONFIG, files)
    for frame in range(FRAMES):
        log.append(Batch.build(values(frame), keys=[b"k"] * ROWS))
        if frame == FRAMES - 3:
            log.sync()
    return image_of(files, FOLDER)


def frame_ends(segment: bytes) -> list[int]:
    return [frame.end for frame in frames_of(segment)]


def whole_frames(segment: bytes, torn: bytes) -> int:
    """How many frames came through: the zeros at a frame's end survive being zeroed."""
    return sum(torn[:end] == segment[:end] for end in frame_ends(segment))


def check_cut(log: LocalLog, frames: int) -> None:
    """Exactly the whole frames are there, and the log goes on behind them."""
    with log:
        assert log.damage == []
        assert log.end == frames * ROWS
        log.append(Batch.build([b"next"]))
        found = [message.value for message in log.read(0).messages()]
        assert found == [*values_of(frames), b"next"]


@pytest.mark.parametrize("tear", TEARS)
def test_tail_torn_at_every_byte_is_cut_at_the_last_whole_frame(untorn: Image, tear: str) -> None:
    segment = untorn[SEGMENT]
    ends = frame_ends(segment)
    for at in range(ends[-3], len(segment)):
        torn = TEARS[tear](segment, at)
        log = open_log(FOLDER, CONFIG, in_memory({**untorn, SEGMENT: torn}))
        check_cut(log, whole_frames(segment, torn))


@pytest.mark.parametrize("tear", TEARS)
def test_tail_torn_on_a_real_disk(untorn: Image, tear: str, tmp_path: Path) -> None:
    segment = untorn[SEGMENT]
    ends = frame_ends(segment)
    cuts = [ends[-3], ends[-3] + 1, ends[-2] - 9, ends[-2], ends[-2] + 50, len(segment) - 9]
    for number, at in enumerate(cuts):
        folder = tmp_path / str(number)
        torn = TEARS[tear](segment, at)
        on_disk({**untorn, SEGMENT: torn}, folder)
        check_cut(open_log(folder, CONFIG), whole_frames(segment, torn))


@pytest.mark.parametrize("tear", ["cut", "zero fill", "garbage fill"])
def test_durable_messages_that_are_torn_are_reported_and_their_offsets_kept(
    untorn: Image, tear: str
) -> None:
    segment = untorn[SEGMENT][: frame_ends(untorn[SEGMENT])[-3]]
    durable_end = (FRAMES - 2) * ROWS
    for at in range(0, len(segment), 7):
        torn = TEARS[tear](segment, at)
        whole = whole_frames(segment, torn)
        if torn == segment:
            continue
        log = open_log(FOLDER, CONFIG, in_memory({**untorn, SEGMENT: torn}))

        lost = [d[2:4] for d in log.damage if d.next_offset > d.first_offset]
        assert lost == [(whole * ROWS, durable_end)]  # a copy of the header may be hit, too
        assert log.append(Batch.build([b"next"])).first_offset == durable_end
        found = {message.offset: message.value for message in read_from(log, 0)}
        assert found.pop(durable_end) == b"next"
        assert found == dict(enumerate(values_of(whole)))


def read_from(log: LocalLog, offset: int) -> list[Message]:
    messages = []
    while offset < log.end:
        batches = log.read(offset)
        messages += batches.messages()
        offset = batches.next_offset
    return messages
