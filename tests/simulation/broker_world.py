"""A broker on a simulated disk with its model beside it: what a life and its crashes act in."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple
from unittest.mock import patch

from penstock.broker import activity, catalog, delays, ledgered_partition, stream_journal
from penstock.broker.broker import Broker, BrokerConfig
from penstock.clock import ManualClock
from penstock.log.commit import ManualCommitter
from penstock.log.engine import Engine
from penstock.log.local import LocalLog
from penstock.log.local_engine import LocalEngine
from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings
from penstock.randomness import own_random
from tests.simulation.broker_model import PartitionModel, Promise, Row, Story, require, row_of
from tests.simulation.disk import SimulatedFiles

FOLDER = "/data"
WALL_NS = 1_700_000_000_000_000_000


@dataclass
class DelayedModel:
    """A delayed message, from when it was sent."""

    id: str
    row: Row
    deliver_at_us: int
    partition: int | None
    promise: Promise
    state: Literal["pending", "moved", "cancelled"] = "pending"
    place: tuple[int, int] = (-1, -1)
    """Where it was moved to."""
    done: Promise | None = None
    """That it was moved or cancelled."""


class Stored(NamedTuple):
    """A batch of an idempotent producer."""

    sequence: int
    rows: list[Row]
    offset: int


class Seen(NamedTuple):
    """A deduplication id: where its message is, and since when it is known."""

    partition: int
    offset: int
    before: frozenset[tuple[int, int]]
    """Where messages are that had it before the window ended for them."""
    since_ns: int
    sent_us: int


class TopicModel:
    def __init__(self, name: TopicName, settings: TopicSettings) -> None:
        self.name = name
        self.settings = settings
        self.altered: TopicSettings | None = None
        """Settings that are on their way."""
        self.partitions = [PartitionModel(n) for n in range(settings.partitions)]
        self.delayed: dict[str, DelayedModel] = {}
        self.seen: dict[str, Seen] = {}
        self.producers: dict[tuple[int, int], list[Stored]] = {}
        """By producer id and partition: what the broker took from it."""

    def groups(self) -> list[str]:
        return sorted({group for p in self.partitions for group in p.groups})

    def pending(self) -> list[DelayedModel]:
        return [each for each in self.delayed.values() if each.state == "pending"]


@dataclass
class Expected:
    """A row on its way to a log."""

    topic: TopicName
    row: Row
    partition: int | None = None
    required: bool = True
    arrived: Callable[[int, int], None] = lambda partition, offset: None


class BrokerWorld:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        own_random.seed(seed)  # draws ids and nonces
        self.files = SimulatedFiles()
        self.topics: dict[TopicName, TopicModel] = {}
        self.expected: list[Expected] = []
        self.futures: dict[tuple[TopicName, int], Future[None]] = {}
        """Of the call that is under way: what says that it is durable."""
        self.counts: Counter[str] = Counter()
        self.notes: deque[str] = deque(maxlen=30)
        self.steps = 0
        self.jumped_ns = 0
        """When the wall clock was set last."""
        self.clock_was_set_us = 0
        """By how much, in all, forwards and back."""
        self.trims_may_reach: dict[tuple[TopicName, int], int] = {}
        self.changing: set[TopicName] = set()
        """Topics that are on their way to be there, or to be gone."""
        self._around = ExitStack()

    def __enter__(self) -> BrokerWorld:
        self._around.enter_context(small_checkpoints())
        self._around.enter_context(self._commits_right_after_a_roll())
        self._around.enter_context(loud_errors())
        self.open(WALL_NS)
        return self

    def __exit__(self, *exc: object) -> None:
        self._around.close()

    def open(self, wall_ns: int) -> None:
        """Start the broker: another boot, another monotonic clock."""
        clock = ManualClock(wall_ns, self.rng.randrange(10**15))
        committer = ManualCommitter(clock)
        self.broker = Broker(
            self.engine(clock, committer),
            BrokerConfig(free_bytes_min=0),
            housekeeping=False,
        )
        self.clock, self.committer = clock, committer
        self.synced_ns = self.jumped_ns = self.now_ns
        for name in self.broker.topics():
            if self.rng.random() < 0.8:  # the others when they are used
                self.broker.topic(name)

    def engine(self, clock: ManualClock, committer: ManualCommitter) -> Engine:
        return LocalEngine(FOLDER, files=self.files, clock=clock, committer=committer)

    @property
    def now_ns(self) -> int:
        return self.clock.monotonic_ns()

    @property
    def wall_us(self) -> int:
        return self.clock.wall_ns() // 1000

    def note(self, text: str) -> None:
        self.notes.append(f"{self.steps}: {text}")

    def partitions(self) -> Iterator[tuple[TopicModel, PartitionModel]]:
        for topic in self.topics.values():
            for each in topic.partitions:
                yield topic, each

    def promise(self, topic: TopicModel, durable: Future[None] | None = None) -> Promise:
        settings = topic.settings
        interval_ns = settings.fsync_interval_ms * 1_000_000
        return Promise(settings.fsync, interval_ns, self.now_ns, durable)

    # Rows on their way.

    def expect(self, topic: TopicModel, rows: list[Row], partition: int | None = None) -> None:
        self.expected += [Expected(topic.name, row, partition) for row in rows]

    def expect_letters(self, topic: TopicModel, stories: list[Story]) -> list[Expected]:
        letters = [self._letter(topic, story) for story in stories]
        self.expected += letters
        self.counts["died"] += len(letters)
        return letters

    def _letter(self, topic: TopicModel, story: Story) -> Expected:
        row = topic.partitions[story.partition].rows[story.offset]
        letter = row._replace(expires_at_us=None, story=story)
        return Expected(topic.name.dead_letters, letter, story.partition)

    def absorb(self, wall_us: int | None = None) -> None:
        """Take over what the logs have got, by default just now; nobody but who is expected may
        come."""
        for name in self.broker.topics():
            if name not in self.topics:
                known = name.is_dead_letters or name in self.changing
                require(known, f"topic {name} was never created")
                self.topics[name] = TopicModel(name, self.broker.topic(name).settings)
            elif name.is_dead_letters:
                self._more_partitions(self.topics[name])
        for topic, model in self.partitions():
            log = self.broker.topic(topic.name).partitions[model.number].log
            if log.end > model.end:
                for row in self.rows(topic, model.number, model.end):
                    offset = model.append(row, self.wall_us if wall_us is None else wall_us)
                    self._take_in(topic, model, offset)
                durable = self.futures.get((topic.name, model.number))
                model.ends.append((model.end, self.promise(topic, durable)))

    def _more_partitions(self, topic: TopicModel) -> None:
        """Letters go to the partition of their message, which their topic may not have had yet."""
        topic.settings = self.broker.settings(topic.name)
        for number in range(len(topic.partitions), topic.settings.partitions):
            topic.partitions.append(PartitionModel(number))

    def rows(self, topic: TopicModel, number: int, offset: int) -> list[Row]:
        """What a log holds from an offset on."""
        log = self.broker.topic(topic.name).partitions[number].log
        found: list[Row] = []
        while offset < log.end:
            read = self.broker.topic(topic.name).partition(number).log.read(offset)
            require(not read.damage, f"damage on a disk that has none: {read.damage}")
            for message in read.messages():
                require(message.offset == offset, f"offset {offset} is missing in {topic.name}")
                found.append(row_of(message))
                offset += 1
        return found

    def _take_in(self, topic: TopicModel, model: PartitionModel, offset: int) -> None:
        row = model.rows[offset]
        for each in self.expected:
            if (
                each.topic == topic.name
                and each.partition in (None, model.number)
                and each.row == row
            ):
                self.expected.remove(each)
                each.arrived(model.number, offset)
                return
        require(False, f"a phantom in {topic.name}/{model.number} at {offset}: {row}")

    def returned(self) -> None:
        """The call that was under way has returned."""
        self.absorb()
        lost = [each for each in self.expected if each.required]
        require(not lost, f"never arrived: {lost}")
        self.expected.clear()
        for topic, model in self.partitions():
            if not model.history[-1].returned:
                durable = self.futures.get((topic.name, model.number))
                model.returned(self.promise(topic, durable))
                if len(model.history) > 40:
                    model.forget_history(self.synced_ns)
        self.futures.clear()
        self.trims_may_reach.clear()

    def commit(self) -> None:
        """The committer has its turn."""
        self.committer.run_due()
        self.synced_ns = self.now_ns

    @contextmanager
    def _commits_right_after_a_roll(self) -> Iterator[None]:
        """As the committer's thread may do before the caller of `roll` goes on."""
        roll = LocalLog.roll

        def roll_and_perhaps_commit(log: LocalLog) -> None:
            roll(log)
            if self.rng.random() < 0.5 and isinstance(log.committer, ManualCommitter):
                log.committer.run_due()

        with patch.object(LocalLog, "roll", roll_and_perhaps_commit):
            yield


@contextmanager
def small_checkpoints() -> Iterator[None]:
    """What a broker does after megabytes it does after kilobytes here."""
    with (
        patch.object(ledgered_partition, "CHECKPOINT_LEDGER_BYTES", 6000),
        patch.object(delays, "CHECKPOINT_BYTES", 1000),
        patch.object(stream_journal, "_CHECKPOINT_BYTES", 1500),
        patch.object(catalog, "_CHECKPOINT_BYTES", 3000),
        patch.object(activity, "_CHECKPOINT_BYTES", 1500),
    ):
        yield


class _Loud(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "penstock.broker.alarms":
            return  # messages that nobody reads are a matter of the life, not of the broker
        error = record.exc_info[1] if record.exc_info else None
        raise AssertionError(f"logged: {record.getMessage()}") from error


@contextmanager
def loud_errors() -> Iterator[None]:
    """Housekeeping goes on after an error and logs it; here nothing may be logged."""
    logger, handler = logging.getLogger("penstock"), _Loud(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
