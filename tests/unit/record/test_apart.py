"""Messages of a batch by themselves, as they are handed out one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log.local import LocalLog
from penstock.record.plain import Plain, Single
from penstock.record.singles import RUN_MIN, Singles

VALUES = [b"v%d" % number for number in range(RUN_MIN + 6)]


def test_neighbours_are_apart_what_they_are_together(tmp_path: Path) -> None:
    with LocalLog.open(tmp_path) as log:
        for number, value in enumerate(VALUES):
            log.append(Single(value, priority=number % 5))
        (batch,) = log.read(0)

    assert isinstance(batch, Singles)
    apart = batch.apart(2, 5)
    assert [message for each in apart for message in each.messages()] == batch.messages()[2:7]
    assert [each.next_offset for each in apart] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("timestamp_us", [None, 17])
def test_rows_are_apart_what_they_are_together(timestamp_us: int | None) -> None:
    batch = Plain(VALUES, timestamp_us, 3, 100, 1 << 80)

    apart = batch.apart(4, 100)

    assert [message for each in apart for message in each.messages()] == batch.messages()[4:]
    assert [each.priority for each in apart] == [3] * (len(VALUES) - 4)
