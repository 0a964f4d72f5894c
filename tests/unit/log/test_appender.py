"""The buffered appender: single messages in, batches out."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import DiskFull, InvalidInput, LogClosed, LogFailed, MessageTooLarge
from penstock.log.appender import BufferedAppender
from penstock.log.commit import BackgroundCommitter, ManualCommitter
from penstock.log.local import LocalLog
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import messages, values
from tests.unit.log.watched import WatchedFiles, failing


@pytest.fixture
def log(open_log: Opener) -> LocalLog:
    return open_log()


@pytest.fixture
def appender(log: LocalLog, clock: ManualClock, committer: ManualCommitter) -> BufferedAppender:
    return buffered(log, clock, committer)


def buffered(
    log: LocalLog, clock: ManualClock, committer: ManualCommitter, **settings: Any
) -> BufferedAppender:
    return BufferedAppender(log, clock=clock, committer=committer, **settings)


def frames(log: LocalLog) -> list[int]:
    """How many messages each frame of the log holds."""
    return [header.row_count for header in log.headers(0)]


def test_messages_wait_for_each_other_until_a_flush(
    log: LocalLog, appender: BufferedAppender
) -> None:
    for word in ("a", b"b", "c"):
        appender.send(word)
    assert log.end == 0
    appender.flush()
    assert values(log) == [b"a", b"b", b"c"]
    assert frames(log) == [3]
    appender.flush()
    assert frames(log) == [3]


def test_a_batch_is_written_when_it_holds_enough_messages(
    log: LocalLog, clock: ManualClock, committer: ManualCommitter
) -> None:
    appender = buffered(log, clock, committer, messages_max=10)
    for number in range(35):
        appender.send(b"%d" % number)
        assert log.end == (number + 1) // 10 * 10
    appender.flush()
    assert frames(log) == [10, 10, 10, 5]


def test_a_batch_is_written_when_it_holds_enough_bytes(
    log: LocalLog, clock: ManualClock, committer: ManualCommitter
) -> None:
    appender = buffered(log, clock, committer, bytes_max=1000)
    for _ in range(9):
        appender.send(b"x" * 100)
    assert log.end == 0
    appender.send(b"x" * 100)
    assert frames(log) == [10]
    appender.send(b"x" * 5000)
    assert frames(log) == [10, 1]


def test_keys_and_headers_are_bytes_too(
    log: LocalLog, clock: ManualClock, committer: ManualCommitter
) -> None:
    appender = buffered(log, clock, committer, bytes_max=1000)
    appender.send(b"", key=b"k" * 500)
    assert log.end == 0
    appender.send(b"", headers={"h": b"x" * 499})
    assert log.end == 2


def test_the_first_message_of_a_batch_waits_no_longer_than_the_linger(
    log: LocalLog, clock: ManualClock, committer: ManualCommitter
) -> None:
    appender = buffered(log, clock, committer, linger_ms=5)
    appender.send("a")
    clock.advance(0.004)
    appender.send("b")
    committer.run_due()
    assert log.end == 0
    clock.advance(0.001)
    committer.run_due()
    assert frames(log) == [2]
    clock.advance(1)
    assert committer.run_due() <= 1  # the log's own commit; nothing lingers
    assert frames(log) == [2]


def test_the_linger_counts_from_the_first_message_of_each_batch(
    log: LocalLog, clock: ManualClock, committer: ManualCommitter
) -> None:
    appender = buffered(log, clock, committer, linger_ms=5)
    appender.send("a")
    clock.advance(0.003)
    appender.flush()
    appender.send("b")
    clock.advance(0.003)
    committer.run_due()  # what was scheduled for "a" is due, "b" has 2 ms left
    assert frames(log) == [1]
    clock.advance(0.002)
    committer.run_due()
    assert frames(log) == [1, 1]


def test_a_message_can_be_asked_for_its_offset_at_once(
    log: LocalLog, appender: BufferedAppender
) -> None:
    first, second = appender.send("a"), appender.send("b")
    assert second.result(0) == 1
    assert first.result(0) == 0
    third = appender.send("c")
    assert third.result(0) == 2
    assert [first.result(0), second.result(0)] == [0, 1]
    assert frames(log) == [2, 1]


def test_with_always_the_offset_comes_when_it_is_durable(
    open_log: Opener, clock: ManualClock, committer: ManualCommitter
) -> None:
    log = open_log(fsync="always")
    appender = buffered(log, clock, committer)
    sent = appender.send("a")
    appender.flush()
    with pytest.raises(TimeoutError):
        sent.result(0)
    committer.run_due()
    assert sent.result(0) == 0
    assert log.durable_end == 1


def test_messages_of_every_kind_share_a_batch(log: LocalLog, appender: BufferedAppender) -> None:
    appender.send("plain")
    appender.send("keyed", "k")
    appender.send("plain again")
    appender.send("urgent", priority="critical")
    appender.send("with headers", headers={"a": "1", "b": b"2", "c": None})
    appender.send("expiring", expires_at_us=99)
    appender.send("everything", b"k", headers={"d": b""}, priority=4, expires_at_us=1)
    appender.send("plain at last", priority="normal")
    appender.flush()
    assert frames(log) == [8]
    assert [(m.value, m.key, m.headers, m.priority, m.expires_at_us) for m in messages(log)] == [
        (b"plain", None, {}, 2, None),
        (b"keyed", b"k", {}, 2, None),
        (b"plain again", None, {}, 2, None),
        (b"urgent", None, {}, 0, None),
        (b"with headers", None, {"a": b"1", "b": b"2", "c": None}, 2, None),
        (b"expiring", None, {}, 2, 99),
        (b"everything", b"k", {"d": b""}, 4, 1),
        (b"plain at last", None, {}, 2, None),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"value": 7}, "value must be bytes or str, not int"),
        ({"value": "\ud800"}, "value: .*surrogates"),
        ({"value": "a", "key": 7}, "key must be bytes or str, not int"),
        ({"value": "a", "key": "\ud800"}, "key: .*surrogates"),
        ({"value": "a", "headers": {"h": 7}}, "header 'h' must be bytes or str, not int"),
        ({"value": "a", "headers": {7: b"h"}}, "name of a header must be str, not int"),
        ({"value": "a", "headers": {"\ud800": b"h"}}, "name of a header: .*surrogates"),
        ({"value": "a", "headers": ["h"]}, "headers must be a dict, not list"),
        ({"value": "a", "priority": "urgent"}, "priority 'urgent' is not one of"),
        ({"value": "a", "priority": 7}, "priority 7 is not one of"),
        ({"value": "a", "expires_at_us": "tomorrow"}, "expires_at_us is 'tomorrow'"),
        ({"value": "a", "expires_at_us": 1.5}, r"expires_at_us is 1\.5"),
        ({"value": "a", "expires_at_us": 1 << 63}, "expires_at_us is 9223372036854775808"),
    ],
    ids=str,
)
def test_a_wrong_message_is_refused_at_once_and_spoils_no_other(
    log: LocalLog, appender: BufferedAppender, arguments: dict[str, Any], sentence: str
) -> None:
    appender.send("before")
    with pytest.raises(InvalidInput, match=sentence):
        appender.send(**arguments)
    appender.send("after", key="k", headers={"h": "1"}, expires_at_us=5)
    appender.flush()
    assert values(log) == [b"before", b"after"]
    assert messages(log)[1].key == b"k"


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": b"x" * 1001},
        {"value": b"x" * 600, "key": b"k" * 401},
        {"value": b"x" * 600, "headers": {"h" * 200: b"v" * 201}},
    ],
    ids=["value", "key", "headers"],
)
def test_a_message_that_is_too_long_is_refused_at_once_and_spoils_no_other(
    open_log: Opener, clock: ManualClock, committer: ManualCommitter, arguments: dict[str, Any]
) -> None:
    log = open_log(message_bytes_max=1000)
    appender = buffered(log, clock, committer)
    appender.send("before")
    with pytest.raises(MessageTooLarge, match="1001 bytes; at most 1000"):
        appender.send(**arguments)
    appender.send("after")
    appender.flush()
    assert values(log) == [b"before", b"after"]


def test_a_batch_that_could_not_be_written_tells_each_sender_and_the_next_flush(
    log: LocalLog, appender: BufferedAppender, files: WatchedFiles
) -> None:
    lost = [appender.send("a"), appender.send("b")]
    files.before = failing("append", OSError(errno.ENOSPC, "No space left on device"), ".log")
    with pytest.raises(DiskFull):
        appender.flush()
    for sent in lost:
        with pytest.raises(DiskFull):
            sent.result(0)
    assert appender.send("c").result(0) == 0  # there is room again
    appender.flush()  # the error was told once
    assert values(log) == [b"c"]


def test_an_error_in_the_background_surfaces_at_the_next_flush_or_close(
    log: LocalLog, clock: ManualClock, committer: ManualCommitter, files: WatchedFiles
) -> None:
    appender = buffered(log, clock, committer, linger_ms=5)
    sent = appender.send("a")
    files.before = failing("append", OSError(errno.EIO, "Input/output error"), ".log")
    clock.advance(0.005)
    committer.run_due()
    with pytest.raises(LogFailed):
        sent.result(0)
    with pytest.raises(LogFailed):
        appender.close()


def test_an_interrupted_flush_loses_nothing(
    log: LocalLog, appender: BufferedAppender, files: WatchedFiles
) -> None:
    first, second = appender.send("a"), appender.send("b", key="k")
    files.before = failing("append", KeyboardInterrupt(), ".log")
    with pytest.raises(KeyboardInterrupt):
        appender.flush()
    third = appender.send("c")
    appender.close()
    assert values(log) == [b"a", b"b", b"c"]
    assert [sent.result(0) for sent in (first, second, third)] == [0, 1, 2]


def test_closing_writes_what_is_pending_and_takes_no_more(
    log: LocalLog, appender: BufferedAppender
) -> None:
    with appender:
        sent = appender.send("a")
    assert sent.result(0) == 0
    with pytest.raises(LogClosed):
        appender.send("b")
    appender.close()
    assert values(log) == [b"a"]
    log.sync()  # the log itself stays open


def test_a_closed_log_is_told_to_whoever_sends(log: LocalLog, appender: BufferedAppender) -> None:
    sent = appender.send("a")
    log.close()
    with pytest.raises(LogClosed):
        sent.result(0)
    with pytest.raises(LogClosed):
        appender.flush()


def test_threads_that_send_at_the_same_time_each_get_their_own_offset(open_log: Opener) -> None:
    log = open_log(committer=BackgroundCommitter("test"))
    got: dict[bytes, int] = {}

    def send(name: int) -> None:
        sent = {b"%d.%d" % (name, n): appender.send(b"%d.%d" % (name, n)) for n in range(300)}
        got.update({value: one.result(60) for value, one in sent.items()})

    with BufferedAppender(log, messages_max=37, linger_ms=1) as appender:
        threads = [threading.Thread(target=send, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    held = {m.value: m.offset for m in messages(log)}
    assert got == held
    assert len(held) == 1800


def test_a_lonely_message_is_written_by_the_background_thread(open_log: Opener) -> None:
    log = open_log(committer=BackgroundCommitter("test"))
    with BufferedAppender(log, linger_ms=1) as appender:
        appender.send("a")
        assert log.wait(0, 60)
    assert values(log) == [b"a"]
