"""Tables of frames: what they say of messages here and there is what reading them all says."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.config import LogConfig
from penstock.log.local import LocalLog
from penstock.log.segment_header import SEGMENT_HEADER_BYTES
from penstock.record.batch import Batch, Message


def fill(log: LocalLog, random: Random, appends: int = 120) -> None:
    """Single messages and batches, of one priority and of several, some of which expire; and runs
    of messages that were published one by one."""
    for number in range(appends):
        if random.random() < 0.1:
            for nth in range(random.randrange(40)):
                log.append(Batch.build([b"%d" % nth * random.randrange(9)], priority=nth % 5))
        rows = random.choice([1, 1, 1, 2, 7, 40])
        mixed = [random.randrange(5) for _ in range(rows)]
        log.append(
            Batch.build(
                [b"%d-%d" % (number, row) for row in range(rows)],
                keys=[b"k%d" % random.randrange(9)] * rows if random.random() < 0.3 else None,
                priority=random.choice([mixed, random.randrange(5)]),
                expires_at_us=random.choice([None, None, 1, 1 << 50]),
            )
        )


def read_all(log: LocalLog) -> list[Message]:
    found: list[Message] = []
    offset = log.start
    while offset < log.end:
        read = log.read(offset)
        found += read.messages()
        offset = read.next_offset
    return found


@pytest.mark.parametrize("seed", range(6))
def test_scattered_reads_agree_with_reading_everything(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with LocalLog.open(tmp_path, LogConfig(segment_bytes=16 << 10)) as log:
        fill(log, random)
        if seed % 2:
            log.compact(2)  # what expired is gone, and leaves gaps
        every = read_all(log)
        end, offset = log.end, log.start
        while offset < end:
            table = log.frames(offset, random.choice([1, 1000, 20_000]))
            assert table.start == offset < table.stop
            mine = [m for m in every if offset <= m.offset < table.stop]
            for priority in range(5):
                wanted = [m.offset for m in mine if m.priority == priority]
                limit = random.randint(1, 30)
                found, scanned = table.scan(priority, offset, limit, end)
                assert found.tolist() == wanted[:limit]
                assert [o for o in wanted[limit:] if o < scanned] == []
            start = random.randrange(offset, table.stop)
            stop = random.randrange(start, table.stop) + 1
            in_a_row = [m for batch in table.run(start, stop) for m in batch.messages()]
            assert in_a_row == [m for m in mine if start <= m.offset < stop]
            some = sorted(random.sample(range(offset, table.stop), min(9, table.stop - offset)))
            for _ in range(2):  # a frame of which few are wanted is read otherwise again
                apart = [m for batch in table.rows(some) for m in batch.messages()]
                assert apart == [m for m in mine if m.offset in some]
            expiring = {m.offset for m in mine if m.expires_at_us is not None}
            assert expiring & set(some) <= set(table.expiring(some))
            offset = table.stop


@pytest.mark.parametrize("seed", range(6))
def test_reads_from_any_offset_agree_with_reading_everything(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with LocalLog.open(tmp_path, LogConfig(segment_bytes=16 << 10)) as log:
        fill(log, random)
        every = read_all(log)
        for _ in range(100):
            start = random.randrange(log.end)
            read = log.read(start, random.choice([1, 1000, 20_000]))
            assert read.messages() == every[start : read.next_offset]


@pytest.mark.parametrize("damaged", [0, 3, 17, 39])
def test_a_damaged_frame_in_a_run_takes_no_other_with_it(tmp_path: Path, damaged: int) -> None:
    with LocalLog.open(tmp_path) as log:
        for number in range(40):
            log.append(Batch.build([b"%02d" % number]))
        (path,) = tmp_path.glob("*.log")
        data = bytearray(path.read_bytes())
        frame_bytes = (len(data) - SEGMENT_HEADER_BYTES) // 40
        data[SEGMENT_HEADER_BYTES + (damaged + 1) * frame_bytes - 8] ^= 1  # in its value
        path.write_bytes(data)

        whole = [number for number in range(40) if number != damaged]

        assert [m.offset for m in read_all(log)] == whole
        assert [m.value for m in read_all(log)] == [b"%02d" % number for number in whole]
        assert [(d.first_offset, d.next_offset) for d in log.damage] == [(damaged, damaged + 1)]


def test_damaged_frames_are_skipped_and_reported(tmp_path: Path) -> None:
    with LocalLog.open(tmp_path) as log:
        for number in range(10):
            log.append(Batch.build([b"%d" % number], priority=number % 2))
        (path,) = tmp_path.glob("*.log")
        data = bytearray(path.read_bytes())
        frame_bytes = (len(data) - SEGMENT_HEADER_BYTES) // 10
        data_at = SEGMENT_HEADER_BYTES + 4 * frame_bytes + 5  # within the fifth frame
        data[data_at] ^= 1
        path.write_bytes(data)

        table = log.frames(0, 1 << 20)

        assert table.scan(0, 0, 100, 10)[0].tolist() == [0, 2, 6, 8]
        assert [m.value for b in table.rows([3, 4, 5]) for m in b.messages()] == [b"3", b"5"]
        assert [(d.first_offset, d.next_offset) for d in log.damage] == [(4, 5)]


def test_a_table_is_whole_although_its_segment_is_trimmed(tmp_path: Path) -> None:
    with LocalLog.open(tmp_path) as log:
        for number in range(10):
            log.append(Batch.build([b"%d" % number]))
        table = log.frames(0, 1 << 20)
        log.trim(10)

        assert [m.value for b in table.rows([3, 7]) for m in b.messages()] == [b"3", b"7"]
