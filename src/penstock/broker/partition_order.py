"""Which partition is asked first when any of them will do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count

from penstock.broker.partition import Partition
from penstock.delivery.queue import STARVING
from penstock.record.schema import Priority

PASSED_OVER_MAX = 3

_NOTHING = len(Priority)


class PartitionOrder:
    """For one topic. Partitions take turns, and the most urgent message goes first wherever it is.

    Steady urgent traffic on some partitions starves no other one: when partitions with something
    less urgent were passed over three times in a row, it is theirs. An urgent message that comes
    alone is always next, and so is one that has waited for too long. Nothing of this is kept: a
    restart begins anew.
    """

    def __init__(self) -> None:
        self._turn = count()
        self._turn_of_others = count()  # their own: else the same one of them may always be first
        # By group and priority: how often others were passed over because of it.
        self._passed_over: defaultdict[str, list[int]] = defaultdict(lambda: [0] * _NOTHING)

    def order(self, group: str, partitions: Sequence[Partition]) -> Sequence[Partition]:
        if len(partitions) == 1:
            return partitions
        start = next(self._turn) % len(partitions)
        turns = [*partitions[start:], *partitions[:start]]
        best = {each.number: each.best_ready(group) for each in turns}
        ready = {priority for priority in best.values() if priority != _NOTHING}
        if not ready:
            return turns
        urgent = min(ready)
        if urgent == STARVING:
            return sorted(turns, key=lambda each: best[each.number] != STARVING)
        passed_over = self._passed_over[group]
        passed_over[:urgent] = [0] * urgent  # what was more urgent is done with
        if len(ready) > 1:
            passed_over[urgent] += 1
            if passed_over[urgent] > PASSED_OVER_MAX:
                passed_over[urgent] = 0
                others = [p for p in partitions if best[p.number] not in (urgent, _NOTHING)]
                first = others[next(self._turn_of_others) % len(others)]
                return [first, *(each for each in turns if each is not first)]
        turns.sort(key=lambda each: best[each.number])
        return turns
