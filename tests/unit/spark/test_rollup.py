"""What a roll-up leaves in its folder when there is nothing to count; without a session."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import penstock
from penstock.spark.pipelines.rollup import RolledUp, rollup
from tests.unit.spark.crashing import die_at


@pytest.fixture
def empty(folder: str) -> str:
    """A data folder with a topic that has no messages."""
    with penstock.connect(folder) as ps:
        ps.create_topic("orders")
    return folder


def run(folder: str, out: Path) -> RolledUp:
    spark: Any = None  # nobody asks it where nothing is to be counted
    return rollup(spark, folder, ["orders"], str(out))


def watch(folder: str) -> None:
    with penstock.connect(folder) as ps:
        ps.reset_stream_group("audit", "orders", "earliest")


def test_a_topic_without_messages_and_groups_has_a_chart(empty: str, tmp_path: Path) -> None:
    done = run(empty, tmp_path / "out")
    assert (done.messages, done.groups) == (0, 0)
    assert Path(done.chart).read_text().startswith("<!doctype html>")


def test_a_run_that_is_killed_while_it_writes_leaves_no_half_a_file(
    empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every later run would stumble over it."""
    watch(empty)

    def half(table: Any, where: Any) -> None:
        (where.write if hasattr(where, "write") else Path(where).write_bytes)(b"PAR1abc")
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", half)
        with pytest.raises(SystemExit):
            run(empty, tmp_path / "out")
    assert run(empty, tmp_path / "out").groups == 1


def test_groups_can_be_read_after_a_run_was_killed_anywhere(empty: str, tmp_path: Path) -> None:
    watch(empty)
    groups = tmp_path / "out" / "groups"
    unfinished = 0
    for step in count(0, 2):
        crashed = die_at(step, lambda: run(empty, tmp_path / "out") and None)
        unfinished += len(list(groups.glob("*.tmp")))
        assert run(empty, tmp_path / "out").groups == 1
        assert all(pq.read_table(file).num_rows for file in groups.iterdir())
        if not crashed:
            break
    assert unfinished
