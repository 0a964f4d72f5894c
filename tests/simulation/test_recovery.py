"""Crashes that random lives meet too rarely, each of which once broke a promise."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, combinations
from random import Random

import pytest

from penstock.errors import LogFailed
from penstock.log.commit import ManualCommitter
from penstock.log.inspect import inspect_log
from penstock.log.local import LocalLog
from penstock.log.segment import segment_name
from penstock.log.segment_header import SEGMENT_HEADER_BYTES
from penstock.log.watermarks import START_FILE
from penstock.record.batch import Batch
from tests.integration.log.image import image_of, in_memory, open_log
from tests.simulation.disk import SimulatedFiles
from tests.simulation.life import FOLDER, small_segments
from tests.simulation.model import read_all

CONFIG = small_segments("never")
SEEDS = range(40)


def log_of_three_segments(files: SimulatedFiles) -> LocalLog:
    log = open_log(FOLDER, CONFIG, files)
    for number in range(3):
        log.append(Batch.build([b"%d.%d" % (number, row) for row in range(5)], keys=[b"k"] * 5))
        log.roll()
    log.sync()
    return log


def disks_before(files: SimulatedFiles, kind: str) -> list[SimulatedFiles]:
    """Copies of the disk, as kills leave it, before each coming operation of a kind."""
    copies: list[SimulatedFiles] = []

    def look(operation: str, path: str) -> None:
        if operation == kind:
            copies.append(files.kill())

    files.before_operation = look
    return copies


def power_cuts_in_recovery(
    files: SimulatedFiles, seeds: Iterable[int] = SEEDS
) -> list[SimulatedFiles]:
    """Open a log, and cut the power before each operation that this does to the disk."""
    left = power_cuts(files, seeds)
    open_log(FOLDER, CONFIG, files)
    return left


def power_cuts(files: SimulatedFiles, seeds: Iterable[int]) -> list[SimulatedFiles]:
    """What power cuts before each coming operation leave of the disk."""
    left: list[SimulatedFiles] = []
    files.before_operation = lambda kind, path: left.extend(
        files.crash(Random(seed)) for seed in seeds
    )
    return left


def distinct(disks: Iterable[SimulatedFiles]) -> list[SimulatedFiles]:
    """Without those on which the same lies: most power cuts leave the same."""
    return list({tuple(image_of(disk, FOLDER).items()): disk for disk in disks}.values())


def purge(log: LocalLog) -> None:
    """Trim all of a log, of which the committer has synced what was sealed, and write to it."""
    log.append(Batch.build([b"the last to go"]))
    log.roll()
    assert isinstance(log.committer, ManualCommitter)
    log.committer.run_due()
    log.trim(log.end)
    log.append(Batch.build([b"lost with the power"]))


def check_purged(left: SimulatedFiles, starts: list[int]) -> None:
    """Nothing that was durable is lost, and nothing that was purged is called lost."""
    findings = inspect_log(FOLDER, files=left).all_findings
    assert not [finding for finding in findings if finding.is_damage]
    survivor = open_log(FOLDER, CONFIG, left)
    assert survivor.damage == []
    assert survivor.start in starts
    assert survivor.end >= 15
    assert read_all(survivor).keys() == set(range(survivor.start, survivor.end))


def test_recovery_keeps_the_old_segments_until_the_compacted_one_has_its_name_on_disk() -> None:
    files = SimulatedFiles()
    log = log_of_three_segments(files)
    before = read_all(log).keys()
    killed = disks_before(files, "sync_folder")
    log.compact(now_us=0)

    for left in power_cuts_in_recovery(killed[0]):
        survivor = open_log(FOLDER, CONFIG, left)
        assert survivor.damage == []
        assert read_all(survivor).keys() == before


def test_recovery_keeps_trimmed_segments_until_the_new_start_is_on_disk() -> None:
    files = SimulatedFiles()
    log = log_of_three_segments(files)
    killed = disks_before(files, "sync_folder")
    log.trim(10)

    for left in power_cuts_in_recovery(killed[0]):
        survivor = open_log(FOLDER, CONFIG, left)
        assert survivor.damage == []
        assert survivor.start in (0, 10)
        assert read_all(survivor).keys() == set(range(survivor.start, 15))


def test_segments_that_a_trim_removed_may_come_back_in_any_number() -> None:
    files = SimulatedFiles()
    log_of_three_segments(files).trim(12)

    for seed in range(200):
        survivor = open_log(FOLDER, CONFIG, files.crash(Random(seed)))
        assert survivor.damage == []
        assert read_all(survivor).keys() == {12, 13, 14}


def test_any_of_the_purged_segments_may_come_back() -> None:
    files = SimulatedFiles()
    log = log_of_three_segments(files)
    old = image_of(files, FOLDER)
    purge(log)
    purged = image_of(files, FOLDER)
    names = [segment_name(base) for base in (0, 5, 10)]

    for count in range(len(names) + 1):
        for back in combinations(names, count):
            for length in (0, SEGMENT_HEADER_BYTES):  # what was not synced of the new segment
                left = purged | {name: old[name] for name in back}
                left[segment_name(16)] = left[segment_name(16)][:length]
                check_purged(in_memory(left), starts=[16])


def test_purge_with_the_power_cut_at_every_operation_of_it_and_of_two_recoveries() -> None:
    files = SimulatedFiles()
    log = log_of_three_segments(files)
    disks = power_cuts(files, range(4))
    purge(log)
    disks += [files.crash(Random(seed)) for seed in range(60)]  # the removals are not synced
    for _ in range(2):
        cuts = [power_cuts_in_recovery(disk, [seed]) for seed, disk in enumerate(disks)]
        disks = distinct(chain(*cuts))

    for left in disks:
        check_purged(left, starts=[0, 16])


@pytest.mark.parametrize("missing", [5, 10])
def test_of_segments_that_are_gone_only_what_was_not_trimmed_is_lost(missing: int) -> None:
    files = SimulatedFiles()
    log = log_of_three_segments(files)
    image = image_of(files, FOLDER)
    log.trim(missing + 2)
    image[START_FILE] = files.read(f"{FOLDER}/{START_FILE}")
    del image[segment_name(missing)], image[segment_name(15)]

    left = in_memory(image)
    findings = inspect_log(FOLDER, files=left).all_findings
    survivor = open_log(FOLDER, CONFIG, left)

    lost = (missing + 2, missing + 5)
    assert [damage[2:4] for damage in survivor.damage] == [lost]
    assert [(one.first_offset, one.next_offset) for one in findings if one.is_damage] == [lost]
    assert survivor.end == 15


def test_message_that_is_not_durable_supersedes_nothing() -> None:
    files = SimulatedFiles()
    log = log_of_three_segments(files)
    log.append(Batch.build([b"without a key"]))  # so that the compaction begins with a sync
    files.during_sync = lambda path: log.append(Batch.build([b"newer"], keys=[b"k"]))
    log.compact(now_us=0, keyed=True)
    files.during_sync = None

    for seed in range(200):
        survivor = open_log(FOLDER, CONFIG, files.crash(Random(seed)))
        assert any(message.key == b"k" for message in read_all(survivor).values())


def test_close_tells_of_a_failed_last_fsync() -> None:
    files = SimulatedFiles()
    log = open_log(FOLDER, CONFIG, files)
    log.append(Batch.build([b"x"]))
    files.fail("sync")

    with pytest.raises(LogFailed):
        log.close()
    open_log(FOLDER, CONFIG, files)  # the folder was let go all the same


def test_folder_is_let_go_when_opening_fails() -> None:
    files = SimulatedFiles()
    files.fail("overwrite")
    with pytest.raises(LogFailed):
        open_log(FOLDER, CONFIG, files)

    open_log(FOLDER, CONFIG, files)


@pytest.mark.timeout(20)
def test_read_of_a_segment_that_was_cut_under_the_open_log_ends() -> None:
    files = SimulatedFiles()
    log = log_of_three_segments(files)
    first = log.segments[0]
    files.open(first.path).truncate(first.size_bytes - 8)

    batches = log.read(0)

    assert [damage[2:4] for damage in batches.damage] == [(0, 5)]
    assert batches.messages()[0].offset == 5
