"""What a round does to the rows that a table has: pure, in Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.flows.definition import Measure

AT, OFFSET, ORDER, DELETED = "_at", "_offset", "_order", "_deleted"


def latest_of_each(
    rows: pa.Table, keys: Sequence[str], known_of: Callable[[pa.Table], pa.Table]
) -> pa.Table:
    """One row of each key: the latest. `known_of`: what the table has of the keys of some rows.

    What removes its key and does not say when, such as a tombstone, has the order of the latest row
    that was published before it: so it wins over that, and neither over what is made again later
    nor, for whoever comes late, over nothing at all.
    """
    if ORDER in rows.column_names and ORDER not in keys:
        removals = rows.filter(pc.and_(rows[ORDER].is_null(), rows[DELETED]))
        if len(removals):
            rows = _with_order(rows, known_of(removals), keys)
    return last_of_each(rows, keys)


def _with_order(rows: pa.Table, known: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Rows that remove their key with an order, if there is one before them."""
    names = [*keys, AT, OFFSET, ORDER]
    mine = rows.select(names)
    every = pa.concat_tables([mine, known.select(names).cast(mine.schema)])
    key = np.concatenate([codes.to_numpy() for codes in _codes(rows, known, keys)])
    values = pc.unique(every[ORDER]).drop_null()
    values = values.take(pc.array_sort_indices(values))
    # Numbers in the order of the values; 0 where there is none.
    rank = pc.fill_null(pc.add(pc.index_in(every[ORDER], value_set=values), 1), 0).to_numpy()
    at, offset = every[AT].cast(pa.int64()).to_numpy(), every[OFFSET].to_numpy()
    by_time = np.lexsort((offset, at, key))
    steps = key[by_time] * (len(values) + 1)
    largest = np.empty(len(every), np.int64)
    largest[by_time] = np.maximum.accumulate(steps + rank[by_time]) - steps
    before = pa.array(largest[: len(rows)] - 1)
    found = values.take(pc.if_else(pc.greater_equal(before, 0), before, None))
    is_undated = pc.and_(rows[ORDER].is_null(), rows[DELETED])
    filled = pc.if_else(is_undated, found, rows[ORDER].combine_chunks())
    number = rows.schema.get_field_index(ORDER)
    return rows.set_column(number, rows.schema.field(number), filled)


def last_of_each(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """One row of each key: the one that is latest by order, time and offset."""
    if not len(rows):
        return rows
    by = rows.select([*keys, AT, OFFSET])
    if ORDER in rows.column_names and ORDER not in keys:
        # What has none removes a key of which nothing was known: all that has one is later.
        by = by.add_column(len(keys), ORDER, rows[ORDER])
        by = by.add_column(len(keys), "_has_order", rows[ORDER].is_valid())
    rows = rows.take(pc.sort_indices(by, [(name, "ascending") for name in by.column_names]))
    return rows.filter(_ends(rows, keys))


def with_intervals(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Versions with the time until which each was valid, and whether it still is."""
    rows = rows.sort_by([*((key, "ascending") for key in keys), ("valid_from", "ascending")])
    is_last = _ends(rows, keys)
    begins = rows["valid_from"].combine_chunks()
    following = pa.concat_arrays([begins.slice(1), pa.nulls(min(1, len(begins)), begins.type)])
    ends = pc.if_else(is_last, pa.scalar(None, begins.type), following)
    is_current = pc.and_(is_last, pc.invert(pc.fill_null(rows[DELETED], False)))
    for name in ("valid_to", "is_current"):
        if name in rows.column_names:
            rows = rows.drop_columns([name])
    return rows.append_column("valid_to", ends).append_column("is_current", is_current)


def _ends(rows: pa.Table, keys: Sequence[str]) -> pa.BooleanArray:
    """Of sorted rows, which is the last of its key."""
    differs = pa.repeat(pa.scalar(False), max(0, len(rows) - 1))
    for key in keys:
        column = rows[key].combine_chunks()
        one, other = column.slice(0, len(rows) - 1), column.slice(1)
        unlike = pc.fill_null(pc.not_equal(one, other), True)
        both_null = pc.and_(one.is_null(), other.is_null())
        differs = pc.or_(differs, pc.and_(unlike, pc.invert(both_null)))
    return pa.concat_arrays([differs, pa.array([True] * min(1, len(rows)))])


def having_keys(rows: pa.Table, wanted: pa.Table, keys: Sequence[str]) -> pa.BooleanArray:
    """Which rows have a key that one of the others has; a null is like a null."""
    own, others = _codes(rows, wanted, keys)
    return pc.is_in(own, value_set=others)


def newer(rows: pa.Table, known: pa.Table, keys: Sequence[str], *, ordered: bool) -> pa.Table:
    """Of rows, one of each key, those that are not before the one that is known of their key."""
    own, others = _codes(rows, known, keys)
    place = pc.index_in(own, value_set=others)

    def both(name: str) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        return rows[name], known[name].take(place)

    (at, known_at), (offset, known_offset) = both(AT), both(OFFSET)
    wins = pc.or_(
        pc.greater(at, known_at),
        pc.and_(pc.equal(at, known_at), pc.greater_equal(offset, known_offset)),
    )
    if ordered:
        order, known_order = both(ORDER)
        unclear = pc.or_kleene(
            pc.equal(order, known_order), pc.or_(pc.is_null(order), pc.is_null(known_order))
        )
        wins = pc.or_kleene(pc.greater(order, known_order), pc.and_kleene(unclear, wins))
    return rows.filter(pc.or_(pc.is_null(place), pc.fill_null(wins, False)))


def summed(rows: pa.Table, measures: Mapping[str, tuple[Measure, str]]) -> pa.Table:
    """One row of each group, of several that have parts of its measures."""
    groups = [name for name in rows.column_names if name not in measures]
    how = {"count": "sum"}
    found = rows.group_by(groups).aggregate(
        [(name, how.get(kind, kind)) for name, (kind, _) in measures.items()]
    )
    names = {f"{name}_{how.get(kind, kind)}": name for name, (kind, _) in measures.items()}
    found = found.rename_columns([names.get(name, name) for name in found.column_names])
    return found.select(rows.column_names).cast(rows.schema)


def _codes(one: pa.Table, other: pa.Table, keys: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """A number for each row, the same for those with the same key."""
    code = pa.repeat(pa.scalar(0, pa.int64()), len(one) + len(other))
    for key in keys:
        kind = one.schema.field(key).type
        values = pa.chunked_array([*one[key].chunks, *other[key].cast(kind).chunks], kind)
        found = values.combine_chunks().dictionary_encode(null_encoding="encode")
        code = pc.add(pc.multiply(code, len(found.dictionary)), found.indices.cast(pa.int64()))
        code = code.dictionary_encode().indices.cast(pa.int64())
    return code.slice(0, len(one)), code.slice(len(one))
