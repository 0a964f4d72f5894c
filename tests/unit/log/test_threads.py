"""Many threads on one log: readers take no lock and never meet half of anything."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.errors import OffsetOutOfRange
from penstock.log.commit import BackgroundCommitter
from penstock.log.local import LocalLog
from penstock.log.log_reader import LogReader
from penstock.log.reader import SegmentReader
from penstock.record.batch import Batch
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import messages
from tests.unit.log.watched import WatchedFiles

ROWS = 5


class Crowd:
    """Threads whose failures become the test's."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self.over = threading.Event()

    def start(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as exc:  # noqa: BLE001 - raised again by `join`
                self._failures.append(exc)
                self.over.set()

        thread = threading.Thread(target=guarded, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"
        if self._failures:
            raise self._failures[0]


def publish(log: LocalLog, batches: int, name: bytes = b"") -> None:
    for number in range(batches):
        log.append(Batch.build([b"%s%d.%d" % (name, number, row) for row in range(ROWS)]))


def follow(log: SegmentReader, end: int, seen: list[int]) -> None:
    """Read along to an offset, and take note of what was met."""
    position = 0
    while position < end:
        assert log.wait(position, 60)  # type: ignore[attr-defined]
        try:
            step = log.read(position, 2000)
        except OffsetOutOfRange as exc:
            assert exc.start > position  # noqa: PT017 - this is the moment to look
            position = exc.start
            continue
        assert not step.damage
        for message in step.messages():
            assert message.offset >= position
            seen.append(message.offset)
            position = message.offset + 1
        position = max(position, step.next_offset)


def test_readers_beside_a_writer_see_every_message_once(open_log: Opener) -> None:
    log = open_log(segment_bytes=8192, committer=BackgroundCommitter("test"))
    crowd, end = Crowd(), 300 * ROWS
    seen: list[list[int]] = [[] for _ in range(4)]
    for one in seen:
        crowd.start(lambda one=one: follow(log, end, one))
    crowd.start(lambda: publish(log, 300))
    crowd.join()
    assert seen == [list(range(end))] * 4
    assert len(log.segments) > 5


def test_appends_of_many_threads_never_mix(open_log: Opener) -> None:
    log = open_log(segment_bytes=8192, committer=BackgroundCommitter("test"))
    crowd = Crowd()
    for name in (b"a", b"b", b"c", b"d"):
        crowd.start(lambda name=name: publish(log, 100, name))
    crowd.join()
    held = [message.value or b"" for message in messages(log)]
    assert len(held) == 400 * ROWS
    for name in (b"a", b"b", b"c", b"d"):
        mine = [value for value in held if value.startswith(name)]
        assert mine == [b"%s%d.%d" % (name, n, row) for n in range(100) for row in range(ROWS)]
    for at in range(0, len(held), ROWS):  # a batch stays together
        assert len({value.split(b".")[0] for value in held[at : at + ROWS]}) == 1


@pytest.mark.parametrize("kind", ["inside", "outside"])
def test_readers_go_on_while_the_log_is_trimmed(open_log: Opener, kind: str) -> None:
    log = open_log(segment_bytes=4096, committer=BackgroundCommitter("test"))
    crowd, end = Crowd(), 400 * ROWS

    def trim_along() -> None:
        while log.end < end and not crowd.over.is_set():
            log.trim(log.end - 200)
        log.sync()

    seen: list[int] = []
    reader = log if kind == "inside" else LogReader.open(log.folder)
    crowd.start(lambda: follow(reader, end, seen))
    crowd.start(trim_along)
    crowd.start(lambda: publish(log, 400))
    crowd.join()
    assert seen == sorted(set(seen))
    assert seen[-1] == end - 1


@pytest.mark.parametrize("kind", ["inside", "outside"])
def test_readers_go_on_while_the_log_is_compacted(open_log: Opener, kind: str) -> None:
    log = open_log(segment_bytes=4096, committer=BackgroundCommitter("test"))
    crowd, batches = Crowd(), 300

    def write() -> None:
        for number in range(batches):
            # Of every two messages, one expires; the other is there for ever.
            log.append(Batch.build([b"%d" % number, b"stays"], expires_at_us=[1, None]))
        log.sync()

    def compact() -> None:
        while log.end < 2 * batches and not crowd.over.is_set():
            log.compact(now_us=5)
        log.compact(now_us=5)

    seen: list[int] = []
    reader = log if kind == "inside" else LogReader.open(log.folder)
    crowd.start(lambda: follow(reader, 2 * batches - 1, seen))
    crowd.start(compact)
    crowd.start(write)
    crowd.join()
    assert seen == sorted(set(seen))
    assert {offset for offset in seen if offset % 2} == set(range(1, 2 * batches, 2))
    sealed_end = log.segments[-1].base_offset
    left = [m.offset for m in messages(log) if m.offset < sealed_end]
    assert left == list(range(1, sealed_end, 2))


def test_finding_goes_on_while_the_log_changes(open_log: Opener) -> None:
    log = open_log(segment_bytes=4096, committer=BackgroundCommitter("test"))
    crowd, count = Crowd(), 1500

    def write() -> None:
        for number in range(count):
            log.append(Batch.build([b"x" * 50], timestamps_us=number * 10))

    def search() -> None:
        while log.end < count and not crowd.over.is_set():
            end = log.end
            if end:
                found = log.find((end - 1) * 10)
                assert found == end - 1
            block = log.next_block(0, 1)
            assert end <= block <= log.end  # nobody sends critical messages
            assert log.next_block(0, 1 << 2) == log.start or not end

    def compact() -> None:
        while log.end < count and not crowd.over.is_set():
            log.compact(now_us=0)

    crowd.start(search)
    crowd.start(compact)
    crowd.start(write)
    crowd.join()


def test_a_trim_in_the_middle_of_a_compaction_wins(open_log: Opener, files: WatchedFiles) -> None:
    for moment in range(1, 200):
        log = open_log(open_log._folder.parent / f"log{moment}", segment_bytes=4096)
        for number in range(20):
            expires = 1 if number % 2 else None
            log.append(Batch.build([b"x" * 900], keys=["k"], expires_at_us=expires))
        log.sync()
        assert len(log.segments) > 3
        left = moment

        def trim_then(what: str, name: str, log: LocalLog = log) -> None:
            nonlocal left
            left -= what != "remove"  # by then the compaction is over
            if left == 0:
                files.before = None
                log.trim(13)

        files.before = trim_then
        log.compact(now_us=5, keyed=moment % 2 == 0)
        reached, files.before = left <= 0, None
        assert [m.offset for m in messages(log)][-1] == 19
        assert {m.offset for m in messages(log)} <= set(range(log.start, 20))
        log.close()
        if not reached:
            break
        assert log.start == 13
    assert moment > 20
