"""Crashes in a broker's life, and whether what comes back is what was promised.

After a kill everything that a call had returned for is there; of the call that was cut short, all
or nothing of each entry. After a power cut a part of it may be gone, from the end, and no more than
the fsync policy says. Either way nothing is there that nobody sent, and the model goes on from
what came back.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from penstock.broker.withheld import LETTERS_GROUP
from penstock.delivery.queue import GRACE_US
from penstock.model.names import TopicName
from tests.simulation.broker_model import (
    DONE,
    Fate,
    Fates,
    GroupModel,
    PartitionModel,
    Promise,
    Snapshot,
    fates_of,
    require,
)
from tests.simulation.broker_streams import StreamActs
from tests.simulation.broker_world import DelayedModel, TopicModel
from tests.simulation.disk import SimulatedCrash

FOR_GOOD = Promise("interval", 0, 0)
"""Of what a recovery has shown: that is durable, whatever the policy."""


class Crashes(StreamActs):
    has_ended_leases = False
    """Whether the last start ended leases; they are taken back with the next look."""
    done_for_good: set[tuple[TopicName, int, int]]
    """Offsets whose messages a power cut took, although they were done, and that was promised."""

    def crash(self, *, power_cut: bool, within: bool = False) -> None:
        """The process ends here; another one opens what is left, perhaps not at the first try."""
        self.note(f"{'power cut' if power_cut else 'kill'}{' within that' if within else ''}")
        self.counts["power cuts" if power_cut else "kills"] += 1
        at_ns, synced_ns, wall_ns = self.now_ns, self.synced_ns, self.clock.wall_ns()
        while True:
            self.files = self.files.crash(self.rng) if power_cut else self.files.kill()
            again = self.rng.random() < 0.25
            if again:
                self.files.crash_at(self.rng.randint(1, 40))
            try:
                self.open(wall_ns + self.rng.randrange(10**10))
                break
            except SimulatedCrash:
                self.counts["crashed in recovery"] += 1
                power_cut = power_cut or self.rng.random() < 0.5
                self.note(f"crash in recovery, {power_cut=}")
        self.files.mend()
        self.recover(at_ns, wall_ns, synced_ns, power_cut=power_cut, within=within)

    def recover(
        self, at_ns: int, wall_ns: int, synced_ns: int, *, power_cut: bool, within: bool
    ) -> None:
        """Hold what came back against the model, and let the model go on from there."""
        self._recover_topics()
        self.done_for_good = set()
        for topic, model in self.partitions():
            self._recover_log(topic, model, synced_ns, power_cut=power_cut, within=within)
        self.absorb(wall_ns // 1000)
        for topic, model in self.partitions():
            self._recover_fates(topic, model, at_ns, synced_ns, power_cut=power_cut)
        for topic in self.topics.values():
            self._recover_delays(topic, synced_ns, power_cut=power_cut)
            self._forget_what_is_lost(topic, at_ns)
        self.recover_positions(power_cut=power_cut, synced_ns=synced_ns, within=within)
        self.expected.clear()
        self.futures.clear()
        self.trims_may_reach.clear()
        self.changing.clear()
        self.receiving = self.delaying = self.purging = None
        self.cancelling = set()

    def _recover_topics(self) -> None:
        there = set(self.broker.topics())
        gone = self.topics.keys() - there
        require(gone <= self.changing, f"topics are gone: {gone}")
        for name in gone:
            self.forget(name, returned=False)
        for name in self.changing & there - self.topics.keys():
            self.topics[name] = TopicModel(name, self.broker.topic(name).settings)
        for topic in self.topics.values():
            settings = self.broker.topic(topic.name).settings
            known = [topic.settings, topic.altered]
            if topic.name.is_dead_letters:  # a letter may have been on its way to a new partition
                known.append(replace(topic.settings, partitions=settings.partitions))
            require(settings in known, f"{topic.name} has other settings")
            topic.settings, topic.altered = settings, None
            self.add_partitions(topic)

    def forget(self, name: TopicName, *, returned: bool = True) -> None:
        del self.topics[name]
        self.receipts = [receipt for receipt in self.receipts if receipt.topic != name]
        self.forget_topic(str(name), returned=returned)

    def add_partitions(self, topic: TopicModel) -> None:
        for number in range(len(topic.partitions), topic.settings.partitions):
            topic.partitions.append(PartitionModel(number))

    def _recover_log(
        self,
        topic: TopicModel,
        model: PartitionModel,
        synced_ns: int,
        *,
        power_cut: bool,
        within: bool,
    ) -> None:
        log = self.broker.topic(topic.name).partitions[model.number].log
        where = f"{topic.name}/{model.number}"
        promised = model.promised_end(synced_ns) if power_cut else model.end
        require(log.end >= promised, f"{where} ends at {log.end}; promised up to {promised}")
        require(within or log.end <= model.end, f"{where} ends at {log.end}, not {model.end}")
        reach = self.trims_may_reach.get((topic.name, model.number), model.start)
        require(
            model.start <= log.start <= max(reach, model.start),
            f"{where} starts at {log.start}; trimmed to {model.start}, at most {reach}",
        )
        if log.end < model.end:
            self.counts["messages lost to power cuts"] += model.end - log.end
            for snapshot in model.history:
                if snapshot.promise and snapshot.promise.kept(synced_ns):
                    self.done_for_good |= {
                        (topic.name, model.number, offset)
                        for fates in snapshot.fates.values()
                        for offset, fate in fates.items()
                        if fate == DONE and offset >= log.end
                    }
            model.rows = {o: row for o, row in model.rows.items() if o < log.end}
            model.only_for = {o: group for o, group in model.only_for.items() if o < log.end}
            model.end = log.end
        model.trim(log.start)
        found = self.rows(topic, model.number, log.start)[: model.end - log.start]
        require(found == list(model.rows.values()), f"{where} holds other messages")

    def _recover_fates(
        self,
        topic: TopicModel,
        model: PartitionModel,
        at_ns: int,
        synced_ns: int,
        *,
        power_cut: bool,
    ) -> None:
        partition = self.broker.topic(topic.name).partitions[model.number]
        found = fates_of(partition)
        told_ns = {name: queue.state.time_ns for name, queue in partition.queues.items()}
        possible = [
            snapshot
            for snapshot in model.may_come_back(synced_ns, power_cut=power_cut)
            if in_time(snapshot, told_ns, at_ns)
        ]
        require(possible, f"the leases of {topic.name}/{model.number} go on at {told_ns}")
        snapshot = self._match(topic, model, possible, found)
        self._check_letters(topic, model, snapshot, power_cut=power_cut)
        model.deaths = []
        groups: dict[str, GroupModel] = {}
        for name, fates in found.items():
            groups[name] = GroupModel(told_ns[name] - self.now_ns, told_ns[name], fates)
        model.groups = groups
        model.ends = [(model.end, FOR_GOOD)]
        model.history = []
        model.note(FOR_GOOD)
        model.history[0].returned = True

    def _match(
        self,
        topic: TopicModel,
        model: PartitionModel,
        possible: list[Snapshot],
        found: dict[str, Fates],
    ) -> Snapshot:
        """The state that came back."""
        states = [
            (snapshot, self._with_ended(self._with_burials(topic, model, snapshot, found), found))
            for snapshot in possible
        ]
        equal = [
            snapshot
            for snapshot, seen in states
            if seen == self._without_new_groups(topic, model, found, seen)
        ]
        if equal:  # those who died with messages that are lost may have died or not
            return min(equal, key=lambda snapshot: snapshot.deaths)
        for snapshot, seen in states:
            if self._only_expiry(model, seen, found):
                self.counts["came back in the middle of a receive"] += 1
                return snapshot
        newest = states[0][1]
        differences = [
            f"{name}@{o}: {newest[name].get(o)} became {fates.get(o)}"
            for name, fates in found.items()
            if name in newest
            for o in sorted(newest[name].keys() | fates.keys())
            if newest[name].get(o) != fates.get(o)
        ]
        where = f"{topic.name}/{model.number}"
        raise AssertionError(
            f"{where}: none of {len(possible)} states came back; groups {newest.keys()}, found "
            f"{found.keys()}; to the newest: {differences}"
        )

    def _with_burials(
        self, topic: TopicModel, model: PartitionModel, snapshot: Snapshot, found: dict[str, Fates]
    ) -> dict[str, Fates]:
        """Messages whose letters were stored are done, even if the entry about it was lost."""
        dead = self.topics.get(topic.name.dead_letters)
        rows = [row for p in dead.partitions for row in p.rows.values()] if dead else []
        buried = {
            (story.group, story.offset, story.attempts, story.last_us)
            for story in (row.story for row in rows)
            if story is not None and story.partition == model.number
        }

        def now(name: str, offset: int, fate: Fate) -> Fate:
            if fate.place == "leased" and found.get(name, {}).get(offset) == DONE:
                letter = name, offset, fate.deliveries, fate.last_us
                return DONE if letter in buried else fate
            return fate

        return {
            name: {offset: now(name, offset, fate) for offset, fate in fates.items()}
            | model.withheld(name, {})  # those that came after the snapshot tell for themselves
            for name, fates in snapshot.seen(model.start, model.end).items()
        }

    def _with_ended(self, seen: dict[str, Fates], found: dict[str, Fates]) -> dict[str, Fates]:
        """The start ends leases that by the wall clock ended a minute ago, and no others.

        Whoever was handed something out at `last_us` can have had it, by a clock that was set at
        most by the jumps of this life, no longer than until then.
        """

        def now(name: str, offset: int, fate: Fate) -> Fate:
            other = found.get(name, {}).get(offset)
            if fate.place != "leased" or other is None or other.nonce != fate.nonce:
                return fate
            if other.deadline_ns <= fate.deadline_ns:  # the same: an earlier start ended it
                away_us = self.wall_us - fate.last_us + self.clock_was_set_us
                if away_us < GRACE_US:
                    return fate  # stolen, unless an older state came back
                self.counts["ended at the start"] += other.deadline_ns < fate.deadline_ns
                self.has_ended_leases = True
                return fate._replace(deadline_ns=other.deadline_ns)
            return fate

        return {
            name: {offset: now(name, offset, fate) for offset, fate in fates.items()}
            for name, fates in seen.items()
        }

    def _without_new_groups(
        self,
        topic: TopicModel,
        model: PartitionModel,
        found: dict[str, Fates],
        seen: dict[str, Fates],
    ) -> dict[str, Fates]:
        """A group that is on another partition may come to this one at any time, with all to do."""
        gone = found.get(LETTERS_GROUP, {})
        return {
            name: fates
            for name, fates in found.items()
            if fates != model.withheld(name, gone)
            or name in seen
            or not any(name in p.groups for p in topic.partitions)
        }

    def _only_expiry(
        self, model: PartitionModel, seen: dict[str, Fates], found: dict[str, Fates]
    ) -> bool:
        """Whether the difference is what a receive may have done that nobody saw the end of."""
        receiving = self.receiving
        if not seen.keys() <= found.keys():
            return False
        gone = found.get(LETTERS_GROUP, {})
        for name, fates in found.items():
            nonces = set()
            known = seen.get(name, model.withheld(name, gone))
            for offset in known.keys() | fates.keys():
                before, after = known.get(offset), fates.get(offset)
                if before == after:
                    continue
                row = model.rows[offset]
                fell_due = before is None or before.place == "waiting"
                if after == DONE and fell_due and row.expires_at_us is not None:
                    continue  # dropped in an entry of its own, ahead of the lease
                if receiving is None or receiving.group != name or model not in receiving.asked:
                    return False
                if after is None or after.place != "leased" or offset not in model.rows:
                    return False
                times = before.deliveries + 1 if before else 1
                if offset not in receiving.eligible(model) or after.deliveries != times:
                    return False
                nonces.add(after.nonce)
            if len(nonces) > 1:
                return False
        return True

    def _check_letters(
        self, topic: TopicModel, model: PartitionModel, snapshot: Snapshot, *, power_cut: bool
    ) -> None:
        """Whoever is dead has a letter: it is stored before the death is believed."""
        known = model.deaths[: snapshot.deaths]
        deaths = Counter(story for story in known if story.offset >= model.start)
        policies = {s.promise.policy for s in model.history if s.promise} | {topic.settings.fsync}
        if not deaths or (power_cut and "never" in policies):
            return
        dead = self.topics.get(topic.name.dead_letters)
        rows = [row for p in dead.partitions for row in p.rows.values()] if dead else []
        letters = Counter(row.story for row in rows)
        require(deaths <= letters, f"dead without a letter: {deaths - letters}")

    def _recover_delays(self, topic: TopicModel, synced_ns: int, *, power_cut: bool) -> None:
        found = self.delayed_of(topic)
        for each in list(topic.delayed.values()):
            if each.id in found:
                require(found[each.id] == (each.deliver_at_us, each.row), f"{each} has changed")
                self._still_pending(topic, each, synced_ns, power_cut=power_cut)
            else:
                self._no_longer_pending(topic, each, synced_ns, power_cut=power_cut)
        for id_ in found.keys() - topic.delayed.keys():
            at_us, row = found[id_]
            require(self.delaying is not None, f"a delayed message that nobody sent: {row}")
            assert self.delaying is not None
            of, rows, _, partition = self.delaying
            require(of is topic and row in rows, f"a delayed message that nobody sent: {row}")
            waits_in = self.waits_in[id_]
            require(partition in (None, waits_in), f"{id_} is not for partition {partition}")
            topic.delayed[id_] = DelayedModel(id_, row, at_us, waits_in, FOR_GOOD)
        for each in topic.delayed.values():
            each.promise = FOR_GOOD
            each.done = each.done and FOR_GOOD

    def _still_pending(
        self, topic: TopicModel, each: DelayedModel, synced_ns: int, *, power_cut: bool
    ) -> None:
        if each.state == "pending":
            return
        require(power_cut, f"{each} waits again")
        assert each.done is not None
        if each.state == "moved":
            number, offset = each.place
            model = topic.partitions[number]
            require(
                not model.start <= offset < model.end,
                f"{each} is in its partition, and waits to be delivered again",
            )
            done = (topic.name, number, offset) in self.done_for_good
            require(not done, f"{each} was acked, and waits to be delivered again")
            lost = offset >= model.end
        else:
            lost = False
        require(lost or not each.done.kept(synced_ns), f"{each} waits again")
        each.state, each.done = "pending", None

    def _no_longer_pending(
        self, topic: TopicModel, each: DelayedModel, synced_ns: int, *, power_cut: bool
    ) -> None:
        if each.state == "pending" and each.id in self.cancelling:
            each.state, each.done = "cancelled", FOR_GOOD
        lost = each.state == "pending"
        if each.state == "moved":
            number, offset = each.place
            lost = offset >= topic.partitions[number].end
        if lost:
            allowed = power_cut and not each.promise.kept(synced_ns)
            require(allowed, f"{each} is lost")
            del topic.delayed[each.id]

    def _forget_what_is_lost(self, topic: TopicModel, at_ns: int) -> None:
        ends = [p.end for p in topic.partitions]
        if topic is self.purging:
            topic.seen.clear()
        for id_, seen in list(topic.seen.items()):
            window_us = topic.settings.dedup_window_ms * 1000
            trimmed = seen.offset < topic.partitions[seen.partition].start
            outlived = at_ns - seen.since_ns >= window_us * 1000
            if (
                seen.offset >= ends[seen.partition]
                or self.wall_us - seen.sent_us > window_us
                or (trimmed and (outlived or topic.settings.retention_mode == "time"))
            ):
                del topic.seen[id_]
            else:
                age_us = max(0, self.wall_us - seen.sent_us)
                topic.seen[id_] = seen._replace(since_ns=self.now_ns - age_us * 1000)
        for (_, number), stored in topic.producers.items():
            stored[:] = [batch for batch in stored if batch.offset < ends[number]]


def in_time(snapshot: Snapshot, told_ns: dict[str, int], at_ns: int) -> bool:
    """Whether ledger time goes on between what was told last and the moment of the crash."""
    return all(
        earliest_ns <= told_ns[name] <= at_ns + ahead_ns
        for name, (earliest_ns, ahead_ns) in snapshot.told_ns.items()
        if name in told_ns
    )
