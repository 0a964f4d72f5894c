"""Rows of runs of messages, told message by message."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyroaring import BitMap64

from penstock.record.schema import ulid_text
from penstock.trace import exploded as module
from penstock.trace.events import NAMES, NO_TRACE, TraceKind, TraceRow, encode_block
from penstock.trace.exploded import EVENTS, exploded


def drawn(rng: random.Random) -> TraceRow:
    count = rng.choice([1, 2, 7, 40])
    first = rng.randrange(1 << 40)

    def holes() -> BitMap64 | None:
        if rng.random() < 0.5:
            return None
        return BitMap64([first + offset for offset in rng.sample(range(3 * count), count)])

    def each(size: int) -> bytes:
        return b"".join(rng.choice([rng.randbytes(16), NO_TRACE]) for _ in range(size))

    at = holes()
    row = TraceRow(
        at_us=rng.randrange(1 << 50),
        kind=rng.choice(list(TraceKind)),
        topic=rng.choice(["orders", "shop/orders", "mail"]),
        partition=rng.randrange(9),
        first=first if at is None else at[0],
        count=count,
        holes=at,
        # That of the first may end so that counting on carries.
        ids=rng.choice([None, rng.randbytes(8) + b"\xff" * 7 + rng.randbytes(1), each(count)]),
        trace_ids=rng.choice([None, rng.randbytes(16), each(count)]),
        group=rng.choice(["", "billing"]),
        consumer=rng.choice(["", "c"]),
        delivery_count=rng.randrange(3),
        lease=rng.choice([0, rng.randrange(1 << 59)]),
        until_us=rng.choice([0, 5]),
        error=rng.choice(["", "no ink"]),
    )
    if rng.random() < 0.5:
        row.origin_topic, row.origin_partition = rng.choice(["shop/orders", "mail"]), 3
        row.origin_holes = holes()
        row.origin_first = first if row.origin_holes is None else row.origin_holes[0]
    return row


def told(row: TraceRow, nth: int) -> dict[str, Any]:
    """What the row itself says of one of its messages."""
    ulid, trace_id = row.ulid(nth), row.trace_id(nth)
    return {
        "at": row.at_us,
        "event": NAMES[row.kind],
        "topic": row.topic.removeprefix("shop/"),
        "partition": row.partition,
        "offset": row.offset(nth),
        "id": None if ulid is None else ulid_text(ulid),
        "trace_id": None if trace_id is None else f"{trace_id:032x}",
        "group": row.group or None,
        "consumer": row.consumer or None,
        "delivery_count": row.delivery_count or None,
        "lease": f"{row.lease:015x}" if row.lease else None,
        "until": row.until_us or None,
        "error": row.error or None,
        "origin_topic": row.origin_topic.removeprefix("shop/") or None,
        "origin_partition": row.origin_partition if row.origin_topic else None,
        "origin_offset": row.origin_offset(nth) if row.origin_topic else None,
    }


@pytest.mark.parametrize("seed", range(20))
def test_each_message_is_told_as_its_row_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    rows = [drawn(rng) for _ in range(rng.randrange(1, 30))]
    longest = rng.choice([3, 50, 1 << 16])
    monkeypatch.setattr(module, "ROWS_MAX", longest)
    batches = list(exploded(encode_block(rows)))
    assert all(batch.schema == EVENTS and len(batch) <= longest for batch in batches)
    found = [
        each
        | {name: each[name] and round(each[name].timestamp() * 1e6) for name in ("at", "until")}
        for batch in batches
        for each in batch.to_pylist()
    ]
    assert found == [told(row, nth) for row in rows for nth in range(row.count)], seed


def test_only_some_topics_are_told_of() -> None:
    rng = random.Random(7)
    rows = [drawn(rng) for _ in range(40)]
    batches = exploded(encode_block(rows), ["mail"])
    assert {each for batch in batches for each in batch["topic"].to_pylist()} == {"mail"}
    assert list(exploded(encode_block(rows), ["gone"])) == []


def test_a_row_of_many_messages_comes_in_parts() -> None:
    row = TraceRow(1, TraceKind.PURGED, "orders", 0, first=5, count=200_000)
    batches = list(exploded(encode_block([row])))
    assert sum(map(len, batches)) == 200_000
    assert max(map(len, batches)) <= 1 << 16
    assert batches[-1]["offset"][-1].as_py() == 200_004
