"""Random lives of a broker with schedules, beside a plain model: a set of moments for each.

A seed decides all of it: how much time passes, clocks that are set, pauses, triggers, backfills,
other messages of other callers, checkpoints, full disks, and crashes at any operation on the disk.
In the end each moment that a schedule had to fire at is the header of exactly one message.
"""

from __future__ import annotations

import errno
from collections import Counter, deque
from datetime import UTC, datetime, timedelta
from random import Random
from unittest.mock import patch

from penstock.broker import schedule_journal
from penstock.broker.api import Api
from penstock.broker.broker import Broker, BrokerConfig
from penstock.clock import ManualClock
from penstock.errors import DiskFull, Unavailable
from penstock.log.commit import ManualCommitter
from penstock.log.local_engine import LocalEngine
from penstock.model import calls
from penstock.model.names import TopicName
from penstock.model.schedules import SCHEDULE_HEADER, SCHEDULED_FOR_HEADER, ScheduleFire
from penstock.randomness import own_random
from penstock.record.batch import Batch
from tests.simulation.checkpoints import checkpoint
from tests.simulation.disk import SimulatedCrash, SimulatedFiles

TOPIC = TopicName("default", "jobs")
WALL_NS = 1_700_000_000 * 10**9
EVERY_S = {"keyed": 7, "unkeyed": 10, "quick": 1}
BY_HAND = "by-hand"


class ScheduleLife:
    """One folder from its first day on, and every broker that opens it."""

    def __init__(self, seed: int, fsync: str = "interval", *, power_cuts: bool = True) -> None:
        self.seed = seed
        self.rng = Random(seed)
        own_random.seed(seed)  # draws ids
        self.files = SimulatedFiles()
        self.fsync = fsync
        self.power_cuts = power_cuts
        self.counts: Counter[str] = Counter()
        self.notes: deque[str] = deque(maxlen=30)
        self.wanted: dict[str, set[int]] = {name: set() for name in [*EVERY_S, BY_HAND]}
        """Moments, in microseconds, that have to be there once."""
        self.possible: set[int] = set()
        """Moments of a trigger or a backfill that a crash fell into: there once, or not at all."""
        self.began_us: dict[str, int] = {}
        self.decided_us = 0
        """Up to here, by the wall clock, all fires have to be made."""
        self.seen_us = 0
        """The latest that it ever was: up to here they may be."""
        self.open(WALL_NS)

    def run(self, steps: int) -> None:
        with patch.object(schedule_journal, "_CHECKPOINT_BYTES", 4096):
            try:
                self._begin()
                for _ in range(steps):
                    self._step()
                self.files.mend()
                self.pass_time(60)
                self.check()
            except BaseException as exc:
                exc.add_note(f"ScheduleLife({self.seed}, {self.fsync!r}):")
                exc.add_note("\n".join(self.notes))
                raise

    def open(self, wall_ns: int) -> None:
        self.clock = ManualClock(wall_ns, self.rng.randrange(10**15))
        self.committer = ManualCommitter(self.clock)
        engine = LocalEngine("/data", files=self.files, clock=self.clock, committer=self.committer)
        self.broker = Broker(engine, BrokerConfig(free_bytes_min=0), housekeeping=False)
        self.api = Api(self.broker)

    def _begin(self) -> None:
        settings = {"partitions": 3, "fsync": self.fsync, "segment_bytes": 16 << 10}
        self.broker.create_topic(TOPIC, settings)
        for name, every_s in EVERY_S.items():
            self._put(name, every=every_s, key="k" if name == "keyed" else None)
            self.began_us[name] = self.now_us
        self._put(BY_HAND, every="1m", paused=True)
        self.began_us[BY_HAND] = self.now_us

    def _put(self, name: str, **fields: object) -> None:
        call = calls.PutSchedule(
            schedule=name,
            topic="jobs",
            value=name,
            catch_up="300d",
            catch_up_policy="all",
            **fields,  # type: ignore[arg-type]
        )
        self.api.ask(call)

    @property
    def now_us(self) -> int:
        return self.clock.wall_ns() // 1000

    # Steps.

    def _step(self) -> None:
        acts = [
            (lambda: self.pass_time(self.rng.choice((0.3, 1, 5, 20)) * self.rng.random()), 20),
            (self.trigger, 4),
            (self.backfill, 2),
            (self.publish_something_else, 6),
            (self.set_the_clock, 2),
            (self.fill_the_disk, 1),
            (self.checkpoint, 2),
            (self.reopen, 1),
            (lambda: self.crash(power_cut=False), 2),
            (lambda: self.crash(power_cut=True), 2),
        ]
        act = self.rng.choices([each for each, _ in acts], [weight for _, weight in acts])[0]
        if self.rng.random() < 0.3:
            self.files.crash_at(self.rng.randint(1, 12), after=self.rng.random() < 0.5)
        try:
            act()
            if self.rng.random() < 0.5:
                self.committer.run_due()
        except SimulatedCrash:
            self.counts["crashed within"] += 1
            self.crash(power_cut=self.rng.random() < 0.5)
        self.files.mend()
        if self.rng.random() < 0.2:
            self.pass_time(1.5)
            self.check()

    def pass_time(self, seconds: float) -> None:
        self.notes.append(f"{seconds:.3f} s pass")
        self.clock.advance(seconds)
        self.seen_us = max(self.seen_us, self.now_us)
        self.broker.housekeep()
        self.counts["time passed"] += 1

    def trigger(self) -> None:
        self.clock.advance(1e-3)
        self.notes.append(f"trigger at {self.now_us}")
        self.possible.add(self.now_us)
        try:
            fire = self.api.ask(calls.TriggerSchedule(schedule=BY_HAND))
        except (DiskFull, Unavailable):  # or an earlier fire is not published yet
            return
        assert isinstance(fire, ScheduleFire)
        assert fire.scheduled_for_us == self.now_us
        self.wanted[BY_HAND].add(self.now_us)
        self.counts["triggered"] += 1

    def backfill(self) -> None:
        minute_us = 60 * 10**6
        moments = range(self.began_us[BY_HAND] + minute_us, self.now_us, minute_us)
        if not moments:
            return
        moment_us = self.rng.choice(moments)
        if moment_us in self.possible:
            return
        self.possible.add(moment_us)
        self.notes.append(f"backfill {moment_us}")
        at = moment_us / 1e6
        try:
            self.api.ask(calls.BackfillSchedule(schedule=BY_HAND, since=at, until=at))
        except (DiskFull, Unavailable):
            return
        self.wanted[BY_HAND].add(moment_us)
        self.counts["backfilled"] += 1

    def publish_something_else(self) -> None:
        """Which takes the offsets of what a power cut took."""
        try:
            for partition in range(3):
                self.broker.publish(TOPIC, Batch.build([b"other"] * 3), partition=partition)
        except DiskFull:
            pass

    def set_the_clock(self) -> None:
        seconds = self.rng.choice((-30, 30, 100)) * self.rng.random()
        self.notes.append(f"the clock is set by {seconds:.3f} s")
        self.clock.jump_wall(seconds)
        self.counts["clock set"] += 1

    def fill_the_disk(self) -> None:
        where = self.rng.choice(("/topics/", "/schedules/", ""))
        self.notes.append(f"no room in {where!r}")
        self.files.fail("append", error=errno.ENOSPC, path=where)
        self.pass_time(self.rng.choice((1, 10)))
        self.counts["disk full"] += 1

    def checkpoint(self) -> None:
        checkpoint(self.broker.topic(TOPIC))

    def reopen(self) -> None:
        self.notes.append("reopen")
        self.broker.close()
        self.open(self.clock.wall_ns() + self.rng.randrange(10**10))
        self.counts["reopened"] += 1

    def crash(self, *, power_cut: bool) -> None:
        power_cut = power_cut and self.power_cuts
        self.notes.append("power cut" if power_cut else "kill")
        self.counts["power cuts" if power_cut else "kills"] += 1
        wall_ns = self.clock.wall_ns()
        while True:
            self.files = self.files.crash(self.rng) if power_cut else self.files.kill()
            if self.rng.random() < 0.25:
                self.files.crash_at(self.rng.randint(1, 40))
            try:
                self.open(wall_ns + self.rng.randrange(10**10))
                self.pass_time(0)
                break
            except SimulatedCrash:
                self.counts["crashed in recovery"] += 1
        self.files.mend()

    # What has to be true.

    def check(self) -> None:
        """Every moment up to now once, and no other."""
        self.pass_time(2)  # what failed is tried again within a second
        self.pass_time(2)
        self.decided_us = max(self.decided_us, self.now_us)
        possible = {BY_HAND: self.possible}
        for name, every_s in EVERY_S.items():
            every_us = round(every_s * 1e6)
            first_us = self.began_us[name] + every_us
            self.wanted[name] = set(range(first_us, self.decided_us + 1, every_us))
            possible[name] = set(range(first_us, self.seen_us + 1, every_us))
        found = self.found()
        for name, wanted in self.wanted.items():
            twice = [moment for moment, count in found[name].items() if count > 1]
            assert not twice, f"{name} fired twice for {twice}"
            missing = sorted(wanted - found[name].keys())
            assert not missing, f"{name} did not fire for {missing[:5]}"
            phantoms = found[name].keys() - possible[name]
            assert not phantoms, f"{name} fired for {sorted(phantoms)[:5]}"
        self.counts["checked"] += 1

    def found(self) -> dict[str, Counter[int]]:
        """The moments in the headers of all messages."""
        found: dict[str, Counter[int]] = {name: Counter() for name in self.wanted}
        for partition in self.broker.topic(TOPIC).partitions:
            offset = partition.log.start
            while offset < partition.log.end:
                read = partition.log.read(offset)
                for message in read.messages():
                    name = message.headers.get(SCHEDULE_HEADER)
                    if name is not None:
                        moment = message.headers[SCHEDULED_FOR_HEADER]
                        assert moment is not None
                        found[name.decode()][_us(moment.decode())] += 1
                offset = read.next_offset
        return found


def _us(text: str) -> int:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (datetime.fromisoformat(text) - epoch) // timedelta(microseconds=1)
