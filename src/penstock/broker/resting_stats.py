"""Statistics of topics that are not open, so that who watches them all need not open them again.

Nothing in such a topic changes before somebody opens it, but what depends on the time, on its
dead letters, or on the history of latencies: that is looked up anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.model.names import TopicName
from penstock.model.stats import Alarm, GroupStats, TopicStats

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class _Taken(msgspec.Struct, frozen=True, array_like=True):
    at_us: int
    stats: TopicStats


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Taken)


class RestingStats:
    """One entry of some hundred bytes for each such topic. The broker's lock is held."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._taken: dict[TopicName, bytes] = {}

    def keep(self, name: TopicName, stats: TopicStats) -> None:
        taken = _Taken(self._broker.clock.wall_ns() // 1000, stats)
        self._taken[name] = _encoder.encode(taken)

    def forget(self, name: TopicName) -> None:
        """It is opened, or deleted."""
        self._taken.pop(name, None)

    def __contains__(self, name: TopicName) -> bool:
        """Without the lock, too."""
        return name in self._taken

    def of(self, name: TopicName, dead: int) -> TopicStats | None:
        data = self._taken.get(name)
        if data is None:
            return None
        taken = _decoder.decode(data)
        later_us = self._broker.clock.wall_ns() // 1000 - taken.at_us
        return msgspec.structs.replace(
            taken.stats,
            dead=dead,
            groups=[self._group(name, group, later_us) for group in taken.stats.groups],
            alarms=[_older(alarm, later_us) for alarm in taken.stats.alarms],
        )

    def _group(self, name: TopicName, group: GroupStats, later_us: int) -> GroupStats:
        age_us, latencies = group.oldest_age_us, self._broker.latencies
        return msgspec.structs.replace(
            group,
            oldest_age_us=None if age_us is None else max(0, age_us + later_us),
            waited=latencies.recent(name, group.group, "waited"),
            handled=latencies.recent(name, group.group, "handled"),
        )


def _older(alarm: Alarm, later_us: int) -> Alarm:
    return msgspec.structs.replace(alarm, age_us=max(0, alarm.age_us + later_us))
