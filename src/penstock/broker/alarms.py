"""Messages that wait for too long: for a group, or for anybody before retention drops them.

A topic with the setting `lag_alarm` has an alarm for each group, of either mode, whose oldest
message that is not done is older than that. Every topic that drops messages by their age has one
when a message that no group has read is near that age.

An alarm is on while it is true: statistics look for themselves. The housekeeper looks when the next
one can begin, so that the log says when one begins and when it is over, and not too often.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from penstock.broker.partition import Partition
from penstock.broker.retention import TopicRetention
from penstock.broker.topic import Topic
from penstock.broker.withheld import LETTERS_GROUP
from penstock.clock import Clock
from penstock.durations import text
from penstock.model.stats import Alarm, AlarmKind, GroupMode

_logger = logging.getLogger("penstock.broker.alarms")

NEAR_SHARE = 0.8
"""From this share of the retention on a message is near its end."""

LOOK_AGAIN_NS = 10_000_000_000
"""While an alarm is on."""

TOLD_EVERY_US: dict[AlarmKind, int] = {"lag": 300_000_000, "unread": 24 * 3600 * 1_000_000}
"""One that comes and goes is in the log no more often than this."""


_Key: TypeAlias = tuple[AlarmKind, GroupMode | None, str | None]


class OldestUndone(NamedTuple):
    """The oldest message that somebody has not done, and when that is an alarm."""

    kind: AlarmKind
    group: str | None
    mode: GroupMode | None
    partition: int
    since_us: int
    due_us: int


def alarms_of(topic: Topic, retention: TopicRetention, now_us: int) -> list[Alarm]:
    """Those that are on."""
    return [
        Alarm(
            kind=each.kind,
            group=each.group,
            mode=each.mode,
            partition=each.partition,
            age_us=now_us - each.since_us,
        )
        for each in waiting(topic, retention, now_us)
        if each.due_us <= now_us
    ]


def next_alarm_us(topic: Topic, retention: TopicRetention, now_us: int) -> int | None:
    """When the next one begins, by the wall clock, if nothing is done before."""
    return min((each.due_us for each in waiting(topic, retention, now_us)), default=None)


def waiting(topic: Topic, retention: TopicRetention, now_us: int) -> Iterator[OldestUndone]:
    """What can be an alarm, now or later: of each group that is behind, and of all together."""
    settings = topic.settings
    by_age = settings.retention_mode == "time" and bool(settings.retention_ms)
    if settings.lag_alarm_ms is None and not by_age:
        return
    readers = _readers(topic, retention)
    if settings.lag_alarm_ms is not None:
        for (mode, group), positions in readers.items():
            oldest = min(
                (
                    (arrived_us, partition.number)
                    for partition in topic.partitions
                    if (arrived_us := _arrived_us(partition, positions.get(partition.number)))
                    is not None
                ),
                default=None,
            )
            if oldest is not None and group != LETTERS_GROUP:
                due_us = oldest[0] + settings.lag_alarm_ms * 1000
                yield OldestUndone("lag", group, mode, oldest[1], oldest[0], due_us)
    if by_age:
        unread = [
            _unread(topic, p, list(readers.values()), retention, now_us) for p in topic.partitions
        ]
        first = min((each for each in unread if each is not None), key=_due_us, default=None)
        if first is not None:
            yield first


class AlarmLog:
    """Says in the log when an alarm of a topic begins and when it is over."""

    def __init__(self, topic: Topic, retention: TopicRetention, clock: Clock) -> None:
        self._topic = topic
        self._retention = retention
        self._clock = clock
        self._on: dict[_Key, bool] = {}
        """Those that are on, and whether the log was told."""
        self._told_us: dict[_Key, int] = {}

    def look(self, now_ns: int) -> int | None:
        """Say what has begun and what is over; when to look again."""
        if self._retention.streams is not None:
            self._retention.streams.take_in()  # an archive, say, may have got on
        now_us = self._clock.wall_ns() // 1000
        every = waiting(self._topic, self._retention, now_us)
        found = {_key(each): each for each in every if each.due_us <= now_us}
        for key in [key for key in self._on if key not in found]:
            if self._on.pop(key):
                _logger.warning("topic %s: %s", self._topic.name, _over(*key))
        for key, each in found.items():
            if key not in self._on:
                self._on[key] = self._is_worth_telling(key, now_us)
                if self._on[key]:
                    _logger.warning("topic %s: %s", self._topic.name, self._said(each, now_us))
        return self.next_look(now_ns)

    def next_look(self, now_ns: int) -> int | None:
        """When one can begin, or be over, by the monotonic clock."""
        now_us = self._clock.wall_ns() // 1000
        waits_ns = [
            max(each.due_us - now_us, 0) * 1000
            for each in waiting(self._topic, self._retention, now_us)
            if _key(each) not in self._on
        ]
        if self._on:
            waits_ns.append(LOOK_AGAIN_NS)
        lag_alarm_ms = self._topic.settings.lag_alarm_ms
        if lag_alarm_ms is not None:  # what comes meanwhile is no alarm before
            waits_ns.append(lag_alarm_ms * 1_000_000)
        return now_ns + min(waits_ns) if waits_ns else None

    def _is_worth_telling(self, key: _Key, now_us: int) -> bool:
        self._told_us = {
            known: at_us
            for known, at_us in self._told_us.items()
            if abs(now_us - at_us) < TOLD_EVERY_US[known[0]]
        }
        if key in self._told_us:
            return False
        self._told_us[key] = now_us
        return True

    def _said(self, each: OldestUndone, now_us: int) -> str:
        settings = self._topic.settings
        age = text((now_us - each.since_us) // 1_000_000 * 1_000_000_000)
        if each.kind == "lag":
            limit = text((settings.lag_alarm_ms or 0) * 1_000_000)
            return (
                f"{each.mode} group {each.group} has not done a message of partition "
                f"{each.partition} that is {age} old; lag_alarm is {limit}"
            )
        limit = text((settings.retention_ms or 0) * 1_000_000)
        return (
            f"no group has read a message of partition {each.partition} that is {age} old, and "
            f"retention drops it after {limit}"
        )


def _over(kind: AlarmKind, mode: GroupMode | None, group: str | None) -> str:
    if kind == "lag":
        return f"{mode} group {group} has no message any more that is older than lag_alarm"
    return "no message is near its end any more that no group has read"


def _key(each: OldestUndone) -> _Key:
    return each.kind, each.mode, each.group


def _due_us(each: OldestUndone) -> int:
    return each.due_us


def _readers(
    topic: Topic, retention: TopicRetention
) -> dict[tuple[GroupMode, str], dict[int, int]]:
    """How far each group is, by partition; it has all to do on a partition that is not named."""
    found: dict[tuple[GroupMode, str], dict[int, int]] = {}
    for partition in topic.partitions:
        for group, queue in list(partition.queues.items()):
            committed = queue.state.committed
            if queue.stats(partition.log.end).depth == 0:
                committed = partition.log.end
            found.setdefault(("queue", group), {})[partition.number] = committed
    if retention.streams is not None:
        for group, positions in retention.streams.positions(topic.name).items():
            found["stream", group] = positions
    return found


def _arrived_us(partition: Partition, position: int | None) -> int | None:
    """When the first message came that a group has not done; None: it has done all."""
    log = partition.log
    start = log.start if position is None else max(position, log.start)
    return partition.source.arrived_us(start) if start < log.end else None


def _unread(
    topic: Topic,
    partition: Partition,
    readers: list[dict[int, int]],
    retention: TopicRetention,
    now_us: int,
) -> OldestUndone | None:
    """The first message that no group has read, and when that is near its end."""
    log, settings = partition.log, topic.settings
    age_us = (settings.retention_ms or 0) * 1000
    grows_old_us = log.grows_old_us(settings.retention())
    if grows_old_us is None:
        return None
    near_us = grows_old_us - round(age_us * (1 - NEAR_SHARE))
    position = max((each.get(partition.number, log.start) for each in readers), default=log.start)
    if position >= log.end or min(retention.waited_for(topic, partition), default=log.end) <= (
        max(position, log.start)
    ):
        return None  # all is read, or retention waits for who has not
    if near_us > now_us:  # soon enough to look for the message then
        return OldestUndone("unread", None, None, partition.number, now_us, near_us)
    arrived_us = _arrived_us(partition, position) or now_us
    due_us = max(near_us, arrived_us + round(age_us * NEAR_SHARE))
    return OldestUndone("unread", None, None, partition.number, arrived_us, due_us)
