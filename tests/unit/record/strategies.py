"""Messages as plain Python, for tests that compare batches and frames with lists."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from penstock.record.batch import Batch, Message

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Enough to find most mistakes at once; that a machine is busy is none."""

TIMES_US = st.integers(-(1 << 62), 1 << 62)


class Row(NamedTuple):
    """What a producer says about one message."""

    value: bytes | None
    key: bytes | None = None
    headers: dict[str, bytes | None] = {}  # noqa: RUF012 - never changed
    priority: int = 2
    timestamp_us: int = 0
    expires_at_us: int | None = None

    @classmethod
    def of(cls, message: Message) -> Row:
        return cls(
            message.value,
            message.key,
            message.headers,
            message.priority,
            message.timestamp_us,
            message.expires_at_us,
        )


HEADER_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
HEADER_MAPS = st.dictionaries(HEADER_NAMES, st.none() | st.binary(max_size=6), max_size=3)


@st.composite
def rows(draw: st.DrawFn, min_size: int = 0, max_size: int = 12) -> list[Row]:
    """Messages of which each optional part is used by all, some or none."""

    def some(strategy: st.SearchStrategy, otherwise: object) -> st.SearchStrategy:
        return draw(st.sampled_from([st.just(otherwise), strategy, strategy | st.just(otherwise)]))

    row = st.builds(
        Row,
        value=st.none() | st.binary(max_size=20),
        key=some(st.binary(max_size=8), None),
        headers=some(HEADER_MAPS, {}),
        priority=some(st.integers(0, 4), 2),
        timestamp_us=some(TIMES_US, 1_700_000_000_000_000),
        expires_at_us=some(TIMES_US, None),
    )
    return draw(st.lists(row, min_size=min_size, max_size=max_size))


def batch_of(rows: list[Row]) -> Batch:
    """A batch that uses only the columns which the rows need, as a careful producer would."""
    stamps = [row.timestamp_us for row in rows]
    priorities = [row.priority for row in rows]
    return Batch.build(
        [row.value for row in rows],
        keys=[row.key for row in rows] if any(row.key is not None for row in rows) else None,
        headers=[row.headers for row in rows] if any(row.headers for row in rows) else None,
        priority=priorities if len(set(priorities)) != 1 else priorities[0],
        timestamps_us=stamps if len(set(stamps)) != 1 else stamps[0],
        expires_at_us=[row.expires_at_us for row in rows]
        if any(row.expires_at_us is not None for row in rows)
        else None,
    )


def rows_of(batch: Batch) -> list[Row]:
    return [Row.of(message) for message in batch.messages()]
