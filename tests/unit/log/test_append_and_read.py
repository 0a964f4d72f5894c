"""A log gives back what was appended, at the offsets it said, from any offset on."""

import itertools
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.config import LogConfig
from penstock.errors import InvalidInput, LogClosed, MessageTooLarge, OffsetOutOfRange
from penstock.log.commit import ManualCommitter
from penstock.log.local import LocalLog
from penstock.log.log_reader import LogReader
from penstock.record.batch import Batch
from penstock.record.frame import EXPIRES
from penstock.record.schema import READ_SCHEMA
from penstock.record.writing import FrameProducer
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import messages, offsets, read_all, values
from tests.unit.log.watched import WatchedFiles
from tests.unit.record.strategies import QUICK, Row, batch_of, rows


def test_a_new_log_is_empty(open_log: Opener, folder: Path) -> None:
    log = open_log()
    assert (log.start, log.end, log.durable_end) == (0, 0, 0)
    assert len(log.read(0)) == 0
    assert log.read(0).next_offset == 0
    assert log.damage == []
    assert [segment.name for segment in log.segments] == ["00000000000000000000.log"]
    assert folder.is_dir()


def test_messages_get_offsets_one_after_the_other(open_log: Opener, clock: ManualClock) -> None:
    log = open_log()
    first = log.append(Batch.build(["a", "b"]))
    second = log.append(Batch.build(["c"]))
    assert (first.first_offset, first.next_offset) == (0, 2)
    assert (second.first_offset, second.next_offset) == (2, 3)
    assert first.timestamp_us == clock.wall_ns() // 1000
    assert log.end == 3
    assert values(log) == [b"a", b"b", b"c"]
    assert offsets(log) == [0, 1, 2]


def test_ids_are_those_that_append_announced(open_log: Opener) -> None:
    log = open_log()
    appended = log.append(Batch.build(["a", "b"]))
    log.append(Batch.build(["c"]))
    assert [m.ulid for m in messages(log)][:2] == [appended.ulid, appended.ulid + 1]
    ids = [m.id for m in messages(log)]
    assert len(set(ids)) == 3


def test_a_message_without_a_time_gets_the_clocks(open_log: Opener, clock: ManualClock) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    clock.advance(2)
    log.append(Batch.build(["b"]))
    appended = log.append(Batch.build(["c", "d"], timestamps_us=[5, 3]))
    now_us = clock.wall_ns() // 1000
    assert [m.timestamp_us for m in messages(log)] == [now_us - 2_000_000, now_us, 5, 3]
    assert appended.timestamp_us == 5


def test_reading_begins_at_any_offset_and_says_where_to_go_on(open_log: Opener) -> None:
    log = open_log(segment_bytes=4096)
    sizes = [1, 7, 3, 20, 2, 9]
    count = 0
    for _ in range(20):
        for size in sizes:
            log.append(Batch.build([b"%d" % (count + i) for i in range(size)]))
            count += size
    assert len(log.segments) > 3
    for offset in range(count + 1):
        batches = log.read(offset)
        got = batches.messages()
        assert [m.offset for m in got] == list(range(offset, batches.next_offset))
        assert [m.value for m in got] == [b"%d" % m.offset for m in got]
        assert bool(got) == (offset < count)


@pytest.mark.parametrize("max_bytes", [-1, 0, 1, 300, 5_000, 70_000, 1 << 40])
def test_a_read_brings_at_least_one_frame_and_about_its_limit(
    open_log: Opener, max_bytes: int
) -> None:
    log = open_log()
    for number in range(200):
        log.append(Batch.build([b"%03d" % number * 300]))
    one_frame = log.size_bytes // 200
    step = log.read(0, max_bytes)
    assert 1 <= len(step) <= max(max_bytes, 0) // one_frame + 1
    assert len(read_all(log, max_bytes=max_bytes)) == 200


def test_a_frame_longer_than_the_limit_is_read_whole(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["small"]))
    log.append(Batch.build([b"x" * 300_000]))
    log.append(Batch.build(["small too"]))
    assert [len(m.value or b"") for m in read_all(log, max_bytes=10).messages()] == [5, 300_000, 9]
    assert len(log.read(1, 10)) == 1


def test_rows_share_the_memory_of_the_mapped_file(open_log: Opener, folder: Path) -> None:
    log = open_log()
    log.append(Batch.build([b"x" * 100_000]))
    before = pa.total_allocated_bytes()
    batches = log.read(0)
    assert pa.total_allocated_bytes() - before < 10_000
    assert batches.messages()[0].value == b"x" * 100_000


def test_what_was_read_stays_readable_after_the_log_is_gone(open_log: Opener, folder: Path) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b"]))
    batches = log.read(0)
    log.close()
    for path in folder.iterdir():
        path.unlink()
    assert [m.value for m in batches.messages()] == [b"a", b"b"]


@pytest.mark.parametrize("offset", [-1, 4, 1 << 40])
def test_an_offset_outside_the_log_is_answered_with_what_there_is(
    open_log: Opener, offset: int
) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b", "c"]))
    with pytest.raises(OffsetOutOfRange, match="holds 0 up to 3") as caught:
        log.read(offset)
    assert (caught.value.offset, caught.value.start, caught.value.end) == (offset, 0, 3)


def test_all_messages_come_as_one_table(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a"], keys=["k"]))
    log.append(Batch.build(["b"], priority="low"))
    table = log.read(0).table()
    assert table.schema.equals(READ_SCHEMA)
    assert table.column("offset").to_pylist() == [0, 1]
    assert table.column("priority").to_pylist() == [2, 3]
    assert log.read(2).table().num_rows == 0


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "gzip"])
def test_every_codec_brings_back_the_same(open_log: Opener, codec: str) -> None:
    log = open_log(codec=codec)
    noise = random.Random(5).randbytes(3000)
    for value in (b"tell me again " * 500, noise, b"short"):
        log.append(Batch.build([value], keys=["k"], headers=[{"h": b"1"}]))
    assert values(log) == [b"tell me again " * 500, noise, b"short"]
    assert all(m.headers == {"h": b"1"} for m in messages(log))
    assert (log.size_bytes < 7500) == (codec != "none")


def test_a_batch_read_from_one_log_can_be_appended_to_another(
    open_log: Opener, tmp_path: Path
) -> None:
    log, other = open_log(), open_log(tmp_path / "other")
    log.append(Batch.build(["a", "b", "c"], keys=["1", "2", "3"]))
    other.append(Batch.build(["x"]))
    batch = next(iter(log.read(0)))
    other.append(batch.filter([True, False, True]))
    other.append(batch.slice(1, 1))
    assert [(m.offset, m.key) for m in messages(other, 1)] == [(1, b"1"), (2, b"3"), (3, b"2")]
    assert not {m.id for m in messages(log)} & {m.id for m in messages(other)}


def test_a_batch_that_moves_can_keep_its_ids(open_log: Opener, tmp_path: Path) -> None:
    log, other = open_log(), open_log(tmp_path / "other")
    log.append(Batch.build(["a", "b", "c"]))
    batch = next(iter(log.read(0)))
    other.append(batch.take([2, 0]), keep_ids=True)
    other.append(batch.slice(1), keep_ids=True)
    ids = [m.id for m in messages(log)]
    assert [m.id for m in messages(other)] == [ids[2], ids[0], ids[1], ids[2]]
    assert offsets(other) == [0, 1, 2, 3]


def test_what_a_producer_says_is_in_the_headers_of_the_frames(open_log: Opener) -> None:
    log = open_log(segment_bytes=4096)
    for sequence in range(0, 60, 2):
        batch = Batch.build([b"x" * 100] * 2)
        log.append(batch, FrameProducer(7, sequence, producer_epoch=1, term=3))
    assert len(log.segments) > 1
    headers = list(log.headers(5))
    assert [h.base_offset for h in headers] == list(range(4, 60, 2))
    assert [h.base_sequence for h in headers] == list(range(4, 60, 2))
    assert {(h.producer_id, h.producer_epoch, h.term) for h in headers} == {(7, 1, 3)}


def test_the_priorities_of_a_stretch_are_known_without_reading_it(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a"], priority="low"))
    log.roll()
    log.append(Batch.build(["b"], priority="critical", expires_at_us=5))
    assert log.priorities_between(0, 1) == 1 << 3
    assert log.priorities_between(1, 2) == 1 << 0 | EXPIRES
    assert log.priorities_between(0, 2) == 1 << 3 | 1 << 0 | EXPIRES
    assert [log.span_at(offset).base_offset for offset in (0, 1)] == [0, 1]


def test_an_empty_batch_is_refused(open_log: Opener) -> None:
    log = open_log()
    with pytest.raises(InvalidInput, match="at least one message"):
        log.append(Batch.build([]))
    assert log.end == 0


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_message_that_is_too_long_is_refused_and_its_neighbours_with_it(
    open_log: Opener, codec: str
) -> None:
    log = open_log(message_bytes_max=5000, codec=codec)
    log.append(Batch.build([b"x" * 5000]))
    log.append(Batch.build([b"x" * 4000] * 10))
    with pytest.raises(MessageTooLarge, match="5001 bytes; at most 5000"):
        log.append(Batch.build([b"small", b"x" * 5001]))
    assert log.end == 11


def test_key_and_headers_count_as_part_of_a_message(open_log: Opener) -> None:
    log = open_log(message_bytes_max=1000)
    part = "x" * 400
    log.append(Batch.build([part], keys=[part]))
    with pytest.raises(MessageTooLarge):
        log.append(Batch.build([part], keys=[part], headers=[{"h": part}]))
    shared = pa.array([b"x" * 600])
    with pytest.raises(MessageTooLarge):
        log.append(Batch.from_arrow(pa.table({"value": shared, "key": shared})))


def test_a_message_that_is_longer_than_a_segment_gets_one_of_its_own(open_log: Opener) -> None:
    log = open_log(segment_bytes=4096)
    log.append(Batch.build(["a"]))
    log.append(Batch.build([b"x" * 20_000]))
    log.append(Batch.build(["b"]))
    assert [len(v or b"") for v in values(log)] == [1, 20_000, 1]
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


def test_a_closed_log_can_be_read_but_not_written(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    log.close()
    log.close()
    assert values(log) == [b"a"]
    for write in (
        lambda: log.append(Batch.build(["b"])),
        log.sync,
        log.roll,
        lambda: log.trim(1),
        lambda: log.compact(0),
    ):
        with pytest.raises(LogClosed):
            write()


def test_leaving_the_block_closes_the_log(open_log: Opener) -> None:
    with open_log() as log:
        log.append(Batch.build(["a"]))
    with pytest.raises(LogClosed):
        log.append(Batch.build(["b"]))
    assert log.durable_end == 1


counter = itertools.count()


@QUICK
@given(
    st.lists(rows(min_size=1, max_size=6), max_size=12),
    st.sampled_from(["none", "lz4", "zstd", "gzip"]),
    st.integers(0, 5),
)
def test_any_batches_come_back_after_a_reopen(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Row]], codec: str, reopen_at: int
) -> None:
    folder = tmp_path_factory.mktemp(f"log{next(counter)}")
    clock = ManualClock()
    config = LogConfig(segment_bytes=4096, free_bytes_min=0, codec=codec, index_interval_bytes=300)

    def opened() -> LocalLog:
        return LocalLog.open(
            folder, config, clock=clock, committer=ManualCommitter(clock), files=WatchedFiles()
        )

    log = opened()
    expected: list[Row] = []
    for number, batch in enumerate(batches):
        if number == reopen_at:
            log.close()
            log = opened()
        log.append(batch_of(batch))
        expected += batch
    log.close()
    with opened() as log:
        assert log.end == log.durable_end == len(expected)
        assert [Row.of(m) for m in messages(log)] == expected
        assert offsets(log) == list(range(len(expected)))
        assert log.damage == []


def test_a_read_brings_no_more_bytes_than_were_asked_for_but_one_frame(open_log: Opener) -> None:
    log = open_log(codec="zstd")
    for _ in range(8):
        log.append(Batch.build([bytes(1000)] * 100))
    assert len(log.read(0, 250_000)) == 200  # of their bytes in memory, not of those on disk
    assert len(log.read(0, 1)) == 100
    assert len(log.read(0)) == 800
    log = open_log(log.folder + "-plain")
    for _ in range(8):
        log.append(Batch.build([b"x" * 60_000]))
    assert len(log.read(0, 61_000)) == 1
    assert len(log.read(0, 121_000)) == 2
    assert log.read(3, 121_000).next_offset == 5


def test_messages_that_were_read_can_be_joined_with_new_ones(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b", "c"], timestamps_us=1))
    some = log.read(0).batches[0].filter([True, False, True])
    for batches in (
        [Batch.build(["new"], timestamps_us=2), some],
        [some, Batch.build(["new"], timestamps_us=2)],
    ):
        log.append(Batch.concat(batches))
    assert values(log, 3) == [b"new", b"a", b"c", b"a", b"c", b"new"]
    assert offsets(log, 3) == [*range(3, 9)]


def test_a_log_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "log").mkdir(parents=True)
    (tmp_path / "there" / "log").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    with LocalLog.open("log", LogConfig(segment_bytes=4096, free_bytes_min=0)) as log:
        monkeypatch.chdir(tmp_path / "there")
        for _ in range(10):
            log.append(Batch.build([b"x" * 1000]))
        assert len(values(log)) == 10
    assert list((tmp_path / "there" / "log").iterdir()) == []
    monkeypatch.chdir(tmp_path / "here")
    reader = LogReader.open("log")
    monkeypatch.chdir(tmp_path / "there")
    assert len(values(reader)) == 10
