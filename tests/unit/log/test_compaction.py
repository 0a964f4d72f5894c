"""Compaction: what nobody needs goes, everything else stays as and where it was."""

import errno
import itertools
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.config import LogConfig
from penstock.errors import LogClosed, LogError
from penstock.log.commit import ManualCommitter
from penstock.log.compact import TOMBSTONE_US
from penstock.log.local import LocalLog
from penstock.record.batch import Batch, Message
from penstock.record.writing import FrameProducer
from tests.segment_file import frames_of
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import messages, offsets, read_all, values
from tests.unit.log.watched import WatchedFiles, failing
from tests.unit.record.strategies import QUICK

NOW_US = 1_000_000


def frames(log: LocalLog) -> int:
    """How many frames the sealed segments have."""
    count = 0
    for segment in log.segments[:-1]:
        data = Path(segment.path).read_bytes()
        count += len(frames_of(data))
    return count


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".log", ".index"))


def test_expired_messages_go_and_the_others_keep_offset_and_id(open_log: Opener) -> None:
    log = open_log()
    for number in range(30):
        expires = [NOW_US, NOW_US + 1, None]
        log.append(Batch.build([b"%d" % number] * 3, expires_at_us=expires))
        if number % 10 == 9:
            log.roll()
    before = {m.offset: m for m in messages(log)}
    result = log.compact(NOW_US)
    assert result.messages_removed == 30
    assert messages(log) == [before[offset] for offset in range(90) if offset % 3]
    assert (log.start, log.end) == (0, 90)
    assert log.damage == []


def test_what_is_in_the_active_segment_is_left_alone(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a"], expires_at_us=1))
    assert log.compact(NOW_US) == (0, 0, 0, 0, 0)
    assert values(log) == [b"a"]


def test_of_every_key_the_last_message_stays(open_log: Opener) -> None:
    log = open_log()
    for number in range(40):
        log.append(Batch.build([b"%d" % number], keys=[b"%d" % (number % 7)]))
    log.append(Batch.build(["no key", "none either"]))
    log.roll()
    log.append(Batch.build(["newest"], keys=["3"]))
    before = {m.offset: m for m in messages(log)}
    result = log.compact(NOW_US, keyed=True)
    kept = [offset for offset in range(33, 40) if offset % 7 != 3]
    assert messages(log) == [before[offset] for offset in [*kept, 40, 41, 42]]
    assert result.messages_removed == 34


def test_without_being_asked_superseded_messages_stay(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b"], keys=["k", "k"]))
    log.roll()
    log.compact(NOW_US)
    assert values(log) == [b"a", b"b"]


def test_an_empty_key_is_a_key_and_no_key_is_none(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b", "c", "d"], keys=[b"", None, b"", None]))
    log.roll()
    log.compact(NOW_US, keyed=True)
    assert values(log) == [b"b", b"c", b"d"]


def test_a_tombstone_deletes_its_key_and_is_seen_for_a_day(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a", None, "other"], keys=["k", "k", "o"], timestamps_us=NOW_US))
    log.roll()
    log.compact(NOW_US + TOMBSTONE_US, keyed=True)
    assert [(m.key, m.value) for m in messages(log)] == [(b"k", None), (b"o", b"other")]
    log.compact(NOW_US + TOMBSTONE_US + 1, keyed=True)
    assert [(m.key, m.value) for m in messages(log)] == [(b"o", b"other")]


def test_a_key_that_came_back_after_its_tombstone_stays(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a", None, "b"], keys=["k", "k", "k"], timestamps_us=0))
    log.roll()
    log.compact(10 * TOMBSTONE_US, keyed=True)
    assert values(log) == [b"b"]


def test_what_is_not_durable_yet_supersedes_nothing(open_log: Opener, files: WatchedFiles) -> None:
    log = open_log(fsync="never")
    log.append(Batch.build(["durable"], keys=["k"]))
    log.roll()
    log.append(Batch.build(["durable too"]))
    log.sync()

    def append_late(what: str, name: str) -> None:
        if what == "map" and log.end == 2:  # the first of the two segments is being read
            log.append(Batch.build(["may be lost"], keys=["k"]))

    files.before = append_late
    log.compact(NOW_US, keyed=True)
    assert values(log) == [b"durable", b"durable too", b"may be lost"]


def test_small_frames_are_merged_and_small_segments_with_them(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    for number in range(300):
        log.append(Batch.build([b"%d" % number], keys=[b"k"], priority=number % 5))
        if number % 50 == 49:
            log.roll()
    before = messages(log)
    assert frames(log) == 300
    result = log.compact(NOW_US)
    assert messages(log) == before
    assert (result.segments_before, result.segments_after) == (6, 1)
    assert result.bytes_after < result.bytes_before / 3
    assert frames(log) <= 2
    assert names(folder) == [
        "00000000000000000000.g1.index",
        "00000000000000000000.g1.log",
        "00000000000000000300.log",
    ]


def test_large_frames_stay_as_they_are_byte_for_byte(open_log: Opener) -> None:
    log = open_log(segment_bytes=1 << 20)
    for _ in range(4):
        log.append(Batch.build([random.Random(1).randbytes(100_000)]), FrameProducer(7))
        log.append(Batch.build(["gone"], expires_at_us=1))
    log.roll()
    log.compact(NOW_US)
    assert [h.producer_id for h in log.headers(0) if h.row_count] == [7] * 4
    assert len(values(log)) == 4


def test_a_merged_segment_stays_below_the_size_of_a_segment(open_log: Opener) -> None:
    log = open_log(segment_bytes=8192)
    for number in range(200):
        log.append(Batch.build([b"%d" % number * 100]))
    log.compact(NOW_US)
    assert all(segment.size_bytes <= 8192 for segment in log.segments)
    assert offsets(log) == list(range(200))


def test_a_stretch_without_any_message_left_is_passed_over(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    for _ in range(20):
        log.append(Batch.build([b"gone"] * 5, expires_at_us=1))
    log.append(Batch.build(["b"]))
    log.roll()
    log.append(Batch.build([b"gone"] * 5, expires_at_us=1))
    log.roll()
    log.append(Batch.build(["c"]))
    log.compact(NOW_US)
    assert [(m.offset, m.value) for m in messages(log)] == [(0, b"a"), (101, b"b"), (107, b"c")]
    assert log.read(50).messages()[0].offset == 101
    assert log.read(103).messages()[0].offset == 107
    assert log.damage == []


def test_a_log_of_which_every_message_expired_keeps_its_offsets(open_log: Opener) -> None:
    log = open_log()
    for _ in range(3):
        log.append(Batch.build(["a", "b"], expires_at_us=1))
        log.roll()
    log.compact(NOW_US)
    assert (log.start, log.end) == (0, 6)
    assert len(log.read(0)) == 0
    assert log.read(0).next_offset == 6
    log.close()
    log = open_log()
    assert log.append(Batch.build(["c"])).first_offset == 6
    assert offsets(log) == [6]


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("value_bytes", [10, 3_000, 30_000])
def test_a_second_run_changes_nothing(
    open_log: Opener, folder: Path, codec: str, value_bytes: int
) -> None:
    log = open_log(codec=codec, segment_bytes=200_000)
    for number in range(60):
        expires = 1 if number % 3 == 0 else None
        value = b"%d " % number * (value_bytes // 3)
        log.append(Batch.build([value], keys=[b"%d" % (number % 20)], expires_at_us=expires))
    log.roll()
    for _ in range(3):  # until the segments are as few as they can be
        log.compact(NOW_US, keyed=True)
    before, held = names(folder), messages(log)
    result = log.compact(NOW_US, keyed=True)
    assert names(folder) == before
    assert result.messages_removed == 0
    assert result.bytes_before == result.bytes_after
    assert messages(log) == held


def test_what_was_compacted_survives_a_restart(open_log: Opener, folder: Path) -> None:
    log = open_log()
    for number in range(40):
        log.append(Batch.build([b"%d" % number], expires_at_us=1 if number % 2 else None))
        if number % 10 == 9:
            log.roll()
    log.compact(NOW_US)
    before, files_before = messages(log), names(folder)
    log.close()
    log = open_log()
    assert messages(log) == before
    assert names(folder) == files_before
    (folder / "00000000000000000000.g1.index").unlink()
    log.close()
    log = open_log()
    assert messages(log) == before
    assert log.damage == []


def test_older_generations_that_a_crash_left_behind_are_swept_away(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    for number in range(30):
        log.append(Batch.build([b"%d" % number], expires_at_us=1 if number % 2 else None))
        if number % 10 == 9:
            log.roll()
    log.sync()
    old = {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] == "0"}
    log.compact(NOW_US)
    before = messages(log)
    log.close()
    for name, data in old.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(data)
    log = open_log()
    assert messages(log) == before
    assert sum(path.suffix == ".log" for path in folder.iterdir()) == 2


def test_what_was_trimmed_inside_a_segment_goes_for_good(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build([b"%d" % n for n in range(10)]))
    log.roll()
    log.trim(4)
    result = log.compact(NOW_US)
    assert result.messages_removed == 4
    assert offsets(log) == list(range(4, 10))


def test_a_damaged_segment_is_left_alone(open_log: Opener, folder: Path) -> None:
    log = open_log(segment_bytes=4096)
    for number in range(30):
        log.append(Batch.build([b"x" * 600], expires_at_us=1 if number % 2 else None))
    log.close()
    damaged = folder / log.segments[1].name
    data = bytearray(damaged.read_bytes())
    data[200] ^= 1
    damaged.write_bytes(data)
    log = open_log(segment_bytes=4096)
    lost = read_all(log).damage
    survivors = [m for m in messages(log) if not (m.expires_at_us or 0)]
    log.compact(NOW_US)
    assert damaged.read_bytes() == bytes(data)
    assert [m for m in messages(log) if not m.expires_at_us] == survivors
    assert read_all(log).damage == lost


@pytest.mark.parametrize("step", ["create", "append", "sync", "rename", "sync_folder"])
def test_a_compaction_that_fails_leaves_the_log_as_it_was(
    open_log: Opener, files: WatchedFiles, folder: Path, step: str
) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b"], expires_at_us=[1, None]))
    log.roll()
    log.sync()
    files.before = failing(step, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(LogError, match="nothing is lost"):
        log.compact(NOW_US)
    assert values(log) == [b"a", b"b"]
    log.append(Batch.build(["c"]))
    log.close()
    log = open_log()
    assert values(log) in ([b"a", b"b", b"c"], [b"b", b"c"])  # the old files, or the new ones
    log.compact(NOW_US)
    assert values(log) == [b"b", b"c"]
    assert not [path.name for path in folder.iterdir() if path.suffix == ".tmp"]


def test_the_writer_goes_on_while_a_compaction_runs(open_log: Opener, files: WatchedFiles) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b"], expires_at_us=[1, None]))
    log.roll()
    log.sync()
    meanwhile = itertools.count()

    def append(what: str, name: str) -> None:
        if ".g1." in name and what in ("create", "append", "sync", "rename"):
            files.before = None
            log.append(Batch.build([b"%d" % next(meanwhile)]))
            files.before = append

    files.before = append
    log.compact(NOW_US)
    files.before = None
    count = next(meanwhile)
    assert count > 3
    assert values(log) == [b"b", *(b"%d" % n for n in range(count))]


counter = itertools.count()


@QUICK
@given(st.data())
def test_any_log_compacts_to_what_a_list_would(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    keyed, codec = data.draw(st.booleans()), data.draw(st.sampled_from(["none", "lz4"]))
    clock = ManualClock()
    config = LogConfig(segment_bytes=4096, free_bytes_min=0, codec=codec)
    folder = tmp_path_factory.mktemp(f"compact{next(counter)}")

    def opened() -> LocalLog:
        committer = ManualCommitter(clock)
        return LocalLog.open(folder, config, clock=clock, committer=committer, files=WatchedFiles())

    log = opened()
    rng = random.Random(data.draw(st.integers(0, 1 << 32)))
    for _ in range(data.draw(st.integers(1, 40))):
        rows = rng.randint(1, 4)
        log.append(
            Batch.build(
                [rng.choice([None, b"v" * rng.randint(0, 900)]) for _ in range(rows)],
                keys=[rng.choice([None, b"a", b"b", b"c"]) for _ in range(rows)],
                timestamps_us=[rng.choice([0, 2 * TOMBSTONE_US]) for _ in range(rows)],
                expires_at_us=[rng.choice([None, 5, 3 * TOMBSTONE_US]) for _ in range(rows)],
                priority=[rng.randint(0, 4) for _ in range(rows)],
            )
        )
        if rng.random() < 0.1:
            log.roll()
        if rng.random() < 0.05:
            log.trim(rng.randint(log.start, log.end))
    every = {m.offset: m for m in messages(log)}
    now_us = 2 * TOMBSTONE_US + 1
    last = {m.key: m.offset for m in every.values() if m.key is not None}
    sealed_end = log.segments[-1].base_offset

    def stays(message: Message) -> bool:
        if message.offset >= sealed_end:
            return True
        if message.expires_at_us is not None and message.expires_at_us <= now_us:
            return False
        if not keyed or message.key is None:
            return True
        forgotten = message.value is None and message.timestamp_us < now_us - TOMBSTONE_US
        return last[message.key] == message.offset and not forgotten

    expected = [m for m in every.values() if stays(m)]
    result = log.compact(now_us, keyed=keyed)
    assert messages(log) == expected
    assert result.messages_removed >= len(every) - len(expected)
    log.compact(now_us, keyed=keyed)
    assert messages(log) == expected
    end = log.end
    log.close()
    with opened() as log:
        assert messages(log) == expected
        assert log.end == end
        assert log.damage == []


def test_a_log_is_closed_only_when_its_compaction_has_stopped(
    open_log: Opener, files: WatchedFiles, folder: Path
) -> None:
    log = open_log(segment_bytes=4096)
    for _ in range(40):
        log.append(Batch.build([b"x" * 500]))
    writes, go_on = threading.Event(), threading.Event()

    def pause(call: str, path: str) -> None:
        if call == "create" and ".g1." in path:
            writes.set()
            go_on.wait(20)

    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(log.compact(NOW_US))
        except LogClosed as exc:
            outcome.append(exc)

    files.before = pause
    compacting = threading.Thread(target=work)
    compacting.start()
    assert writes.wait(20)
    closing = threading.Thread(target=log.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join(20)
    compacting.join(20)
    assert isinstance(outcome[0], LogClosed)
    assert not [path.name for path in folder.iterdir() if path.suffix == ".tmp"]
    files.before = None
    assert len(values(open_log())) == 40


def test_a_key_that_was_deleted_does_not_come_back_from_a_damaged_segment(
    open_log: Opener, folder: Path
) -> None:
    log = open_log()
    for key, value in (("k", b"old"), ("a", b"1"), ("b", b"2")):
        log.append(Batch.build([value], keys=[key], timestamps_us=1))
    log.roll()
    log.append(Batch.build([None], keys=["k"], timestamps_us=1))
    log.roll()
    log.append(Batch.build(["end"], timestamps_us=1))
    log.close()
    first = folder / "00000000000000000000.log"
    data = bytearray(first.read_bytes())
    data[-3] ^= 1
    first.write_bytes(data)
    log = open_log()
    log.compact(3 * TOMBSTONE_US, keyed=True)
    kept = [(m.key, m.value) for m in messages(log) if m.key == b"k"]
    assert kept == [(b"k", b"old"), (b"k", None)]
