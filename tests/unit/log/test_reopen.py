"""Opening a folder again: after a close, after leftovers, after damage."""

from pathlib import Path

import pytest

from penstock.errors import DiskFull, LogError, LogFailed, LogNotFound
from penstock.log.inspect import inspect_log
from penstock.log.local import LocalLog
from penstock.log.log_reader import LogReader
from penstock.log.segment import segment_name
from penstock.log.segment_header import SEGMENT_HEADER_BYTES
from penstock.record.batch import Batch
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import offsets, read_all, values
from tests.unit.log.watched import WatchedFiles


def filled(open_log: Opener, count: int = 30, roll_every: int = 10) -> LocalLog:
    log = open_log()
    for number in range(count):
        log.append(Batch.build([b"%d" % number]))
        if number % roll_every == roll_every - 1 and number + 1 < count:
            log.roll()
    return log


def frame_at(log: LocalLog, offset: int) -> tuple[str, int]:
    """In which file a message lies, and where its frame begins."""
    segment = log.span_at(offset)
    before = [h.frame_bytes for h in log.headers(segment.base_offset) if h.base_offset < offset]
    return segment.name, SEGMENT_HEADER_BYTES + sum(before)


def test_everything_is_there_after_a_close(open_log: Opener) -> None:
    filled(open_log).close()
    log = open_log()
    assert values(log) == [b"%d" % number for number in range(30)]
    assert (log.start, log.end, log.durable_end) == (0, 30, 30)
    assert log.append(Batch.build(["30"])).first_offset == 30
    assert len(log.segments) == 3


def test_opening_and_closing_changes_nothing(open_log: Opener, folder: Path) -> None:
    filled(open_log).close()

    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "LOCK"}

    before = content()
    for _ in range(3):
        open_log().close()
    assert content() == before


def test_opening_makes_the_folders_that_are_missing(tmp_path: Path, open_log: Opener) -> None:
    log = open_log(tmp_path / "a" / "b" / "c")
    log.append(Batch.build(["x"]))
    assert (tmp_path / "a" / "b" / "c" / segment_name(0)).exists()


def test_a_file_in_the_place_of_the_folder_is_a_clear_error(
    tmp_path: Path, open_log: Opener
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(LogError, match="file"):
        open_log(tmp_path / "file")
    with pytest.raises(LogNotFound):
        LogReader.open(tmp_path / "file")


def test_leftovers_of_an_interrupted_step_are_swept_away(open_log: Opener, folder: Path) -> None:
    filled(open_log).close()
    for name in ("00000000000000000000.g1.log.tmp", "start.tmp", "00000000000000000010.index.tmp"):
        (folder / name).write_bytes(b"half")
    assert offsets(open_log()) == list(range(30))
    assert not [path for path in folder.iterdir() if path.suffix == ".tmp"]


def test_files_of_other_people_are_left_alone(open_log: Opener, folder: Path) -> None:
    filled(open_log).close()
    (folder / "notes.txt").write_text("mine")
    (folder / "1.log").write_text("mine too")
    log = open_log()
    assert offsets(log) == list(range(30))
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "1.log").read_text() == "mine too"


@pytest.mark.parametrize("cut", [1, 50, 97, 150])
def test_a_torn_tail_that_nobody_was_promised_is_cut(
    open_log: Opener, folder: Path, cut: int
) -> None:
    log = filled(open_log, 5, 10)
    log.sync()
    whole = (folder / segment_name(0)).read_bytes()
    log.append(Batch.build(["torn"]))
    log.close()
    (folder / "durable").unlink()
    torn = (folder / segment_name(0)).read_bytes()
    (folder / segment_name(0)).write_bytes(torn[: len(whole) + cut])
    log = open_log()
    assert offsets(log) == list(range(5))
    assert log.damage == []
    assert (folder / segment_name(0)).read_bytes() == whole
    assert log.append(Batch.build(["new"])).first_offset == 5
    assert values(log)[-1] == b"new"


@pytest.mark.parametrize("offset", [0, 5, 9, 10, 15, 25])
def test_a_damaged_frame_is_skipped_and_reported_with_its_offsets(
    open_log: Opener, folder: Path, offset: int
) -> None:
    log = filled(open_log)
    log.sync()
    name, position = frame_at(log, offset)
    log.close()
    data = bytearray((folder / name).read_bytes())
    data[position + 100] ^= 1
    (folder / name).write_bytes(data)
    log = open_log()
    everything = read_all(log)
    assert [m.offset for m in everything.messages()] == [n for n in range(30) if n != offset]
    (damage,) = everything.damage
    assert (damage.segment, damage.position) == (name, position)
    assert (damage.first_offset, damage.next_offset) == (offset, offset + 1)
    assert log.damage == [damage]
    assert f"{name} at byte {position}: offsets {offset} up to {offset + 1} are lost" in str(damage)
    assert bytes(data) == (folder / name).read_bytes()  # evidence is kept
    reader = LogReader.open(folder)
    assert [m.offset for m in read_all(reader).messages()] == [n for n in range(30) if n != offset]
    assert log.append(Batch.build(["more"])).first_offset == 30


def test_damage_is_reported_once_however_often_it_is_met(
    open_log: Opener, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(open_log)
    name, position = frame_at(log, 5)
    log.close()
    data = bytearray((folder / name).read_bytes())
    data[position] ^= 1
    (folder / name).write_bytes(data)
    log = open_log()
    for _ in range(3):
        assert len(read_all(log).damage) == 1
    assert len(log.damage) == 1
    assert len([r for r in caplog.records if "damage in log" in r.getMessage()]) == 1


def test_reading_from_within_the_damage_begins_after_it(open_log: Opener, folder: Path) -> None:
    log = filled(open_log, 10, 100)
    name, position = frame_at(log, 5)
    log.close()
    data = bytearray((folder / name).read_bytes())
    data[position + 20] ^= 1
    (folder / name).write_bytes(data)
    log = open_log()
    step = log.read(5)
    assert [m.offset for m in step.messages()] == [6, 7, 8, 9]
    assert [(d.first_offset, d.next_offset) for d in step.damage] == [(5, 6)]
    assert log.read(6).damage == []


def test_a_missing_segment_is_reported_and_the_rest_is_read(open_log: Opener, folder: Path) -> None:
    filled(open_log).close()
    (folder / segment_name(10)).unlink()
    log = open_log()
    assert [m.offset for m in read_all(log).messages()] == [*range(10), *range(20, 30)]
    assert [(d.first_offset, d.next_offset) for d in log.damage] == [(10, 20)]
    assert log.end == 30


def test_a_missing_first_segment_is_reported_and_not_taken_for_a_trim(
    open_log: Opener, folder: Path
) -> None:
    filled(open_log).close()
    (folder / segment_name(0)).unlink()
    log = open_log()
    assert [(d.first_offset, d.next_offset) for d in log.damage] == [(0, 10)]
    step = log.read(3)
    assert [(d.first_offset, d.next_offset) for d in step.damage] == [(3, 10)]
    assert offsets(log) == list(range(10, 30))
    log.trim(10)
    assert read_all(log).damage == []


def test_durable_messages_that_are_gone_are_reported_not_given_out_again(
    open_log: Opener, folder: Path
) -> None:
    log = filled(open_log, 10, 100)
    log.close()
    (folder / segment_name(0)).write_bytes(b"")
    log = open_log()
    assert [(d.first_offset, d.next_offset) for d in log.damage] == [(0, 10)]
    assert log.append(Batch.build(["new"])).first_offset == 10
    assert read_all(log).messages()[0].value == b"new"


def test_a_segment_that_is_cut_while_the_log_is_open_is_damage_not_a_hang(
    open_log: Opener, folder: Path
) -> None:
    log = filled(open_log)
    log.sync()
    name, position = frame_at(log, 15)
    with (folder / name).open("r+b") as file:
        file.truncate(position + 30)
    everything = read_all(log)
    assert [m.offset for m in everything.messages()] == [*range(15), *range(20, 30)]
    assert [(d.first_offset, d.next_offset) for d in everything.damage] == [(15, 20)]


@pytest.mark.parametrize("name", ["durable", "start"])
@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 12, b"\x00" * 100])
def test_a_damaged_mark_is_as_if_it_were_not_there(
    open_log: Opener, folder: Path, name: str, content: bytes
) -> None:
    log = filled(open_log)
    log.trim(5)
    log.close()
    (folder / name).write_bytes(content)
    log = open_log()
    assert log.end == 30
    assert log.start == (5 if name == "durable" else 0)
    assert offsets(log) == list(range(log.start, 30))


def test_a_folder_that_cannot_be_read_is_a_clear_error(
    open_log: Opener, files: WatchedFiles
) -> None:
    filled(open_log).close()

    def broken(what: str, name: str) -> None:
        if what == "map":
            raise OSError(5, "Input/output error")

    files.before = broken
    with pytest.raises(LogFailed, match="Input/output error"):
        open_log()
    files.before = None
    assert offsets(open_log()) == list(range(30))


@pytest.mark.parametrize("left_bytes", [0, 1, 31, 32, 40, 63, 64])
def test_a_segment_whose_header_was_being_written_is_begun_anew(
    open_log: Opener, folder: Path, left_bytes: int
) -> None:
    filled(open_log).close()
    begun = (folder / segment_name(0)).read_bytes()[:SEGMENT_HEADER_BYTES]
    (folder / segment_name(30)).write_bytes(begun[:left_bytes])
    assert inspect_log(folder).damage == []
    assert LogReader.open(folder).end == 30
    log = open_log()
    assert log.damage == []
    log.append(Batch.build([b"30"]))
    log.close()
    assert values(open_log()) == [b"%d" % number for number in range(31)]


def test_a_header_without_room_leaves_the_log_as_it_was(
    open_log: Opener, folder: Path, files: WatchedFiles
) -> None:
    log = filled(open_log, 5, 10)
    (folder / segment_name(5)).symlink_to("/dev/full")
    with pytest.raises(DiskFull):
        log.roll()
    (folder / segment_name(5)).unlink()
    log.roll()
    log.append(Batch.build([b"5"]))
    assert values(log) == [b"%d" % number for number in range(6)]
    assert len(log.segments) == 2
