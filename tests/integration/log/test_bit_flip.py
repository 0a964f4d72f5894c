"""Every bit of a segment and of its index is flipped: no wrong byte is served, damage is told.

`make test` flips every bit of the frame headers and a seeded sample of the others, `make torture`
every single one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import NamedTuple

import pytest

from penstock.config import LogConfig
from penstock.log.base import Batches
from penstock.log.inspect import inspect_log
from penstock.log.local import LocalLog
from penstock.log.log_reader import LogReader
from penstock.log.segment_header import SEGMENT_HEADER_BYTES
from penstock.record.batch import Batch, Message
from penstock.record.frame import HEADER_BYTES
from tests.integration.log.image import FOLDER, Image, image_of, in_memory, open_log
from tests.segment_file import frames_of
from tests.simulation.disk import SimulatedFiles

SEED = 2026
CONFIG = LogConfig(fsync="never", segment_bytes=64 << 10, free_bytes_min=0)
SEALED = f"{FOLDER}/{0:020}.log"
INDEX = f"{FOLDER}/{0:020}.index"


class Frame(NamedTuple):
    position: int
    end: int
    first_offset: int
    next_offset: int

    def bits(self) -> range:
        return range(self.position * 8, self.end * 8)

    def header_bits(self) -> range:
        return range(self.position * 8, (self.position + HEADER_BYTES) * 8)


class Original:
    """A log with a sealed segment of 64 KB and one that is being written; all of it is durable."""

    def __init__(self) -> None:
        rng = Random(SEED)
        files = SimulatedFiles()
        log = open_log(FOLDER, CONFIG, files)
        log.append(_some_batch(rng, 20))
        while len(log.segments) < 2 or log.segments[-1].size_bytes < 8 << 10:
            log.append(_some_batch(rng, rng.randint(1, 20)))
        log.trim(5)
        log.sync()
        self.start, self.end = log.start, log.end
        self.active = log.segments[-1].path
        self.messages = _read_all(log)
        self.image: Image = image_of(files, FOLDER)
        self.sealed_frames = list(_frames(files.read(SEALED)))
        self.active_frames = list(_frames(files.read(self.active)))
        assert len(files.read(SEALED)) > 60_000

    def check_read(self, batches: Batches, offset: int) -> None:
        """All that was served is right, and all that was not is named as damage."""
        served = batches.messages()
        assert served == [self.messages[message.offset] for message in served]
        told = {o for d in batches.damage for o in range(d.first_offset, d.next_offset)}
        silent = set(range(offset, batches.next_offset)) - told - {m.offset for m in served}
        assert not silent, f"offsets {sorted(silent)} are gone without a word"

    def check_log(self, log: LocalLog | LogReader, damaged: Frame | None = None) -> None:
        """The whole log is as it was, but for one frame that is told to be damaged."""
        assert (log.start, log.end) == (self.start, self.end)
        served = _read_all(log)
        lost = range(damaged.first_offset, damaged.next_offset) if damaged else range(0)
        assert served == {o: m for o, m in self.messages.items() if o not in lost}
        told = {o for d in log.damage for o in range(d.first_offset, d.next_offset)}
        assert told - set(range(self.start)) == set(lost) - set(range(self.start))

    def check_searches(self, log: LocalLog | LogReader, damaged: Frame | None = None) -> None:
        """What the index answers is right, however it came about."""
        lost = range(damaged.first_offset, damaged.next_offset) if damaged else range(0)
        for offset in range(self.start, self.end, 37):
            batches = log.read(offset, max_bytes=1)
            self.check_read(batches, offset)
            for priority in range(5):
                block = log.next_block(offset, 1 << priority)
                between = [self.messages[o] for o in range(offset, block) if o not in lost]
                assert all(message.priority != priority for message in between)


@pytest.fixture(scope="module")
def original() -> Original:
    return Original()


# A segment that is sealed: its damage is found when it is read.


def test_flipped_bit_in_a_sealed_segment(original: Original) -> None:
    rng = Random(SEED)
    flip_while_open(original, lambda frame: [*frame.header_bits(), *rng.sample(frame.bits(), 100)])


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_every_flipped_bit_in_a_sealed_segment(original: Original) -> None:
    flips = flip_while_open(original, Frame.bits)
    print(f"\n{flips} bits of a sealed segment flipped, each told")
    assert flips == (original.sealed_frames[-1].end - SEGMENT_HEADER_BYTES) * 8


def flip_while_open(original: Original, bits_of: Callable[[Frame], Iterable[int]]) -> int:
    """The disk goes bad under an open log, one bit at a time; how many bits that were."""
    files = in_memory(original.image)
    log = open_log(FOLDER, CONFIG, files)
    flips = 0
    for frame in original.sealed_frames:
        offset = max(frame.first_offset, log.start)
        for bit in bits_of(frame):
            files.rot(SEALED, bit)
            batches = log.read(offset, max_bytes=1)
            assert batches.damage, f"nobody noticed bit {bit}"
            original.check_read(batches, offset)
            files.rot(SEALED, bit)
            flips += 1
    return flips


@pytest.mark.parametrize("open_as", ["writer", "reader"])
def test_flipped_bit_is_found_after_opening(original: Original, open_as: str) -> None:
    rng = Random(SEED)
    for frame in original.sealed_frames:
        for bit in rng.sample(frame.bits(), 4):
            files = in_memory(original.image)
            files.rot(SEALED, bit)
            log = open_log(FOLDER, CONFIG, files) if open_as == "writer" else outside(files)
            original.check_log(log, damaged=frame)


# The segment that is being written: its damage is found when the log is opened.


def test_flipped_bit_in_the_active_segment(original: Original) -> None:
    rng = Random(SEED)
    for frame in original.active_frames:
        for bit in [*rng.sample(frame.header_bits(), 40), *rng.sample(frame.bits(), 10)]:
            flip_and_open(original, original.active, bit, damaged=frame)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_every_flipped_bit_in_the_active_segment(original: Original) -> None:
    flips = 0
    for frame in original.active_frames:
        for bit in frame.bits():
            flip_and_open(original, original.active, bit, damaged=frame)
            flips += 1
    print(f"\n{flips} bits of an active segment flipped, each told")


# The header of a segment: it is there twice, and the index of a sealed one has its salt.


@pytest.mark.parametrize("segment", ["sealed", "active"])
@pytest.mark.parametrize("open_as", ["writer", "reader"])
def test_every_flipped_bit_in_the_header_of_a_segment(
    original: Original, segment: str, open_as: str
) -> None:
    path = SEALED if segment == "sealed" else original.active
    for bit in range(SEGMENT_HEADER_BYTES * 8):
        files = in_memory(original.image)
        files.rot(path, bit)
        assert [d.file for d in inspect_log(FOLDER, files=files).damage] == [_name(path)]
        log = open_log(FOLDER, CONFIG, files) if open_as == "writer" else outside(files)
        original.check_log(log)
        if (segment, open_as) == ("active", "writer"):
            assert [d.segment for d in log.damage] == [_name(path)]


@pytest.mark.parametrize("open_as", ["writer", "reader"])
def test_header_that_is_lost_is_made_up_for_by_the_index(original: Original, open_as: str) -> None:
    files = in_memory(original.image)
    files.open(SEALED).overwrite(0, bytes(SEGMENT_HEADER_BYTES))
    assert [d.file for d in inspect_log(FOLDER, files=files).damage] == [_name(SEALED)]
    log = open_log(FOLDER, CONFIG, files) if open_as == "writer" else outside(files)
    original.check_log(log)


@pytest.mark.parametrize("segment", ["sealed", "active"])
@pytest.mark.parametrize("open_as", ["writer", "reader"])
def test_segment_of_which_nobody_knows_the_salt_is_lost_and_told(
    original: Original, segment: str, open_as: str
) -> None:
    files = in_memory(original.image)
    path = SEALED if segment == "sealed" else original.active
    files.open(path).overwrite(0, bytes(SEGMENT_HEADER_BYTES))
    if segment == "sealed":
        files.remove(INDEX)
    frames = original.sealed_frames if segment == "sealed" else original.active_frames
    gone = Frame(0, 0, frames[0].first_offset, frames[-1].next_offset)
    before = files.read(path)
    for _ in range(2):
        told = [d for d in inspect_log(FOLDER, files=files).damage if d.file == _name(path)]
        assert (told[0].first_offset, told[0].next_offset) == gone[2:]
        log = open_log(FOLDER, CONFIG, files) if open_as == "writer" else outside(files)
        original.check_log(log, damaged=gone)
        log.close()
    assert files.read(path) == before  # evidence is kept


# An index: it is made again, and nothing is lost.


def test_flipped_bit_in_an_index(original: Original) -> None:
    bits = range(len(original.image[_name(INDEX)]) * 8)
    for bit in Random(SEED).sample(bits, 200):
        flip_and_open(original, INDEX, bit)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_every_flipped_bit_in_an_index(original: Original) -> None:
    bits = range(len(original.image[_name(INDEX)]) * 8)
    for bit in bits:
        flip_and_open(original, INDEX, bit)
    print(f"\n{len(bits)} bits of an index flipped, nothing lost")


@pytest.mark.parametrize("open_as", ["writer", "reader"])
def test_index_that_goes_bad_under_an_open_log(original: Original, open_as: str) -> None:
    bits = range(len(original.image[_name(INDEX)]) * 8)
    for bit in Random(SEED).sample(bits, 100):
        files = in_memory(original.image)
        log = open_log(FOLDER, CONFIG, files) if open_as == "writer" else outside(files)
        files.rot(INDEX, bit)
        original.check_log(log)
        original.check_searches(log)


# The small files: what is durable, where the log starts.


@pytest.mark.parametrize("name", ["durable", "start"])
def test_every_flipped_bit_in_a_mark(original: Original, name: str) -> None:
    for bit in range(len(original.image[name]) * 8):
        files = in_memory(original.image)
        files.rot(f"{FOLDER}/{name}", bit)
        log = open_log(FOLDER, CONFIG, files)
        assert log.end == original.end
        for offset, message in _read_all(log).items():
            if offset >= original.start:
                assert message == original.messages[offset]
        assert {m for m in original.messages if m >= log.start} <= _read_all(log).keys()


def flip_and_open(original: Original, path: str, bit: int, damaged: Frame | None = None) -> None:
    files = in_memory(original.image)
    files.rot(path, bit)
    with open_log(FOLDER, CONFIG, files) as log:
        original.check_log(log, damaged)
        original.check_searches(log, damaged)
    # What was put in order stays so, and what is lost is told again.
    with open_log(FOLDER, CONFIG, files) as log:
        original.check_log(log, damaged)


def outside(files: SimulatedFiles) -> LogReader:
    return LogReader.open(FOLDER, files=files)


def _some_batch(rng: Random, rows: int) -> Batch:
    return Batch.build(
        [rng.randbytes(rng.randint(0, 300)) for _ in range(rows)],
        keys=[b"k%d" % rng.randint(0, 9) for _ in range(rows)],
        priority=[rng.randint(0, 4) for _ in range(rows)],
    )


def _frames(segment: bytes) -> Iterator[Frame]:
    for position, end, header in frames_of(segment):
        yield Frame(position, end, header.base_offset, header.next_offset)


def _read_all(log: LocalLog | LogReader) -> dict[int, Message]:
    messages: dict[int, Message] = {}
    offset = log.start
    while offset < log.end:
        batches = log.read(offset)
        messages |= {message.offset: message for message in batches.messages()}
        offset = batches.next_offset
    return messages


def _name(path: str) -> str:
    return path.rpartition("/")[2]
