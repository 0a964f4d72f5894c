"""Random lives of a whole broker, step by step beside a plain model of what has to happen.

A seed decides all of it: topics and their settings, who publishes, receives and settles what, with
good, stale and forged receipts; delays, dead letters, purges, seeks, more partitions, stream
groups; time passing, wall clocks being set, and crashes at any operation on the disk.
"""

from __future__ import annotations

import msgspec

from penstock.broker.dead_letters import LETTERS_GROUP
from penstock.config import DAY_MS
from penstock.group.assignment import TopicPartition
from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings
from tests.simulation.broker_crash import FOR_GOOD, Crashes
from tests.simulation.broker_model import PartitionModel, fates_of, require
from tests.simulation.broker_queue import Receiving
from tests.simulation.broker_streams import STREAM_GROUPS
from tests.simulation.broker_world import Expected, TopicModel
from tests.simulation.checkpoints import checkpoint
from tests.simulation.disk import SimulatedCrash

PARTITIONS_MAX = 4


class BrokerLife(Crashes):
    """One broker from its first day on. `run` it inside `with`."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.receipts = []
        self.members = []
        self.positions = {}
        self.commits = [(FOR_GOOD, {})]

    def run(self, steps: int) -> None:
        try:
            self._create_topics()
            for self.steps in range(1, steps + 1):
                self._step()
            self._drain()
        except BaseException as exc:
            exc.add_note(f"BrokerLife({self.seed}), step {self.steps}")
            exc.add_note("\n".join(self.notes))
            exc.add_note("the disk:\n" + "\n".join(list(self.files.trace)[-12:]))
            raise

    def _step(self) -> None:
        acts, weights = zip(*self._acts(), strict=True)
        act = self.rng.choices(acts, weights)[0]
        if self.rng.random() < 0.03:
            self.files.crash_at(self.rng.randint(1, 25), after=self.rng.random() < 0.5)
        try:
            act()
            self.returned()
            if self.rng.random() < 0.5:
                self.commit()
            self._check()
        except SimulatedCrash:
            self.crash(power_cut=self.rng.random() < 0.5, within=True)
            self._check()

    def _acts(self):  # type: ignore[no-untyped-def]
        return [
            (self.publish, 12),
            (self.publish_value, 6),
            (self.publish_once, 4),
            (self.publish_idempotently, 7),
            (self.delay, 5),
            (self.cancel, 3),
            (self.cancel_what_is_not_there, 0.3),
            (self.receive, 26),
            (self.settle, 34),
            (self.redrive_or_purge_letters, 2),
            (self.seek, 1),
            (self.purge_group, 1),
            (self.purge_topic, 0.5),
            (self.delete_group, 0.5),
            (self.alter, 1),
            (self.delete_topic, 0.3),
            (self.let_time_pass, 14),
            (self.set_the_wall_clock, 1.5),
            (self.checkpoint, 1),
            (self.reopen, 1),
            (self.kill, 0.7),
            (self.cut_power, 0.7),
            (self.join, 2),
            (self.heartbeat, 7),
            (self.commit_offsets, 7),
            (self.leave, 0.7),
        ]

    # Topics.

    def _create_topics(self) -> None:
        for number in range(self.rng.randint(1, 2)):
            self._create(TopicName("default", f"t{number}"))

    def _create(self, name: TopicName) -> None:
        settings = self._some_settings()
        self.note(f"create {name}: {settings}")
        self.changing.add(name)
        self.broker.create_topic(name, settings)
        self.changing.clear()
        self.topics[name] = TopicModel(name, settings)

    def delete_topic(self) -> None:
        """And perhaps make another one of its name."""
        name = self.some_topic().name
        if len([name for name in self.topics if not name.is_dead_letters]) == 1:
            self._create(TopicName("default", "t1" if name.topic == "t0" else "t0"))
            return
        self.note(f"delete {name}")
        self.changing.add(name)
        self.broker.delete_topic(name)
        self.changing.clear()
        self.forget(name)
        if self.rng.random() < 0.5:
            self._create(name)
        self.counts["topics deleted"] += 1

    def _some_settings(self) -> TopicSettings:
        rng = self.rng
        ordered = rng.random() < 0.3
        return TopicSettings(
            partitions=rng.randint(1, 3),
            fsync=rng.choice(("always", "always", "interval", "interval", "batch", "never")),
            fsync_interval_ms=rng.choice((100, 1000)),
            fsync_batch_writes=5,
            ordered_by_key=ordered,
            fair_by=None if ordered else rng.choice((None, None, "key")),
            in_flight_max=rng.choice((None, None, 3, 10)),
            ttl_ms=rng.choice((None, None, 20_000)),
            dead_letter_expired=rng.random() < 0.5,
            max_retries=rng.choice((None, 0, 1, 3)),
            backoff=rng.choice(((0, 1.0, 0), (1000, 2.0, 60_000))),
            retention_mode=rng.choice(("time", "time", "consumed")),
            retention_ms=rng.choice((7 * DAY_MS, 7 * DAY_MS, 90_000)),
            segment_bytes=rng.choice((4096, 64 << 20)),
            compaction_interval_ms=None,  # the model knows no gaps; see test_broker_crashes.py
            dedup_window_ms=rng.choice((30_000, 300_000)),
            codec=rng.choice(("none", "none", "lz4")),
        )

    def alter(self) -> None:
        topic, rng = self.some_topic(), self.rng
        change: dict[str, object] = rng.choice(
            (
                {"partitions": min(len(topic.partitions) + 1, PARTITIONS_MAX)},
                {"max_retries": rng.choice((None, 0, 2))},
                {"in_flight_max": rng.choice((None, 2, 20))},
                {"backoff": (rng.choice((0, 500)), 2.0, 5000)},
                {"fsync": rng.choice(("always", "interval", "batch", "never"))},
            )
        )
        self.note(f"alter {topic.name}: {change}")
        topic.altered = msgspec.structs.replace(topic.settings, **change)
        given = {"backoff": ("500ms", 2.0, "5s")} if "backoff" in change else change
        if "backoff" in change:
            topic.altered = msgspec.structs.replace(topic.settings, backoff=(500, 2.0, 5000))
        settings = self.broker.alter_topic(topic.name, given)
        require(settings == topic.altered, f"altered to {settings}")
        topic.settings, topic.altered = settings, None
        self.add_partitions(topic)
        self.counts["altered"] += 1

    # Time.

    def let_time_pass(self) -> None:
        """And the broker do what falls due; now and then somebody is quicker than it."""
        self.clock.advance(self.rng.choice((0.001, 0.02, 0.3, 0.3, 1.1, 1.1, 1.1, 6, 31, 70)))
        self.note(f"time passes: {self.now_ns}")
        if self.rng.random() < 0.3:
            self.rng.choice((self.settle, lambda: self.receive(of_one=True), self.publish))()
            self.returned()
        self.housekeep()
        if self.rng.random() < 0.9:
            self.returned()
            self.commit()

    def set_the_wall_clock(self) -> None:
        jump_s = self.rng.choice((-3600, -30, 30, 3600))
        self.note(f"the wall clock is set by {jump_s} s")
        self.clock.jump_wall(jump_s)
        self.jumped_ns = self.now_ns
        self.clock_was_set_us += abs(jump_s) * 1_000_000
        self.counts["clock set"] += 1

    def housekeep(self) -> None:
        for topic, model in self.partitions():
            letters: list[Expected] = []
            by_time = topic.settings.retention_mode == "time"
            gone_below = self._may_trim_to(topic, model) if by_time else 0
            for group in list(model.groups):
                stories = model.expire(group, self.now_ns, topic.settings, gone_below)
                letters += self.expect_letters(topic, stories)
            reach = self._may_trim_to(topic, model)
            self.trims_may_reach[topic.name, model.number] = reach
            for letter in letters if by_time else ():
                assert letter.row.story is not None
                letter.required = letter.row.story.offset >= reach  # or it may be gone by then
        self.expect_due()
        self.broker.housekeep()
        self.absorb()
        for topic, model in self.partitions():
            self._follow(topic, model)

    def _may_trim_to(self, topic: TopicModel, model: PartitionModel) -> int:
        """How far a log may be trimmed: every group is done with it, or it is too old."""
        if topic.settings.retention_mode != "consumed":
            oldest_us = self.wall_us - (topic.settings.retention_ms or 0) * 1000
            kept = [o for o in model.rows if model.stamps_us[o] >= oldest_us]
            return min(kept, default=model.end)
        done = [
            min(model.undone(group), default=model.end) if group in model.groups else model.start
            for group in topic.groups()
        ]
        place = TopicPartition(str(topic.name), model.number)
        for group in STREAM_GROUPS:
            offsets = self.positions.get(group, {})
            if any(other.topic == place.topic for other in offsets):
                done.append(offsets.get(place, model.start))
        return min(done, default=model.start)

    def _follow(self, topic: TopicModel, model: PartitionModel) -> None:
        """Retention may have trimmed the log, and groups of other partitions may be here now."""
        partition = self.broker.topic(topic.name).partitions[model.number]
        if partition.log.start != model.start:
            reach = self.trims_may_reach[topic.name, model.number]
            start = partition.log.start
            require(model.start <= start <= reach, f"{topic.name} starts at {start}, not {reach}")
            model.trim(start)
            self.counts["trimmed"] += 1
        for group in partition.queues.keys() - model.groups.keys():
            require(group in topic.groups(), f"a group that nobody made: {group}")
            model.group(group, self.now_ns)

    # Ends and beginnings.

    def checkpoint(self) -> None:
        topic = self.some_topic()
        self.note(f"checkpoint {topic.name}")
        checkpoint(self.broker.topic(topic.name))
        self.broker.topic(topic.name).delays.checkpoint()
        self.counts["checkpoints"] += 1

    def reopen(self) -> None:
        self.note("close and reopen")
        at_ns, wall_ns = self.now_ns, self.clock.wall_ns()
        self.broker.close()
        self.open(wall_ns + self.rng.randrange(10**10))
        self.recover(at_ns, wall_ns, at_ns, power_cut=False, within=False)
        self.counts["reopened"] += 1

    def recover(
        self, at_ns: int, wall_ns: int, synced_ns: int, *, power_cut: bool, within: bool
    ) -> None:
        super().recover(at_ns, wall_ns, synced_ns, power_cut=power_cut, within=within)
        if self.has_ended_leases:
            self.has_ended_leases = False
            self.housekeep()
            self.returned()

    def kill(self) -> None:
        self.crash(power_cut=False)

    def cut_power(self) -> None:
        self.crash(power_cut=True)

    # What can be seen from outside.

    def _check(self) -> None:
        topic = self.rng.choice(list(self.topics.values()))
        for model in topic.partitions:
            found = fates_of(self.broker.topic(topic.name).partitions[model.number])
            expected = {name: group.fates for name, group in model.groups.items()}
            require(
                found == expected,
                f"{topic.name}/{model.number}: the model has {expected}, the broker {found}",
            )
        kind = self.rng.random()
        if kind < 0.1:
            self._check_stats(topic)
        elif kind < 0.3:
            self.check_delayed(topic)
        elif kind < 0.4:
            self.check_positions()

    def _check_stats(self, topic: TopicModel) -> None:
        dead = self.topics.get(topic.name.dead_letters)
        groups = [group for group in topic.groups() if group != LETTERS_GROUP]
        for model in topic.partitions:
            for group in groups:
                model.group(group, self.now_ns)
        letters = 0
        if dead is not None:
            for model in dead.partitions:
                model.group(LETTERS_GROUP, self.now_ns)
                letters += len(model.undone(LETTERS_GROUP))
        stats = self.broker.stats(topic.name)
        self.returned()
        require(stats.dead == letters, f"{stats.dead} dead letters, there are {letters}")
        require(stats.delayed == len(topic.pending()), f"{stats.delayed} delayed")
        messages = sum(len(p.rows.keys() - p.gone()) for p in topic.partitions)
        require(stats.messages == messages, f"{stats.messages} messages, there are {messages}")
        require([g.group for g in stats.groups] == groups, f"{stats.groups} are not {groups}")
        for each in stats.groups:
            undone = {p.number: p.undone(each.group) for p in topic.partitions}
            require(each.depth == sum(map(len, undone.values())), f"{each}: depth")
            for place, count in (("leased", each.in_flight), ("waiting", each.retrying)):
                placed = [len(p.groups[each.group].placed(place)) for p in topic.partitions]
                require(count == sum(placed), f"{each}: {placed} are {place}")
            floors = {p.number: min(undone[p.number], default=p.end) for p in topic.partitions}
            require(each.committed == floors, f"{each}: committed, but should be {floors}")

    def _drain(self) -> None:
        """All that is left is received and acked, in every group; so none of it was lost."""
        self.files.mend()
        for topic in [t for t in self.topics.values() if not t.name.is_dead_letters]:
            for group in topic.groups():
                for _ in range(200):
                    self.clock.advance(61)
                    self.housekeep()
                    self.returned()
                    receiving = Receiving(
                        topic, group, topic.partitions, 50, 10**10, "", self.now_ns, self.wall_us
                    )
                    before = len(self.receipts)
                    self.take(receiving)
                    self.returned()
                    for receipt in self.receipts[before:]:
                        self._ack(topic, receipt.partition, group, receipt.nonce, receipt.offset)
                    if not any(model.undone(group) for model in topic.partitions):
                        break
                else:
                    require(False, f"{group} is never done with {topic.name}")
        self._check()

    def _ack(self, topic: TopicModel, number: int, group: str, nonce: int, offset: int) -> None:
        from penstock.delivery.offsets import Offsets

        model = topic.partitions[number]
        model.settle(
            group,
            "ack",
            [offset],
            self.now_ns,
            topic.settings,
            delay_ns=None,
            visibility_ns=0,
            error="",
        )
        settled = self.broker.ack(topic.name, number, group, nonce, Offsets.one(offset))
        require(not settled.refused, f"{offset} cannot be acked: {settled.refused}")
        self.returned()
