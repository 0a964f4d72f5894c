"""What delivery reads of a log, with what was appended or read last at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.source import LogSource
from penstock.delivery.offsets import Offsets
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from penstock.record.plain import Single


class Reads:
    """A source, its log, and how often that was read."""

    def __init__(self, log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = log
        self.source = LogSource(log)
        self.count = 0
        frames = log.frames

        def counted(offset: int, max_bytes: int) -> object:
            self.count += 1
            return frames(offset, max_bytes)

        monkeypatch.setattr(log, "frames", counted)

    def publish(self, batch: Batch) -> None:
        self.source.appended(batch, self.log.append(batch))


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    with LocalLog.open(tmp_path / "log") as log:
        yield Reads(log, monkeypatch)


@pytest.mark.parametrize(
    "batch",
    [
        Single(b"two", priority=1),
        Single(b"two").expiring(1_900_000_000_000_000),
        Single(b"two", timestamp_us=77).expiring(99),
    ],
)
def test_message_for_which_a_reader_waited_is_not_read_from_the_log(
    reads: Reads, batch: Batch
) -> None:
    reads.publish(Single(b"one"))
    reads.source.fetch(Offsets.run(0, 1))
    before = reads.count

    reads.publish(batch)
    (found,) = reads.source.fetch(Offsets.run(1, 2))
    assert reads.source.expired(Offsets.run(1, 2), 100).count == int(found.expires_us()[0] <= 100)

    assert reads.count == before
    (read,) = LogSource(reads.log).fetch(Offsets.run(1, 2))
    assert found == read
    assert found.messages() == read.messages()


def test_nothing_is_kept_for_a_reader_who_is_behind(reads: Reads) -> None:
    for value in (b"one", b"two", b"three"):
        reads.publish(Single(value))

    found = reads.source.fetch(Offsets.run(0, 3))

    assert [value for batch in found for value in batch.values.to_pylist()] == [
        b"one",
        b"two",
        b"three",
    ]


def test_what_was_asked_last_is_what_it_was(reads: Reads) -> None:
    batch = Batch.build([b"one", b"two", b"three"], keys=[b"a", b"b", b"c"])
    reads.publish(batch)

    first = reads.source.fetch(Offsets.run(0, 2))
    again = reads.source.fetch(Offsets.run(0, 2))
    other = reads.source.fetch(Offsets.run(1, 3))

    assert [batch.values.to_pylist() for batch in first] == [[b"one", b"two"]]
    assert [batch.values.to_pylist() for batch in again] == [[b"one", b"two"]]
    assert [batch.values.to_pylist() for batch in other] == [[b"two", b"three"]]


def test_memory_that_others_may_change_is_not_kept(reads: Reads) -> None:
    reads.publish(Single(b"one"))
    reads.source.fetch(Offsets.run(0, 1))
    before = reads.count

    reads.publish(Batch.build([b"two"], keys=[b"key"]))
    (found,) = reads.source.fetch(Offsets.run(1, 2))

    assert reads.count == before + 1
    assert found.keys.to_pylist() == [b"key"]
