"""Reading a log that another process writes: only what is durable, and nothing is disturbed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config import LogConfig
from penstock.errors import LogNotFound, OffsetOutOfRange
from penstock.log.files import DiskFiles
from penstock.log.local import LocalLog
from penstock.log.log_reader import LogReader
from penstock.log.segment import segment_name
from penstock.record.batch import Batch
from penstock.record.frame import HEADER_BYTES
from tests.segment_file import frames_of
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import offsets, read_all, values


def test_there_has_to_be_a_log(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(LogNotFound, match=str(folder)):
            LogReader.open(folder)
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_durable_is_seen(open_log: Opener, folder: Path) -> None:
    log = open_log(fsync="never")
    log.append(Batch.build(["a"]))
    log.sync()
    log.append(Batch.build(["b"]))
    reader = LogReader.open(folder)
    assert (reader.start, reader.end, reader.durable_end) == (0, 1, 1)
    assert values(reader) == [b"a"]
    with pytest.raises(OffsetOutOfRange):
        reader.read(2)
    log.sync()
    assert reader.end == 1  # until it looks again
    reader.refresh()
    assert values(reader) == [b"a", b"b"]


def test_what_a_power_cut_took_before_it_was_durable_was_never_seen(folder: Path) -> None:
    def opened() -> LocalLog:
        return LocalLog.open(folder, LogConfig(fsync="never", free_bytes_min=0), lock=False)

    log = opened()
    log.append(Batch.build(["a"]))
    log.sync()
    durable_bytes = log.size_bytes
    for _ in range(3):
        log.append(Batch.build(["never durable"]))
    reader = LogReader.open(folder)
    os.truncate(folder / segment_name(0), durable_bytes)  # and its process is gone
    with opened() as after:
        after.append(Batch.build(["something else, and longer, in the same place"]))
        after.append(Batch.build(["c"]))
    reader.refresh()
    assert values(reader) == [b"a", b"something else, and longer, in the same place", b"c"]
    assert reader.damage == []


def test_looking_does_not_touch_a_single_file(open_log: Opener, folder: Path) -> None:
    log = open_log()
    for _ in range(3):
        log.append(Batch.build([b"x" * 100] * 10))
        log.roll()
    log.close()
    (folder / "00000000000000000000.index").unlink()
    (folder / "00000000000000000010.index").write_bytes(b"damaged")
    for path in folder.iterdir():
        path.chmod(0o444)

    def stats() -> dict[str, tuple[int, int]]:
        found = {path.name: path.stat() for path in folder.iterdir()}
        return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}

    before = stats()
    with LogReader.open(folder) as reader:
        assert offsets(reader) == list(range(30))
        assert reader.find(0) == 0
        assert reader.next_block(0, 1 << 2) == 0
    assert stats() == before


def test_a_reader_keeps_up_with_rolls_trims_and_compactions(open_log: Opener, folder: Path) -> None:
    log = open_log()
    log.append(Batch.build(["first"]))
    log.sync()
    reader = LogReader.open(folder)
    for round_ in range(6):
        for number in range(4):
            log.append(Batch.build([b"x" * 50], keys=[b"%d" % number]))
        log.roll()
        if round_ == 2:
            log.trim(6)
        if round_ == 4:
            log.compact(0, keyed=True)
        log.sync()
        reader.refresh()
        assert (reader.start, reader.end) == (log.start, log.durable_end)
        assert offsets(reader) == offsets(log)


def test_a_reader_that_looked_before_a_compaction_still_reads(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    for number in range(40):
        log.append(Batch.build([b"%d" % number], expires_at_us=1 if number % 2 else None))
        if number % 10 == 9:
            log.roll()
    log.sync()
    reader = LogReader.open(folder)
    log.compact(now_us=5)
    assert not (folder / segment_name(10)).exists()
    assert offsets(reader) == list(range(0, 40, 2))


def test_a_reader_that_looked_before_a_trim_is_told_what_is_gone(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    for number in range(20):
        log.append(Batch.build([b"%d" % number]))
        if number == 9:
            log.roll()
    log.sync()
    reader = LogReader.open(folder)
    log.trim(12)
    with pytest.raises(OffsetOutOfRange) as caught:
        reader.read(3)
    assert caught.value.start == 12
    assert offsets(reader) == list(range(12, 20))


def test_headers_are_read_although_a_compaction_came_between(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    for value in ("a", "b", "c"):
        log.append(Batch.build([value]))
        log.roll()
    log.sync()
    reader = LogReader.open(folder)
    log.compact(now_us=0)
    assert [header.next_offset for header in reader.headers(0)] == [3]


def test_a_tail_that_is_being_written_is_not_looked_at(open_log: Opener, folder: Path) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    log.sync()
    with (folder / segment_name(0)).open("ab") as file:
        file.write(b"PNSK half a frame")
    reader = LogReader.open(folder)
    assert values(reader) == [b"a"]
    assert reader.damage == []


class CountingFiles(DiskFiles):
    """The real disk, and how many bytes were read from it."""

    read_bytes = 0

    def read(self, path: str, length: int = -1, position: int = 0) -> bytes:
        found = super().read(path, length, position)
        self.read_bytes += len(found)
        return found


def test_of_the_segment_that_grows_little_more_than_headers_is_looked_at(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    for _ in range(40):
        log.append(Batch.build([b"x" * 1000] * 50))
    log.sync()
    files = CountingFiles()
    reader = LogReader.open(folder, files=files)
    assert reader.end == 2000
    assert files.read_bytes < reader.size_bytes / 5
    assert len(offsets(reader)) == 2000


@pytest.mark.parametrize("bits", [0x5A, 0x06])
def test_a_damaged_frame_is_told_of_whichever_byte_of_it_is_hit(
    open_log: Opener, folder: Path, bits: int
) -> None:
    log = open_log()
    for start in range(0, 50, 10):
        log.append(Batch.build([f"{number}" for number in range(start, start + 10)]))
    log.close()
    path = folder / segment_name(0)
    whole = path.read_bytes()
    third = frames_of(whole)[2].position
    kept = [f"{number}".encode() for number in range(50) if not 20 <= number < 30]
    for byte in range(HEADER_BYTES + 20):
        damaged = bytearray(whole)
        damaged[third + byte] ^= bits
        path.write_bytes(damaged)
        reader = LogReader.open(folder)
        found = read_all(reader)
        assert [message.value for message in found.messages()] == kept, f"byte {byte}"
        lost = [(damage.first_offset, damage.next_offset) for damage in found.damage]
        assert lost == [(20, 30)], f"byte {byte}"


WRITER = """
import sys
from penstock.config import LogConfig
from penstock.log.local import LocalLog
from penstock.record.batch import Batch

config = LogConfig(fsync="always", segment_bytes=1 << 15, free_bytes_min=0)
with LocalLog.open(sys.argv[1], config) as log:
    print("open", flush=True)
    for line in sys.stdin:
        batch = Batch.build([line.strip() + f" {row} " + "x" * 100 for row in range(20)])
        appended = log.append(batch)
        if sys.argv[2] == "wait":
            appended.durable.result(60)
        if appended.first_offset % 1000 == 0:
            log.trim(appended.first_offset - 1500)
        print(appended.next_offset, flush=True)
"""


def start_writer(folder: Path, mode: str) -> subprocess.Popen[str]:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout
    assert writer.stdout.readline() == "open\n"
    return writer


def test_a_live_writer_in_another_process_is_followed_message_by_message(folder: Path) -> None:
    with start_writer(folder, "wait") as writer:
        assert writer.stdin
        assert writer.stdout
        reader = LogReader.open(folder)
        expected = 0
        for step in range(30):
            writer.stdin.write(f"step{step}\n")
            writer.stdin.flush()
            confirmed = int(writer.stdout.readline())
            reader.refresh()
            assert reader.end == confirmed  # what is confirmed is seen at the next look
            got = read_all(reader, expected).messages()
            assert [m.offset for m in got] == list(range(expected, confirmed))
            assert got[0].value == f"step{step} 0 ".encode() + b"x" * 100
            expected = confirmed
        writer.stdin.close()
    assert writer.returncode == 0


def test_a_reader_beside_a_busy_writer_sees_whole_messages_in_order(folder: Path) -> None:
    with start_writer(folder, "run") as writer:
        assert writer.stdin
        reader = LogReader.open(folder)
        for step in range(150):
            writer.stdin.write(f"step{step}\n")
        writer.stdin.close()
        position, seen = 0, 0
        while seen < 3000 and position < 3000:
            assert reader.wait(position, 60)
            try:
                step = reader.read(position, 10_000)
            except OffsetOutOfRange as exc:
                position = exc.start  # trimmed, and said so
                continue
            assert list(step.damage) == []
            for message in step.messages():
                assert message.offset == position
                number, row = divmod(message.offset, 20)
                assert message.value == f"step{number} {row} ".encode() + b"x" * 100
                position += 1
                seen += 1
        writer.stdout.read()  # type: ignore[union-attr]
    assert writer.returncode == 0
    assert position == 3000


def test_a_killed_writer_leaves_what_it_confirmed(folder: Path) -> None:
    with start_writer(folder, "wait") as writer:
        assert writer.stdin
        assert writer.stdout
        for step in range(5):
            writer.stdin.write(f"step{step}\n")
        writer.stdin.flush()
        confirmed = [int(writer.stdout.readline()) for _ in range(5)][-1]
        os.kill(writer.pid, 9)
        writer.wait(60)
        writer.stdin.close()
    reader = LogReader.open(folder)
    assert reader.end >= confirmed
    assert offsets(reader) == list(range(reader.end))


def test_what_was_durable_and_is_damaged_at_the_end_is_told(open_log: Opener, folder: Path) -> None:
    with open_log() as log:
        for number in range(5):
            log.append(Batch.build([b"%d" % number]))
    path = folder / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    reader = LogReader.open(folder)
    assert [(d.first_offset, d.next_offset) for d in reader.damage] == [(4, 5)]
    assert reader.end == 5
    assert values(reader) == [b"0", b"1", b"2", b"3"]
    reader.refresh()
    assert reader.end == 5


def test_a_last_segment_that_is_gone_is_told(open_log: Opener, folder: Path) -> None:
    with open_log() as log:
        log.append(Batch.build(["a"]))
        log.roll()
        log.append(Batch.build(["b"]))
    (folder / "00000000000000000001.log").unlink()
    reader = LogReader.open(folder)
    assert [(d.first_offset, d.next_offset) for d in reader.damage] == [(1, 2)]
    assert values(reader) == [b"a"]


def test_without_a_mark_that_can_be_read_what_is_sealed_is_there(
    open_log: Opener, folder: Path
) -> None:
    with open_log() as log:
        log.append(Batch.build(["a", "b"]))
        log.roll()
        log.append(Batch.build(["c"]))
    (folder / "durable").write_bytes(b"x" * 12)
    reader = LogReader.open(folder)
    assert reader.end == 2
    assert values(reader) == [b"a", b"b"]


def test_without_a_mark_a_sealed_segment_vouches_for_those_before_it(
    open_log: Opener, folder: Path
) -> None:
    with open_log() as log:
        log.append(Batch.build(["a", "b"]))
        log.roll()
        log.append(Batch.build(["c"]))
        log.roll()
    (folder / "durable").write_bytes(b"")  # what a power cut may leave of both
    (folder / segment_name(0)).with_suffix(".index").unlink()
    reader = LogReader.open(folder)
    assert (values(reader), reader.damage) == ([b"a", b"b", b"c"], [])


def test_a_start_that_cannot_be_read_is_where_the_files_begin(
    open_log: Opener, folder: Path
) -> None:
    with open_log() as log:
        log.append(Batch.build(["a"]))
        log.roll()
        log.append(Batch.build(["b", "c"]))
        log.trim(2)
    (folder / "start").write_bytes(b"x" * 12)
    reader = LogReader.open(folder)
    assert (reader.start, reader.end) == (1, 3)
    log = open_log()
    assert (log.start, log.end) == (1, 3)
    (told,) = log.damage
    assert told.segment == "start"
    assert "trimmed may be back" in str(told)


def test_a_wait_without_a_time_ends_with_the_message(open_log: Opener, folder: Path) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    log.sync()
    assert LogReader.open(folder).wait(0)


def test_a_segment_that_a_recovery_begins_anew_is_read_by_its_new_salt(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    log.roll()
    log.sync()
    reader = LogReader.open(folder)
    log.close()
    path = folder / segment_name(1)
    path.write_bytes(path.read_bytes()[:40])  # its header never reached the disk as a whole
    log = open_log()
    log.append(Batch.build(["b"]))
    log.sync()
    reader.refresh()
    assert [message.value for message in read_all(reader).messages()] == [b"a", b"b"]
    assert reader.damage == []
