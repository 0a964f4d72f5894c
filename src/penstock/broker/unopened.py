"""Topics that are not open: which have to be opened after a start, and when others fall due."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.broker.activity import Activity, Rest
from penstock.broker.alarms import next_alarm_us
from penstock.broker.delays import RECHECK_NS
from penstock.broker.retention import TopicRetention
from penstock.broker.topic import Topic
from penstock.errors import BrokerClosed, PenstockError, TopicNotFound
from penstock.model.names import TopicName

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_logger = logging.getLogger("penstock.broker")

_TRY_AGAIN_NS = 1_000_000_000


class UnopenedTopics:
    """What the housekeeper does about topics that nobody uses. The others call under the broker's
    lock."""

    def __init__(self, activity: Activity, broker: Broker) -> None:
        self._activity = activity
        self._broker = broker
        self._to_open = deque(activity.active())
        self._resting = activity.resting()
        now_ns = broker.clock.monotonic_ns()
        broker.plan(self._open_next, now_ns if self._to_open else None)
        broker.plan(self._wake, self._next_wake(now_ns))

    def opening(self, name: TopicName) -> None:
        """A topic is about to be opened."""
        self._activity.opened(name)
        self._resting.pop(name, None)

    def may_have_delays(self, name: TopicName) -> bool:
        """Whether messages may wait in a topic that is not open."""
        rest = self._resting.get(name)  # first: who opens it notes it as active before it is gone
        return self._activity.is_active(name) or (
            rest is not None and rest.delay_due_us is not None
        )

    def rest(self, topic: Topic, retention: TopicRetention) -> None:
        """Close a topic that nobody uses any more. If that fails it counts as active."""
        rest = _rest_of(topic, retention, self._broker.clock.wall_ns() // 1000)
        topic.close()
        if rest is not None:
            self._activity.rested(topic.name, rest)

    def deleted(self, name: TopicName) -> None:
        self._activity.deleted(name)
        self._resting.pop(name, None)

    def close(self) -> None:
        self._activity.close()

    # For the housekeeper.

    def _open_next(self, now_ns: int) -> int | None:
        """One at a time, so that a call on a topic does not wait for all of them."""
        if not self._to_open:
            return None
        name = self._to_open.popleft()
        if not self._open(name):
            self._to_open.append(name)
            return now_ns + _TRY_AGAIN_NS
        return now_ns if self._to_open else None

    def _wake(self, now_ns: int) -> int | None:
        wall_us = self._broker.clock.wall_ns() // 1000
        for name, rest in list(self._resting.items()):
            due_us = _earliest((rest.delay_due_us, rest.retention_due_us))
            if due_us is not None and due_us <= wall_us:
                self._open(name)
        next_ns = self._next_wake(now_ns)
        if next_ns is not None and next_ns <= now_ns:  # one that could not be opened
            return now_ns + _TRY_AGAIN_NS
        return next_ns

    def _next_wake(self, now_ns: int) -> int | None:
        """Delays are looked at again within a second, because the wall clock can be set."""
        wall_ns = self._broker.clock.wall_ns()
        resting = list(self._resting.values())
        waits_ns = [
            min(max(each * 1000 - wall_ns, 0), longest_ns)
            for each, longest_ns in (
                (_earliest(rest.delay_due_us for rest in resting), RECHECK_NS),
                (_earliest(rest.retention_due_us for rest in resting), 1 << 62),
            )
            if each is not None
        ]
        return now_ns + min(waits_ns) if waits_ns else None

    def _open(self, name: TopicName) -> bool:
        """Open a topic; False if it is to be tried again later."""
        try:
            self._broker.topic(name, create=False)
        except (TopicNotFound, BrokerClosed):
            self._resting.pop(name, None)
        except PenstockError as exc:
            _logger.error("topic %s cannot be opened: %s", name, exc)
            if exc.retriable:
                return False
            self._resting.pop(name, None)  # who uses it will hear of it
        return True


def _rest_of(topic: Topic, retention: TopicRetention, now_us: int) -> Rest | None:
    """When a topic has something to do by itself; None: it may have at any time."""
    if not all(partition.is_at_rest() for partition in topic.partitions):
        return None
    retention_due_us = retention.next_due_us(topic)
    if topic.retention_is_planned and not retention.is_by_age_alone(topic):
        retention_due_us = 0
    due_us = _earliest((retention_due_us, next_alarm_us(topic, retention, now_us)))
    return Rest(topic.delays.stats().next_due_us, due_us)


def _earliest(due_us: Iterable[int | None]) -> int | None:
    return min((each for each in due_us if each is not None), default=None)
