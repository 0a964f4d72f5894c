"""When a log syncs, by policy; what it calls durable; and what it does when a sync fails."""

import errno
import threading
import time
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.errors import LogFailed
from penstock.log.commit import BackgroundCommitter, ManualCommitter
from penstock.log.log_reader import LogReader
from penstock.record.batch import Batch
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import values
from tests.unit.log.watched import WatchedFiles, failing


def syncs(files: WatchedFiles) -> int:
    return files.count("sync", ".log")


def test_always_confirms_after_a_sync_that_all_appends_before_it_share(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter
) -> None:
    log = open_log(fsync="always")
    appended = [log.append(Batch.build([b"x"])) for _ in range(50)]
    assert not any(a.durable.done() for a in appended)
    assert log.durable_end == 0
    committer.run_due()
    assert all(a.durable.done() for a in appended)
    assert log.durable_end == 50
    assert syncs(files) == 1
    later = log.append(Batch.build([b"x"]))
    assert not later.durable.done()
    committer.run_due()
    assert later.durable.result(0) is None
    assert syncs(files) == 2


def test_interval_confirms_at_once_and_syncs_when_the_interval_is_over(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter, clock: ManualClock
) -> None:
    log = open_log(fsync="interval", fsync_interval_ms=1000)
    for _ in range(10):
        assert log.append(Batch.build([b"x"])).durable.done()
    committer.run_due()
    assert (syncs(files), log.durable_end) == (0, 0)
    clock.advance(0.999)
    committer.run_due()
    assert syncs(files) == 0
    clock.advance(0.001)
    committer.run_due()
    assert (syncs(files), log.durable_end) == (1, 10)
    clock.advance(10)
    committer.run_due()
    assert syncs(files) == 1  # nothing was written, so nothing is synced


def test_batch_syncs_after_so_many_writes(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter, clock: ManualClock
) -> None:
    log = open_log(fsync="batch", fsync_batch_writes=5)
    for number in range(1, 21):
        assert log.append(Batch.build([b"x"])).durable.done()
        committer.run_due()
        assert log.durable_end == number // 5 * 5
    assert syncs(files) == 4
    clock.advance(3600)
    committer.run_due()
    assert syncs(files) == 4


def test_never_syncs_only_what_is_sealed_and_at_the_close(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter, clock: ManualClock
) -> None:
    log = open_log(fsync="never", segment_bytes=4096)
    for _ in range(4):
        assert log.append(Batch.build([b"x" * 1500])).durable.done()
    clock.advance(3600)
    committer.run_due()
    assert len(log.segments) == 2
    assert syncs(files) == 1
    assert log.durable_end == log.segments[1].base_offset == 2
    log.close()
    assert log.durable_end == 4
    assert syncs(files) == 2


@pytest.mark.parametrize("policy", ["always", "interval", "batch", "never"])
def test_a_sync_by_hand_makes_everything_durable_whatever_the_policy(
    open_log: Opener, files: WatchedFiles, policy: str
) -> None:
    log = open_log(fsync=policy)
    appended = log.append(Batch.build(["a", "b"]))
    log.sync()
    assert log.durable_end == 2
    assert appended.durable.done()
    before = syncs(files)
    log.sync()
    assert syncs(files) == before


@pytest.mark.parametrize("policy", ["always", "interval", "batch", "never"])
def test_closing_makes_everything_durable_whatever_the_policy(
    open_log: Opener, files: WatchedFiles, policy: str, folder: Path
) -> None:
    log = open_log(fsync=policy)
    appended = log.append(Batch.build(["a"]))
    log.close()
    assert appended.durable.done()
    assert log.durable_end == 1
    assert LogReader.open(folder).end == 1


def test_a_sealed_segment_is_synced_before_its_successor(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter
) -> None:
    log = open_log(fsync="always", segment_bytes=4096)
    for _ in range(6):
        log.append(Batch.build([b"x" * 1500]))
    assert len(log.segments) == 3
    files.forget()
    committer.run_due()
    order = [name for what, name in files.done if what == "sync" and name.endswith(".log")]
    assert order == sorted(order)
    assert len(order) == 3
    assert log.durable_end == 6


def test_a_sealed_segment_waits_for_the_interval_but_two_do_not(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter, clock: ManualClock
) -> None:
    log = open_log(fsync="interval", fsync_interval_ms=1000, segment_bytes=4096)

    def append_until(segments: int) -> None:
        while len(log.segments) < segments:
            log.append(Batch.build([b"x" * 1500]))

    append_until(2)
    committer.run_due()
    assert (syncs(files), log.durable_end) == (0, 0)
    clock.advance(1)
    committer.run_due()
    assert log.durable_end == log.end == 3
    append_until(4)
    committer.run_due()
    assert log.durable_end == log.segments[-1].base_offset == 6


def test_a_segment_that_is_sealed_when_no_commit_is_due_is_sealed_at_once(
    open_log: Opener, committer: ManualCommitter, clock: ManualClock
) -> None:
    log = open_log(fsync="interval", fsync_interval_ms=1000)
    log.append(Batch.build([b"x"]))
    clock.advance(1)
    committer.run_due()
    log.roll()
    committer.run_due()
    assert log.durable_end == 1
    assert log.segments[0].index is None  # it is in its file


def test_a_new_segments_name_is_on_disk_before_anything_in_it_is_confirmed(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    log.roll()
    files.forget()
    log.append(Batch.build(["b"]))
    log.sync()
    confirmed = files.done.index(("overwrite", "durable"))
    assert ("sync_folder", "log") in files.done[:confirmed]
    files.forget()
    log.append(Batch.build(["c"]))
    log.sync()
    assert not files.count("sync_folder")  # once is enough


# After a failed sync the kernel may have dropped the data and call the next sync a success.


@pytest.mark.parametrize("policy", ["always", "interval", "batch", "never"])
def test_a_failed_sync_stops_the_log_for_good(
    open_log: Opener, files: WatchedFiles, policy: str
) -> None:
    log = open_log(fsync=policy)
    log.append(Batch.build(["safe"]))
    log.sync()
    log.append(Batch.build(["lost?"]))
    files.before = failing("sync", OSError(errno.EIO, "Input/output error"), ".log")
    with pytest.raises(LogFailed, match="Input/output error"):
        log.sync()
    attempts = syncs(files)
    for call in (
        lambda: log.append(Batch.build(["b"])),
        log.sync,
        log.roll,
        lambda: log.compact(0),
    ):
        with pytest.raises(LogFailed, match="reopen the log"):
            call()
    assert syncs(files) == attempts  # a sync that failed is never tried again
    assert log.durable_end == 1
    assert values(log) == [b"safe", b"lost?"]  # reading goes on


def test_a_failed_sync_is_told_to_everyone_who_waits_for_it(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter
) -> None:
    log = open_log(fsync="always")
    appended = [log.append(Batch.build(["a"])) for _ in range(3)]
    files.before = failing("sync", OSError(errno.EIO, "Input/output error"), ".log")
    committer.run_due()
    for one in appended:
        with pytest.raises(LogFailed):
            one.durable.result(0)
    assert log.durable_end == 0


def test_reopening_recovers_a_log_that_failed(open_log: Opener, files: WatchedFiles) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    files.before = failing("sync", OSError(errno.EIO, "Input/output error"), ".log")
    with pytest.raises(LogFailed):
        log.sync()
    with pytest.raises(LogFailed):
        log.close()  # it lets the folder go, and says once more what is not durable
    log = open_log()
    assert values(log) == [b"a"]
    assert log.append(Batch.build(["b"])).first_offset == 1
    log.sync()
    assert log.durable_end == 2


def test_a_sync_that_fails_at_the_close_is_not_kept_secret(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    files.before = failing("sync", OSError(errno.EIO, "Input/output error"), ".log")
    with pytest.raises(LogFailed):
        log.close()
    assert values(open_log()) == [b"a"]


@pytest.mark.parametrize("step", ["append", "sync"])
def test_an_index_that_a_broken_disk_refuses_stops_the_log(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter, step: str
) -> None:
    log = open_log(fsync="always")
    log.append(Batch.build(["a"]))
    log.roll()
    files.before = failing(step, OSError(errno.EIO, "Input/output error"), ".index.tmp")
    appended = log.append(Batch.build(["b"]))
    committer.run_due()
    assert isinstance(appended.durable.exception(0), LogFailed)
    with pytest.raises(LogFailed):
        log.append(Batch.build(["c"]))
    assert values(log) == [b"a", b"b"]
    with pytest.raises(LogFailed):
        log.close()
    assert values(open_log()) == [b"a", b"b"]


def test_an_index_for_which_there_is_no_room_stops_nothing(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter, folder: Path
) -> None:
    log = open_log(fsync="always")
    log.append(Batch.build(["a"]))
    log.roll()
    files.before = failing("append", OSError(errno.ENOSPC, "No space left"), ".index.tmp")
    appended = log.append(Batch.build(["b"]))
    committer.run_due()
    assert appended.durable.result(0) is None
    assert values(log) == [b"a", b"b"]
    assert not (folder / "00000000000000000000.index").exists()
    log.close()
    log = open_log()
    assert (folder / "00000000000000000000.index").exists()
    assert values(log) == [b"a", b"b"]


# Group commit across threads, with the real background thread.


def slow_sync(what: str, name: str) -> None:
    """As a disk does, take so long that others append meanwhile."""
    if what == "sync" and name.endswith(".log"):
        time.sleep(0.005)


def test_threads_that_append_at_the_same_time_share_their_syncs(
    open_log: Opener, files: WatchedFiles
) -> None:
    threads, each = 16, 20
    log = open_log(fsync="always", committer=BackgroundCommitter("test"))
    files.before = slow_sync
    offsets: list[int] = []

    def publish() -> None:
        for _ in range(each):
            appended = log.append(Batch.build([b"x"]))
            appended.durable.result(60)
            assert log.durable_end >= appended.next_offset
            offsets.append(appended.first_offset)

    running = [threading.Thread(target=publish) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert sorted(offsets) == list(range(threads * each))
    assert syncs(files) <= threads * each // 4


def test_a_lonely_appender_gets_a_sync_for_each_append(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log(fsync="always", committer=BackgroundCommitter("test"))
    for _ in range(20):
        log.append(Batch.build([b"x"])).durable.result(60)
    assert syncs(files) == 20


def test_appends_during_a_sync_wait_for_the_next_one(
    open_log: Opener, files: WatchedFiles, committer: ManualCommitter
) -> None:
    log = open_log(fsync="always")
    first = log.append(Batch.build(["a"]))
    late = []

    def append_meanwhile(what: str, name: str) -> None:
        if what == "sync" and name.endswith(".log") and not late:
            late.append(log.append(Batch.build(["b"])))

    files.before = append_meanwhile
    log.sync()
    assert first.durable.done()
    assert not late[0].durable.done()
    assert log.durable_end == 1
    committer.run_due()
    assert late[0].durable.done()
    assert log.durable_end == 2
