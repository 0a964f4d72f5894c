"""Lake tables in an object store by the S3 protocol, without a session."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.errors import InvalidInput, LakeConflict, PenstockError
from penstock.spark.lake import found_lake, open_lake, remove_garbage
from penstock.spark.lake_sink import LakeJob, LakeWriter
from penstock.spark.lake_table import TableChange, archived
from penstock.spark.options import parse_write_options
from penstock.spark.outgoing import to_messages
from penstock.spark.staging import Staging
from penstock.spark.table_files import TableFiles
from tests.unit.spark.s3 import s3, troubled  # noqa: F401 - a fixture
from tests.unit.spark.test_lake import SCHEMA, good, rows


def write(table: str, storage: dict[str, str], start: int | None, end: int) -> None:
    job = LakeJob(
        table=table,
        storage=storage,
        bad_table=f"{table}.bad",
        topic="t",
        starts={0: start},
        ends={0: end},
    )
    writer = LakeWriter(job, SCHEMA)
    writer.commit([writer.write(rows(start or 0, end, task)) for task in range(2)])


def offsets_in(table: str, storage: dict[str, str]) -> list[int]:
    found = deltalake.DeltaTable(table, storage_options=storage).to_pyarrow_table()
    return sorted(found["offset"].to_pylist())


def test_a_table_in_a_store_has_each_row_once(s3: dict[str, str]) -> None:  # noqa: F811
    table = "s3://lake/plain/t"
    with pytest.raises(InvalidInput, match="no lake table"):
        found_lake(table, s3)
    for _ in range(2):
        write(table, s3, None, 100)
    write(table, s3, 100, 150)
    with pytest.raises(LakeConflict, match="another pipeline"):
        write(table, s3, 100, 160)
    assert offsets_in(table, s3) == good(150)
    assert archived(found_lake(table, s3), "t", [0]) == {0: 150}
    assert remove_garbage(found_lake(table, s3), older_s=0) == 12  # of the second and the last
    assert offsets_in(table, s3) == good(150)
    assert offsets_in(f"{table}.bad", s3) == [o for o in range(150) if o % 10 == 0]


def test_of_two_commits_at_once_the_store_takes_one(s3: dict[str, str]) -> None:  # noqa: F811
    table, schema = "s3://lake/race/t", pa.schema([("offset", pa.int64())])
    write(table, s3, None, 100)
    one, other = open_lake(table, "delta", s3), open_lake(table, "delta", s3)
    assert archived(one, "t", [0]) == archived(other, "t", [0]) == {0: 100}
    one.commit(TableChange(schema, topic="t", ends={0: 110}))
    with pytest.raises(LakeConflict):
        other.commit(TableChange(schema, topic="t", ends={0: 120}))
    assert archived(found_lake(table, s3), "t", [0]) == {0: 110}


@pytest.mark.parametrize(
    ("seed", "end"), [(1, 90), pytest.param(2, 300, marks=pytest.mark.torture)]
)
def test_each_row_is_in_a_table_once_whatever_the_store_does(
    s3: dict[str, str],  # noqa: F811
    seed: int,
    end: int,
) -> None:
    """Busy, silent, or done and never answered: an archive looks how far it is, and goes on."""
    table = f"s3://lake/trouble{seed}/t"
    failed: Counter[str] = Counter()
    done = 0
    with troubled(s3, seed) as (store, trouble):
        while done < end:
            try:
                known = archived(open_lake(table, "delta", store), "t", [0])[0]
                done = known or 0
                write(table, store, known, done + 30)
            except (PenstockError, OSError) as exc:
                failed[type(exc).__name__] += 1
        seen = trouble.seen
    assert min(seen[each] for each in ("busy", "lost", "silent")) > 0, (seed, failed)
    done = archived(found_lake(table, s3), "t", [0])[0] or 0
    assert offsets_in(table, s3) == good(done), (seed, failed)
    assert offsets_in(f"{table}.bad", s3) == list(range(0, done, 10)), (seed, failed)


def test_a_commit_whose_answer_was_lost_is_known_again(
    s3: dict[str, str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = "s3://lake/lost/t"
    write(table, s3, None, 100)
    commit: Callable[..., Any] = deltalake.DeltaTable.create_write_transaction

    def lost(*args: Any, **kwargs: Any) -> None:
        commit(*args, **kwargs)
        raise deltalake.exceptions.CommitFailedError("the version is there already")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", lost)
    write(table, s3, 100, 150)
    assert offsets_in(table, s3) == good(150)


def test_rows_of_a_sink_wait_in_a_store_and_are_published_once(
    s3: dict[str, str],  # noqa: F811
    folder: str,
    ps: Client,
) -> None:
    """Whatever the store does, and though the decision is carried out twice."""
    ps.create_topic("out", partitions=3)
    values = [f"{n}" for n in range(400)]
    with troubled(s3, 3) as (store, trouble):
        staging = Staging("s3://lake/staging", "query", store)
        for batch in range(4):
            mine = values[batch::4]
            while staging_done(staging) < batch:
                with suppress(PenstockError, OSError):
                    random.shuffle(mine)  # an attempt may have its rows in another order
                    parts = [to_messages(rows_of(mine[t::2]), "out", 1_000) for t in range(2)]
                    files = [staging.stage(batch, t, [part]) for t, part in enumerate(parts)]
                    staging.publish(batch, files, ps)
        assert trouble.seen["lost"]
    found = [m for p in range(3) for m in ps.peek("out", partition=p, limit=1000)]
    assert Counter((m.value or b"").decode() for m in found) == Counter(values)
    left = TableFiles("s3://lake/staging/query", s3)
    assert left.read("done") == b"3"
    left.remove_tree()
    with pytest.raises(FileNotFoundError):
        left.read("done")


def rows_of(values: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": values, "key": [v[-1] for v in values]})


def staging_done(staging: Staging) -> int:
    while True:
        with suppress(OSError):
            return staging.done


def test_where_rows_wait_may_be_a_store() -> None:
    given = {"url": "http://localhost:1", "topic": "t", "checkpointLocation": "s3://b/c"}
    assert parse_write_options(given, stream=True).staging == "s3://b/c/penstock"
    given["staging"] = "gs://b/staging/"
    assert parse_write_options(given, stream=True).staging == "gs://b/staging"
    given["staging"] = "ftp://b"
    with pytest.raises(InvalidInput, match="or in an object store"):
        parse_write_options(given, stream=True)


def test_a_store_of_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidInput, match="s3"):
        open_lake("ftp://somewhere/t")
