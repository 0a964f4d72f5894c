"""Whether records that did not come from a stream are gone, or are only not given. Pure.

A NATS server passes over a record that it cannot read in its own files, as if it had been deleted:
whoever believed it would go on without a record that was committed. So each number that is missing
has to be one of those that the stream says it has dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def missing_in(seqs: Iterable[int], next_seq: int) -> list[range]:
    """The numbers that lie between records that came, the first of which should be `next_seq`."""
    found = []
    for seq in seqs:
        if seq > next_seq:
            found.append(range(next_seq, seq))
        next_seq = seq + 1
    return found


def first_not_dropped(
    missing: Sequence[range], first_seq: int, deleted: Sequence[int]
) -> int | None:
    """The first of the missing numbers that the stream still has; None if it has none.

    `first_seq`: of its first record; `deleted`: what is not there any more behind that.
    """
    dropped = np.sort(np.asarray(deleted, np.int64))
    for each in missing:
        start = max(each.start, first_seq)
        if start >= each.stop:
            continue
        low, high = np.searchsorted(dropped, (start, each.stop)).tolist()
        if high - low < each.stop - start:
            here = set(dropped[low:high].tolist())
            return next(seq for seq in range(start, each.stop) if seq not in here)
    return None
