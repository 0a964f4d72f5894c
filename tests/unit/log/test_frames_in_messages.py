"""Messages may hold anything, whole frames too. Nobody takes these for the log's own."""

from pathlib import Path

import pytest

from penstock.log.inspect import inspect_log
from penstock.record.batch import Batch
from penstock.record.frame import HEADER_BYTES
from penstock.record.salt import PLAIN, Salt
from penstock.record.writing import encode
from tests.segment_file import frames_of, salt_of
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import offsets, read_all, values

FIRST = "00000000000000000000.log"
MAGIC_AT, LENGTH_AT = 0, 17


def frame(base_offset: int, rows: int = 1, salt: Salt = PLAIN) -> bytes:
    """What a log would write, as a value."""
    batch = Batch.build([b"phantom"] * rows)
    encoded = encode(batch, base_offset, ulid=1 << 100, stamp_us=5, salt=salt)
    return b"".join(map(bytes, encoded.buffers))


def damage_second_frame(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[frames_of(data)[1].position + at] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize("at", [MAGIC_AT, LENGTH_AT])
@pytest.mark.parametrize("base_offset", [0, 1, 2, 3, 1_000_000, (1 << 62)])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_frame_in_a_value_is_no_message(
    open_log: Opener, folder: Path, base_offset: int, at: int, indexed: bool
) -> None:
    log = open_log(segment_bytes=4096)
    log.append(Batch.build([b"one"]))
    log.append(Batch.build([frame(base_offset)]))
    for _ in range(40):
        log.append(Batch.build([b"x" * 500]))
    count = len(log.segments)
    log.close()
    damage_second_frame(folder / FIRST, at)
    if not indexed:
        (folder / FIRST).with_suffix(".index").unlink()
    report = inspect_log(folder)
    assert [(d.first_offset, d.next_offset) for d in report.damage] == [(1, 2)]
    log = open_log(segment_bytes=4096)
    assert (log.end, len(log.segments)) == (42, count)
    found = read_all(log)
    assert [m.offset for m in found.messages()] == [0, *range(2, 42)]
    assert [(d.first_offset, d.next_offset) for d in log.damage] == [(1, 2)]


def test_a_frame_that_is_followed_by_other_bytes_is_no_message(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    log.append(Batch.build([b"one"]))
    log.append(Batch.build([b"two", frame(2), b"four", b"five"]))
    log.append(Batch.build([b"six"]))
    log.close()
    damage_second_frame(folder / FIRST, LENGTH_AT)
    assert values(open_log()) == [b"one", b"six"]


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("first", [0, 1, 2, 3, 20])
def test_a_segment_in_a_message_is_not_taken_for_the_log(
    open_log: Opener, folder: Path, first: int, indexed: bool
) -> None:
    log = open_log(fsync="always")
    log.append(Batch.build([b"one"]))
    log.append(Batch.build([b"".join(frame(first + number) for number in range(300))]))
    for _ in range(50):
        log.append(Batch.build([b"real"]))
    if indexed:
        log.roll()
    log.close()
    size = (folder / FIRST).stat().st_size
    damage_second_frame(folder / FIRST, LENGTH_AT)
    log = open_log()
    assert values(log) == [b"one", *[b"real"] * 50]
    assert log.end == 52
    assert [(d.first_offset, d.next_offset) for d in log.damage] == [(1, 2)]
    assert (folder / FIRST).stat().st_size == size


def test_two_damages_far_from_each_other_cost_no_more_than_what_they_hit(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    places = []
    for number in range(100):
        places.append(log.size_bytes)
        log.append(Batch.build([b"%d" % number]))
    log.close()
    data = bytearray((folder / FIRST).read_bytes())
    for number in (10, 60):
        data[places[number]] ^= 1
    (folder / FIRST).write_bytes(data)
    assert offsets(open_log()) == [n for n in range(100) if n not in (10, 60)]


def test_the_last_whole_frame_is_found_before_one_that_was_being_written(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    for value in (b"one", b"two", b"three"):
        log.append(Batch.build([value]))
    log.close()
    damage_second_frame(folder / FIRST, LENGTH_AT)
    being_written = frame(3, salt=salt_of((folder / FIRST).read_bytes()))
    for torn in (being_written[:40], being_written[: HEADER_BYTES + 20], bytes(500)):
        with (folder / FIRST).open("ab") as file:
            file.write(torn)
        log = open_log()
        assert values(log) == [b"one", b"three"]
        log.close()


def test_a_segment_of_another_log_in_a_message_is_not_taken_for_the_log(
    open_log: Opener, folder: Path, tmp_path: Path
) -> None:
    with open_log(tmp_path / "other") as other:
        for _ in range(10):
            other.append(Batch.build([b"phantom"]))
    stolen = (tmp_path / "other" / FIRST).read_bytes()
    log = open_log()
    log.append(Batch.build([b"one"]))
    log.append(Batch.build([stolen]))
    log.append(Batch.build([b"three"]))
    log.close()
    damage_second_frame(folder / FIRST, LENGTH_AT)
    assert values(open_log()) == [b"one", b"three"]


def test_no_two_segments_have_the_same_salt(open_log: Opener, folder: Path) -> None:
    log = open_log()
    for number in range(30):
        log.append(Batch.build([b"x" * 100], expires_at_us=number))
        log.roll()
    log.append(Batch.build([b"x" * 100]))
    log.sync()
    before = {salt_of(path.read_bytes()) for path in folder.glob("*.log")}
    log.compact(now_us=15)
    after = {salt_of(path.read_bytes()) for path in folder.glob("*.g1.log")}
    assert len(before) == 31
    assert after
    assert not before & after
    assert PLAIN not in before | after
