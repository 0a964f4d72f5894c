"""A name that nobody knows, and the one that was probably meant."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import pairwise


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like this one, if any is; 1 is the same, 0 nothing alike."""
    from difflib import get_close_matches  # noqa: PLC0415 - only who errs needs it

    found = get_close_matches(name, known, n=1, cutoff=cutoff)
    return found[0] if found else None


def likely(name: str, known: Iterable[str], count: int) -> list[str]:
    """Those that share most pairs of letters with it: a quick look, to compare few of thousands."""
    pairs = set(pairwise(name))
    return heapq.nlargest(count, known, key=lambda other: len(pairs.intersection(pairwise(other))))
