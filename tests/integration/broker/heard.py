"""What a killed process had heard from its broker, and whether the folder that it left agrees."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path

from penstock.broker.broker import Broker, BrokerConfig
from penstock.broker.dead_letters import Letter
from penstock.clock import ManualClock
from penstock.log.local_engine import LocalEngine
from penstock.model.names import TopicName
from tests.integration.broker.doomed import GROUPS, ONCE, STREAM_GROUP, TOPICS
from tests.integration.broker.fates import DELIVERIES_MAX, Fates
from tests.integration.broker.world import QuickFiles

HOUR_S = 3600


class Heard:
    """Told by all lives so far. A value is sent once, so it names its message."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.fates = Fates()
        self.sending: dict[str, dict[str, None]] = {topic: {} for topic in TOPICS}
        """Everything that may be there."""
        self.places: dict[str, dict[str, tuple[int, int]]] = {topic: {} for topic in TOPICS}
        """Where messages are that were acknowledged."""
        self.delayed: dict[str, set[str]] = {topic: set() for topic in TOPICS}
        self.cancelled: dict[str, set[str]] = {topic: set() for topic in TOPICS}
        self.perhaps_cancelled: dict[str, set[str]] = {topic: set() for topic in TOPICS}
        self.committed: list[dict[int, int]] = [{}]
        """The last commit that was confirmed, and those that may have been made since."""

    def unanswered(self) -> list[tuple[str, str]]:
        """The last messages, to be sent again with their ids; some were stored, some not."""
        return [
            (topic, value)
            for topic, values in self.sending.items()
            for value in [value for value in values if value.startswith(ONCE)][-3:]
        ]

    def hear(self, lines: list[str]) -> None:
        """What one life said."""
        self.fates.begin_life()
        for line in lines:
            event, *words = line.split()
            assert event != "failed", line
            self.counts[event] += 1
            if event in ("pid", "ready"):
                continue
            if event in ("committing", "committed"):
                self._commit(event, words[1:])
            elif words[1] in GROUPS:
                self.fates.hear(line, event, words[0], words[1], words[2:])
            else:
                self._published(event, words[0], words[1], words[2:])

    def _published(self, event: str, topic: str, value: str, place: list[str]) -> None:
        match event:
            case "sending":
                self.sending[topic][value] = None
            case "sent":
                where = int(place[0]), int(place[1])
                assert self.places[topic].setdefault(value, where) == where, f"{value} moved"
            case "delayed":
                self.delayed[topic].add(value)
            case "cancelling":
                self.perhaps_cancelled[topic].add(value)
            case "cancelled" | "not-cancelled":
                self.perhaps_cancelled[topic].discard(value)
                if event == "cancelled":
                    self.cancelled[topic].add(value)

    def _commit(self, event: str, places: list[str]) -> None:
        offsets = {int(p): int(o) for p, o in (place.split(":") for place in places)}
        self.committed.append({**self.committed[-1], **offsets})
        if event == "committed":
            self.committed = self.committed[-1:]

    # What the folder says.

    def check(self, folder: Path) -> None:
        """Open what the last life left, and take everything out of it."""
        clock = ManualClock(time.time_ns(), time.monotonic_ns())
        config = BrokerConfig(free_bytes_min=0)
        engine = LocalEngine(folder, clock=clock, files=QuickFiles())
        with Broker(engine, config, housekeeping=False) as broker:
            letters = {topic: _letters(broker, topic) for topic in TOPICS}
            for topic in TOPICS:
                self._check_log(topic, _log(broker, topic), _waiting(broker, topic))
            committed = broker.streams.committed(STREAM_GROUP)
            found = {p.partition: c.offset for p, c in committed.items()}
            assert found in self.committed, f"committed {self.committed}, found {found}"
            self.committed = [found]
            clock.advance(HOUR_S)  # all leases run out, and all that was delayed is due
            broker.housekeep()
            for topic in TOPICS:
                there = set(_log(broker, topic))
                for group in GROUPS:
                    attempts = _attempts(broker, topic, group, letters[topic][group])
                    self.fates.check(topic, group, there, attempts, letters[topic][group])

    def _check_log(self, topic: str, there: dict[str, tuple[int, int]], waiting: set[str]) -> None:
        everywhere = there.keys() | waiting
        assert not there.keys() & waiting, "delayed, and delivered already"
        assert everywhere <= self.sending[topic].keys(), "a message that nobody sent"
        for value, place in self.places[topic].items():
            assert there.get(value) == place, f"{value} was at {place}, now {there.get(value)}"
        gone = self.delayed[topic] - everywhere - self.cancelled[topic]
        assert gone <= self.perhaps_cancelled[topic], f"delayed and lost: {gone}"
        assert not everywhere & self.cancelled[topic], "cancelled, and there"


def _log(broker: Broker, topic: str) -> dict[str, tuple[int, int]]:
    """Where each message is."""
    found: list[tuple[str, tuple[int, int]]] = []
    name = TopicName("default", topic)
    for partition in broker.topic(name).partitions:
        offset = partition.log.start
        while offset < partition.log.end:
            read = partition.log.read(offset)
            assert not read.damage
            for message in read.messages():
                found.append((_text(message.value), (partition.number, message.offset)))
            offset = read.next_offset
    twice = [value for value, times in Counter(value for value, _ in found).items() if times > 1]
    assert not twice, f"stored twice: {twice}"
    return dict(found)


def _waiting(broker: Broker, topic: str) -> set[str]:
    waiting = broker.delayed(TopicName("default", topic), 0, 1 << 30)
    return {_text(each.message.value) for _, each in waiting}


def _letters(broker: Broker, topic: str) -> dict[str, dict[str, list[Letter]]]:
    """Dead letters by group and value."""
    found: dict[str, dict[str, list[Letter]]] = {group: defaultdict(list) for group in GROUPS}
    for letter in broker.dead_letters(TopicName("default", topic)).list(1 << 30):
        found[letter.origin.group][_text(letter.value)].append(letter)
    return found


def _attempts(
    broker: Broker, topic: str, group: str, dead: dict[str, list[Letter]]
) -> dict[str, int]:
    """How often each message was tried that is still to be done; it no longer is after this.

    What was held at the last attempt has become a dead letter when its lease ran out just now.
    """
    attempts: dict[str, int] = {}
    for value, letters in _letters(broker, topic)[group].items():
        if len(letters) > len(dead.get(value, [])):
            assert letters[-1].attempts == DELIVERIES_MAX
            attempts[value] = DELIVERIES_MAX
    name = TopicName("default", topic)
    while received := broker.receive(name, group, 1000, visibility_ns=HOUR_S * 10**9):
        for each in received:
            for batch, delivery_count in each.pieces:
                for message in batch.messages():
                    attempts[_text(message.value)] = delivery_count - 1
            broker.ack(name, each.partition, group, each.nonce, None)
    return attempts


def _text(value: bytes | None) -> str:
    return (value or b"").decode()
