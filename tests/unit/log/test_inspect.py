"""What inspect tells of a log: all that is there, every damage, and no false alarm."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from penstock.config import FsyncPolicy, LogConfig
from penstock.errors import LogError, LogNotFound
from penstock.log.files import DiskFiles
from penstock.log.index import decode as decode_index
from penstock.log.inspect import find_logs, inspect_log, inspect_segment, segment_bytes
from penstock.log.local import LocalLog
from penstock.log.log_reader import LogReader
from penstock.log.report import Finding, LogReport, Totals
from penstock.log.segment_header import SEGMENT_HEADER_BYTES
from penstock.log.segment_scan import Options
from penstock.log.watermarks import encode_mark
from penstock.record.batch import Batch
from penstock.record.frame import HEADER_BYTES, VERSION
from tests.segment_file import frames_of, salt_of
from tests.simulation.life import FOLDER, POLICIES, LogLife, small_segments, told

CONFIG = LogConfig(segment_bytes=4096, index_interval_bytes=512, free_bytes_min=0)
ROWS = 5
FRAMES = 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed log of 100 messages in 20 frames and 5 segments."""
    with LocalLog.open(tmp_path / "log", CONFIG) as log:
        for frame in range(FRAMES):
            values = [b"%d:%d" % (frame, row) + bytes(120) for row in range(ROWS)]
            log.append(Batch.build(values, priority=0 if frame == 7 else 2))
    return tmp_path / "log"


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def lost(findings: list[Finding]) -> list[tuple[int | None, int | None]]:
    return [(finding.first_offset, finding.next_offset) for finding in findings]


def verified(folder: Path) -> LogReport:
    return inspect_log(folder, Options(deep=True))


def test_a_closed_log_is_told_frame_by_frame(folder: Path) -> None:
    report = verified(folder)
    assert report.damage == report.notes == []
    assert (report.start, report.end, report.durable) == (0, 100, 100)
    assert [s.file for s in report.segments] == [path.name for path in segments(folder)]
    assert [s.index for s in report.segments][-2:] == ["ok", "none yet"]
    frames = [frame for segment in report.segments for frame in segment.frames]
    assert [f.base_offset for f in frames] == list(range(0, 100, ROWS))
    assert [f.priorities for f in frames][6:9] == [["normal"], ["critical"], ["normal"]]
    assert frames[0].columns == ["value"]
    assert frames[0].rows == frames[0].span == ROWS


def test_totals_count_every_log(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "deep" / "down" / "copy")
    logs = find_logs(folder.parent)
    assert logs == [str(folder.parent / "deep" / "down" / "copy"), str(folder)]
    reports = [inspect_log(log) for log in logs]
    totals = Totals.of(reports)
    assert (totals.logs, totals.messages, totals.frames, totals.damage) == (2, 200, 40, 0)
    assert totals.segments == 2 * len(segments(folder))
    assert totals.file_bytes == sum(map(segment_bytes, logs))
    assert totals.first_timestamp_us is not None
    assert totals.compression_ratio == 1.0


def test_the_limit_is_on_what_is_told_not_on_what_is_checked(folder: Path) -> None:
    flip(segments(folder)[1], 2000)
    report = inspect_log(folder, Options(frames_max=1))
    assert all(len(segment.frames) <= 1 for segment in report.segments)
    assert sum(segment.frame_count for segment in report.segments) == FRAMES - 1
    assert len(report.damage) == 1


def test_progress_covers_all_bytes(folder: Path) -> None:
    steps: list[int] = []
    inspect_log(folder, on_bytes=steps.append)
    assert sum(steps) == segment_bytes(folder)


# Damage.


def test_a_flipped_bit_anywhere_in_a_segment_is_one_damaged_frame(folder: Path) -> None:
    path = segments(folder)[2]
    whole = path.read_bytes()
    for position in range(SEGMENT_HEADER_BYTES, len(whole), 61):
        flip(path, position)
        report = verified(folder)
        hit = next(f for f in frames_of(whole) if f.position <= position < f.end).header
        assert lost(report.damage) == [(hit.base_offset, hit.next_offset)], position
        path.write_bytes(whole)
    assert not verified(folder).damage


def test_damage_is_what_the_log_itself_reports(folder: Path) -> None:
    flip(segments(folder)[0], 1500)
    flip(segments(folder)[3], SEGMENT_HEADER_BYTES + 10)
    told = lost(verified(folder).damage)
    with LocalLog.open(folder, CONFIG) as log:
        offset = 0
        while offset < log.end:
            offset = log.read(offset).next_offset
        assert [(d.first_offset, d.next_offset) for d in log.damage] == told
    assert lost(verified(folder).damage) == told


def test_a_tail_that_was_durable_and_is_torn_is_damage(folder: Path) -> None:
    last = segments(folder)[-1]
    frame = frames_of(last.read_bytes())[-1]
    os.truncate(last, last.stat().st_size - 3)
    assert lost(verified(folder).damage) == [(frame.header.base_offset, 100)]
    os.truncate(last, frame.position)  # not a trace of it is left
    assert lost(verified(folder).damage) == [(frame.header.base_offset, 100)]


def test_a_tail_behind_the_durable_mark_is_unfinished_and_no_damage(folder: Path) -> None:
    with segments(folder)[-1].open("ab") as file:
        file.write(b"PNSK" + bytes(50))
    report = verified(folder)
    assert not report.damage
    assert report.segments[-1].unfinished_bytes == 54
    assert report.end == 100


def test_a_missing_segment_is_damage(folder: Path) -> None:
    paths = segments(folder)
    bases = [int(path.stem) for path in paths] + [100]
    for number, path in enumerate(paths):
        data = path.read_bytes()
        path.unlink()
        assert lost(verified(folder).damage) == [(bases[number], bases[number + 1])]
        path.write_bytes(data)


def test_all_segments_missing_is_damage(folder: Path) -> None:
    for path in folder.glob("*.[li]*"):
        path.unlink()
    assert lost(verified(folder).damage) == [(0, 100)]


def test_a_missing_index_is_no_damage(folder: Path) -> None:
    segments(folder)[1].with_suffix(".index").unlink()
    report = verified(folder)
    assert not report.damage
    assert report.segments[1].index == "missing"
    assert "index" in str(report.notes[0])
    LocalLog.open(folder, CONFIG).close()
    assert verified(folder).segments[1].index == "ok"


def test_a_flipped_bit_in_an_index_is_damage_that_costs_no_message(folder: Path) -> None:
    flip(segments(folder)[1].with_suffix(".index"), 70)
    report = verified(folder)
    assert [(d.file, d.first_offset) for d in report.damage] == [
        (segments(folder)[1].with_suffix(".index").name, None)
    ]
    LocalLog.open(folder, CONFIG).close()
    assert not verified(folder).damage


@pytest.mark.parametrize("column", ["offsets", "positions", "priorities", "last_timestamps"])
def test_an_index_that_lies_is_found_out(folder: Path, column: str) -> None:
    path = segments(folder)[1].with_suffix(".index")
    header, index = decode_index(path.read_bytes())
    getattr(index, column)[1] += 8
    end = header.next_offset, header.segment_bytes
    path.write_bytes(index.encode(header.base_offset, *end, header.salt))
    report = verified(folder)
    assert report.segments[1].index == "wrong"
    assert len(report.damage) == 1


def test_a_frame_with_a_right_checksum_and_a_wrong_content_is_found_when_looking_deep(
    folder: Path,
) -> None:
    from crc32c import crc32c

    path = segments(folder)[-1]
    data = bytearray(path.read_bytes())
    at, end, header = frames_of(data)[0]
    data[at + 8] = VERSION + 1
    crc = crc32c(memoryview(data)[at + 8 : end], salt_of(data).seed)
    data[at + 4 : at + 8] = crc.to_bytes(4, "little")
    path.write_bytes(data)
    assert not inspect_log(folder).damage
    report = verified(folder)
    assert lost(report.damage) == [(header.base_offset, header.next_offset)]
    assert "version" in (report.segments[-1].frames[0].problem or "")


def test_marks_are_checked(folder: Path) -> None:
    for unreadable in (b"", bytes(12), encode_mark(100)[:-1] + b"\0"):
        (folder / "durable").write_bytes(unreadable)  # a power cut can do this: it is never synced
        assert not verified(folder).damage
        assert [n.file for n in verified(folder).notes] == ["durable"]
    (folder / "durable").write_bytes(encode_mark(103))
    assert lost(verified(folder).damage) == [(100, 103)]
    (folder / "durable").write_bytes(encode_mark(100))
    (folder / "start").write_bytes(b"nonsense")
    assert [d.file for d in verified(folder).damage] == ["start"]


def test_a_segment_that_cannot_be_read_is_damage(folder: Path) -> None:
    class BadDisk(DiskFiles):
        def read(self, path: str, length: int = -1, position: int = 0) -> bytes:
            if path == str(segments(folder)[1]):
                raise OSError(5, "Input/output error")
            return super().read(path, length, position)

    report = inspect_log(folder, files=BadDisk())
    bases = [int(path.stem) for path in segments(folder)]
    assert lost(report.damage) == [(bases[1], bases[2])]
    assert "Input/output error" in str(report.damage[0])


# What is no damage.


def test_trimmed_messages_are_neither_missing_nor_counted(folder: Path) -> None:
    with LocalLog.open(folder, CONFIG) as log:
        log.trim(33)
    report = verified(folder)
    assert not report.damage
    assert (report.start, report.end) == (33, 100)
    assert sum(segment.message_count for segment in report.segments) == 67


def test_a_compacted_log_is_whole(folder: Path) -> None:
    with LocalLog.open(folder, CONFIG) as log:
        for _ in range(20):
            log.append(Batch.build([b"x" * 100] * ROWS, expires_at_us=1))
        log.compact(log.segments[0].last_timestamp + 1)
    report = verified(folder)
    assert not report.damage
    assert any(segment.generation for segment in report.segments)
    assert sum(s.message_count for s in report.segments) < 200
    assert report.end == 200


def test_leftovers_of_interrupted_steps_are_notes(folder: Path) -> None:
    (folder / "00000000000000000000.g1.log.tmp").write_bytes(b"half")
    (folder / "00000000000000000000.g1.index").write_bytes(b"")
    report = verified(folder)
    assert not report.damage
    assert sorted(n.file for n in report.notes) == [
        "00000000000000000000.g1.index",
        "00000000000000000000.g1.log.tmp",
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_crash_is_never_taken_for_damage(policy: FsyncPolicy) -> None:
    """At every operation of a life on a simulated disk: killed there, or the power cut."""
    life = LogLife(3, small_segments(policy))
    rng = Random(3)
    looks = 0

    def look(life: LogLife) -> None:
        nonlocal looks
        for files in (life.files, life.files.kill(), life.files.crash(rng)):
            try:
                report = inspect_log(FOLDER, Options(deep=True), files=files)
            except LogNotFound:
                continue
            looks += 1
            assert report.damage == [], [str(d) for d in report.damage]
            if files is not life.files:
                log = LocalLog.open(FOLDER, life.config, files=files, committer=life.committer)
                assert (report.start, report.end) == (log.start, log.end)

    life.at_boundary = look
    with told(life):
        life.run(30)
    assert looks > 100


# Single segments.


def test_one_segment_in_its_folder(folder: Path) -> None:
    path = segments(folder)[1]
    report = inspect_segment(path, Options(deep=True))
    assert not report.damage
    assert [s.file for s in report.segments] == [path.name]
    assert report.segments[0].index == "ok"
    with segments(folder)[-1].open("ab") as file:
        file.write(b"half a frame")
    assert not inspect_segment(segments(folder)[-1]).damage


def test_a_copy_of_a_segment_under_any_name(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.bin"
    copy.write_bytes(segments(folder)[1].read_bytes())
    report = inspect_segment(copy)
    assert not report.damage
    assert report.segments[0].base_offset == int(segments(folder)[1].stem)
    os.truncate(copy, copy.stat().st_size - HEADER_BYTES)
    assert lost(inspect_segment(copy).damage)[0][1] is None


def test_an_index_is_not_a_segment(folder: Path) -> None:
    with pytest.raises(LogError, match="index"):
        inspect_segment(segments(folder)[0].with_suffix(".index"))


def test_no_log_is_an_error_that_says_so(tmp_path: Path) -> None:
    assert find_logs(tmp_path) == []
    with pytest.raises(LogNotFound, match="no log"):
        inspect_log(tmp_path)
    with pytest.raises(LogNotFound, match="no folder"):
        inspect_log(tmp_path / "nowhere")


def test_looking_changes_nothing(folder: Path) -> None:
    with segments(folder)[-1].open("ab") as file:
        file.write(b"torn")
    (folder / "leftover.tmp").touch()

    def state() -> dict[str, tuple[bytes, int]]:
        return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}

    before = state()
    verified(folder)
    assert state() == before


def test_the_writer_is_named_while_it_is_there(folder: Path) -> None:
    with LocalLog.open(folder, CONFIG):
        assert str(os.getpid()) in (inspect_log(folder).writer or "")
        LogReader.open(folder)
    assert inspect_log(folder).writer is None


def test_a_writer_that_went_on_to_another_log_is_not_named(folder: Path, tmp_path: Path) -> None:
    LocalLog.open(folder, CONFIG).close()
    with LocalLog.open(tmp_path / "another", CONFIG):
        assert inspect_log(folder).writer is None
