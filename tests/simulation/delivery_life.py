"""A group's queue beside the model of its messages: what may happen, and what has to follow."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from penstock.delivery.fairness import NOISY_MIN
from penstock.delivery.ledger import Dropped, decode, encode
from penstock.delivery.offsets import Offsets
from penstock.delivery.queue import GRACE_US, Decision, GroupQueue, Policy
from penstock.delivery.state import LEASE_RAN_OUT, GroupState
from penstock.errors import AlreadySettled, DeliveryError, InvalidReceipt, LeaseLost
from tests.simulation.delivery_model import Fate, Model, touched

if TYPE_CHECKING:
    from tests.simulation.delivery import World

MS = 1_000_000
FORGED = (1 << 60) - 1  # a nonce that nobody got


class Life:
    """One group's queue and its model, over a log that groups share."""

    def __init__(self, world: World, policy: Policy, random: Random) -> None:
        self.world = world
        self.policy = policy
        self.random = random
        self.counts: Counter[str] = Counter()
        self.model = Model()
        self.ahead_ns = -world.now_ns  # ledger time minus the clock's: a new group begins at 0
        self.queue = GroupQueue(GroupState(), policy, world.now_ns, world.wall_us)
        self.ledger: list[bytes] = []
        self.receipts: list[tuple[int, int]] = []  # nonce and offset of all that was handed out
        self.snapshot: tuple[int, int, bytes] | None = None  # entries before it, its time, itself
        self.synced = 0, Model(), 0  # entries, and the model and jumps then, that no crash takes
        self.unnoted_us = 0  # jumps of the wall clock that the ledger does not know of
        self.served_ns = [0] * 5  # when each lane was served last, or began anew

    @property
    def now_ns(self) -> int:
        """Ledger time."""
        return self.world.now_ns + self.ahead_ns

    # The broker's part.

    def commit(self, decision: Decision) -> bool:
        """Make a decision true, unless the append fails: then nothing may have happened."""
        if not decision.events:
            return False
        if self.random.random() < 0.03:
            self.counts["append failed"] += 1
            return False
        entry = encode(decision.events)
        assert decode(entry) == list(decision.events)
        self.ledger.append(entry)
        self.queue.apply(decision.events)
        return True

    # What may happen.

    def receive(self) -> None:
        world, model = self.world, self.model
        count = self.random.choice([1, 1, 1, 2, 5, 20, 300])
        visibility_ns = self.random.choice([1, 50, 500, 30_000]) * MS
        nonce = next(world.nonces)
        consumer = f"c{self.random.randrange(4)}"
        if not model.placed("leased") and not model.placed("waiting"):
            self.unnoted_us = 0  # nobody cares about those before
        decision = self.queue.receive(
            world.now_ns,
            world.wall_us,
            max_messages=count,
            visibility_ns=visibility_ns,
            consumer=consumer,
            nonce=nonce,
            source=world.source,
            end=world.source.end,
        )
        self.check_receive(decision, count)
        if not self.commit(decision):
            return
        for event in decision.events:
            if isinstance(event, Dropped):
                for part in event.parts:
                    for offset in part.offsets:
                        model.fates[offset].place = "done"
        leased = decision.leased
        if leased is None:
            return
        model.told_ns = self.now_ns
        model.until_us[nonce] = world.true_us + visibility_ns // 1000
        for part in leased.parts:
            self.served_ns[part.priority] = self.now_ns
            for offset in part.offsets:
                fate = model.fates[offset]
                fate.place = "leased"
                fate.deliveries += 1
                fate.nonce = nonce
                fate.deadline_ns = self.now_ns + visibility_ns
                fate.first_us = fate.first_us or world.wall_us
                fate.last_us = world.wall_us
                fate.consumer = consumer
                self.receipts.append((nonce, offset))
                self.counts["delivered"] += 1

    def check_receive(self, decision: Decision, count: int) -> None:
        world, fates, source = self.world, self.model.fates, self.world.source
        eligible = {
            offset
            for offset, fate in fates.items()
            if fate.place == "ready"
            or (fate.place == "waiting" and fate.deadline_ns <= self.now_ns)
        }
        expired = {offset for offset in eligible if source.is_expired(offset, world.wall_us)}
        got: list[int] = []
        for part in decision.leased.parts if decision.leased else ():
            offsets = list(part.offsets)
            got += offsets
            for offset in offsets:
                assert offset in eligible - expired, (offset, fates.get(offset))
                assert part.priority == source.messages[offset].priority
                assert part.delivery_count == fates[offset].deliveries + 1
        assert len(got) == len(set(got))
        dropped = [
            offset
            for event in decision.events
            if isinstance(event, Dropped)
            for part in event.parts
            for offset in part.offsets
        ]
        assert set(dropped) <= expired
        letters = {o: letter for letter in decision.dead_letters for o in letter.offsets}
        assert set(letters) == set(dropped)
        for offset, letter in letters.items():
            assert letter.reason == "expired"
            assert letter.attempts == fates[offset].deliveries

        leased = self.model.placed("leased")
        room = count
        if self.policy.in_flight_max is not None:
            room = max(0, min(room, self.policy.in_flight_max - len(leased)))
        self.check_starving(got, eligible - expired, room)
        if self.policy.ordered_by_key:
            busy = {
                source.messages[o].key for o in leased.keys() | self.model.placed("waiting").keys()
            }
            new = [o for o in got if fates[o].place == "ready"]
            keys = [source.messages[o].key for o in new if source.messages[o].key]
            assert len(keys) == len(set(keys))
            assert not busy & set(keys)
            ready = [o for o in fates if fates[o].place == "ready" and o not in expired]
            for offset in new:
                stored = source.messages[offset]
                earlier = [
                    o
                    for o in ready
                    if o < offset and source.messages[o][:2] == (stored.priority, stored.key)
                ]
                assert not stored.key or not earlier, "a later message of a key overtook"
            free = [
                o
                for o in eligible - expired
                if fates[o].place == "waiting" or source.messages[o].key not in busy - {0}
            ]
            assert bool(got) == bool(free and room)
            assert len(got) <= room
        elif self.policy.fair_by:
            assert len(got) == min(room, len(eligible - expired))
            self.check_turns(got, eligible - expired)
        else:
            assert len(got) == min(room, len(eligible - expired))
            # New messages of a priority come in their order.
            for priority in range(5):
                ready_here = sorted(
                    o
                    for o in eligible - expired
                    if fates[o].place == "ready" and source.messages[o].priority == priority
                )
                new_here = [
                    o
                    for o in got
                    if fates[o].place == "ready" and source.messages[o].priority == priority
                ]
                assert new_here == ready_here[: len(new_here)]

    def check_turns(self, got: list[int], eligible: set[int]) -> None:
        """Each tenant has its turn, and gets its messages in their order."""
        source, fates = self.world.source, self.model.fates
        ready = sorted(o for o in eligible if fates[o].place == "ready")
        by_tenant: dict[tuple[int, int], list[int]] = {}
        for offset in ready:
            by_tenant.setdefault(source.messages[offset][:2], []).append(offset)
        held = Counter(source.messages[o].key for o in self.model.placed("leased"))
        served = Counter(source.messages[o].priority for o in got)
        had_turns = {source.messages[o][:2] for o in got}
        tenants = Counter(p for p, _ in {source.messages[o][:2] for o in eligible})
        for (priority, tenant), mine in by_tenant.items():
            new = [o for o in mine if o in got]
            assert new == mine[: len(new)], "a later message of a tenant overtook"
            everybody = 2 * (tenants[priority] + 2)  # one more for those of an earlier life
            if held[tenant] < NOISY_MIN and served[priority] >= everybody:
                assert (priority, tenant) in had_turns, "a tenant had no turn"
                self.counts["turns"] += 1

    def check_starving(self, got: list[int], eligible: set[int], room: int) -> None:
        """What has waited for too long is among the next, if its lane was not served meanwhile."""
        world, source = self.world, self.world.source
        after_us = self.policy.boost_after_ms * 1000
        if self.policy.ordered_by_key or world.jumps or room < 5 or not got:
            return
        for priority in range(5):
            mine = [o for o in eligible if source.messages[o].priority == priority]
            new = [o for o in mine if self.model.fates[o].place == "ready"]
            if not new or self.now_ns - self.served_ns[priority] <= after_us * 1000:
                continue
            if world.wall_us - source.messages[min(new)].arrived_us >= after_us:
                assert set(mine) & set(got), "a message that has waited is not served"
                self.counts["starving"] += 1

    def settle(self) -> None:
        """Ack, nack, reject or extend, with receipts of all kinds."""
        what = self.random.choice(["ack", "ack", "ack", "nack", "reject", "extend"])
        nonce, offsets = self.draw_receipts()
        if nonce is None:
            return
        now_ns, model = self.now_ns, self.model
        held: list[int] = []
        refused: dict[int, type[DeliveryError]] = {}
        for offset in offsets:
            fate = model.fates.get(offset)
            if fate is not None and fate.place == "leased" and fate.nonce == nonce:
                if fate.deadline_ns > now_ns:
                    held.append(offset)
                else:
                    refused[offset] = LeaseLost
            else:
                refused[offset] = self.why_not(offset)
        delay_ns = self.random.choice([None, None, 0, 20 * MS])
        visibility_ns = self.random.choice([0, 10, 1000]) * MS
        error = self.random.choice(["", "boom"])
        clock_ns, some = self.world.now_ns, Offsets.of(offsets)
        if what == "ack":
            decision = self.queue.ack(clock_ns, nonce, some)
        elif what == "nack":
            decision = self.queue.nack(clock_ns, nonce, some, delay_ns=delay_ns, error=error)
        elif what == "reject":
            decision = self.queue.reject(clock_ns, nonce, some, error=error)
        else:
            decision = self.queue.extend(clock_ns, nonce, some, visibility_ns=visibility_ns)
        assert decision.refused == refused, (
            what,
            [(o, refused.get(o), e) for o, e in decision.refused.items() if refused.get(o) != e],
        )
        assert sorted(touched(decision.events, model, nonce)) == sorted(held)
        dead = held if what == "reject" else []
        if what == "nack":
            dead = [o for o in held if self.is_last(model.fates[o])]
        self.check_letters(decision, dead, "rejected" if what == "reject" else "max_retries", error)
        if not self.commit(decision):
            return
        self.counts[what] += len(held)
        self.counts["refused"] += len(refused)
        for offset in held:
            fate = model.fates[offset]
            if what == "ack" or offset in dead:
                fate.place = "done"
            elif what == "nack":
                model.told_ns = now_ns
                fate.place = "waiting"
                fate.error = error
                backoff_ns = self.policy.backoff.delay_ms(fate.deliveries) * MS
                fate.deadline_ns = now_ns + (backoff_ns if delay_ns is None else delay_ns)
            else:
                model.told_ns = now_ns
                fate.deadline_ns = now_ns + visibility_ns
        if what == "extend" and held and nonce in model.until_us:
            until_us = self.world.true_us + visibility_ns // 1000
            whole = all(f.nonce != nonce or o in held for o, f in model.placed("leased").items())
            model.until_us[nonce] = until_us if whole else max(until_us, model.until_us[nonce])

    def draw_receipts(self) -> tuple[int | None, list[int]]:
        recent = self.receipts[-60:] if self.random.random() < 0.9 else self.receipts
        # A message that a power cut took may have become a gap, of which nobody knows anything.
        recent = [r for r in recent if r[1] < self.world.start or r[1] in self.model.fates]
        if not recent:
            return None, []
        nonce, offset = self.random.choice(recent)
        kind = self.random.random()
        if kind < 0.05:
            return FORGED, [offset]
        if kind < 0.08:
            return nonce, [offset, self.world.source.end + 5]  # a message that is not there
        mine = [o for n, o in recent if n == nonce]
        if kind < 0.5:
            return nonce, [offset]
        if kind < 0.75:
            return nonce, sorted(set(mine))
        return nonce, sorted(set(self.random.sample(mine, self.random.randint(1, len(mine)))))

    def why_not(self, offset: int) -> type[DeliveryError]:
        fate = self.model.fates.get(offset)
        if fate is None:
            return AlreadySettled if offset < self.model.start else InvalidReceipt
        if fate.place == "done":
            return AlreadySettled
        return InvalidReceipt if fate.place == "ready" else LeaseLost

    def is_last(self, fate: Fate) -> bool:
        retries = self.policy.max_retries
        return retries is not None and fate.deliveries > retries

    def check_letters(self, decision: Decision, dead: list[int], reason: str, error: str) -> None:
        letters = {o: letter for letter in decision.dead_letters for o in letter.offsets}
        assert sorted(letters) == sorted(dead)
        for offset, letter in letters.items():
            fate = self.model.fates[offset]
            assert (letter.reason, letter.error) == (reason, error)
            assert letter.attempts == fate.deliveries
            assert letter.first_delivery_us == fate.first_us
            assert letter.last_delivery_us == fate.last_us
            assert letter.consumer == fate.consumer

    def expire(self) -> None:
        """What the broker does before all else: take back what is overdue."""
        model = self.model
        while True:
            overdue = [o for o, f in model.placed("leased").items() if f.deadline_ns <= self.now_ns]
            deadline_ns = self.queue.next_deadline()
            if overdue:
                assert deadline_ns is not None
                assert deadline_ns <= self.world.now_ns, "a lease that is over would go unnoticed"
            decision = self.queue.expire(self.world.now_ns)
            assert sorted(touched(decision.events, model)) == sorted(overdue)
            dead = [o for o in overdue if self.is_last(model.fates[o])]
            self.check_letters(decision, dead, "max_retries", LEASE_RAN_OUT)
            if not overdue:
                return
            if not self.commit(decision):
                continue
            self.counts["expired"] += len(overdue)
            for offset in overdue:
                fate = model.fates[offset]
                fate.place = "done" if offset in dead else "waiting"
                fate.deadline_ns = self.now_ns
                if self.policy.lease_expiry_backoff:
                    fate.deadline_ns += self.policy.backoff.delay_ms(fate.deliveries) * MS
                fate.error = LEASE_RAN_OUT
            if set(overdue) != set(dead):
                model.told_ns = self.now_ns

    def note_time(self) -> None:
        """What the housekeeper does while somebody waits for time to pass."""
        self.expire()
        decision = self.queue.note_time(self.world.now_ns, self.world.wall_us)
        waits = self.model.placed("leased") or self.model.placed("waiting")
        if self.unnoted_us and waits:
            assert decision.events, "a jump of the wall clock would go unnoticed"
        if self.commit(decision):
            self.counts["time noted"] += 1
            self.model.told_ns = self.now_ns
            self.unnoted_us = 0

    def trim(self, before: int) -> None:
        """The log dropped its beginning; an append that fails is tried until it does not."""
        decision = self.queue.trim(before)
        while decision.events and not self.commit(decision):
            pass
        self.model.start = max(self.model.start, before)
        self.served_ns = [self.now_ns] * 5  # what was to be served may be gone
        for offset in [o for o in self.model.fates if o < before]:
            del self.model.fates[offset]

    def purge(self) -> None:
        before = self.random.randint(self.world.start, self.world.source.end)
        if self.commit(self.queue.trim(before)):
            self.counts["purged"] += 1
            self.served_ns = [self.now_ns] * 5
            self.model.start = max(self.model.start, before)
            for offset, fate in self.model.fates.items():
                if offset < before:
                    fate.place = "done"

    def seek(self) -> None:
        offset = self.random.randint(self.world.start, self.world.source.end)
        if self.commit(self.queue.seek(offset)):
            self.counts["sought"] += 1
            self.model.start = offset
            self.served_ns = [self.now_ns] * 5
            for message in self.model.fates:
                self.model.fates[message] = Fate("done" if message < offset else "ready")

    def take_snapshot(self) -> None:
        self.snapshot = (
            len(self.ledger),
            self.now_ns,
            self.queue.snapshot(self.world.now_ns),
        )

    def sync(self) -> None:
        self.synced = len(self.ledger), self.model.copy(), self.world.jumps

    def crash(self, *, lose_end: bool) -> None:
        """The process is gone, perhaps with what was not synced of the ledger. Recover."""
        self.counts["crashed"] += 1
        source = self.world.source
        if lose_end:
            if self.synced[2] != self.world.jumps:
                self.unnoted_us = 1  # or any number
            del self.ledger[self.synced[0] :]
            self.model = self.synced[1].copy()
            if self.snapshot is not None and self.snapshot[0] > len(self.ledger):
                self.snapshot = None
        entries, state, time_ns = 0, GroupState(), self.model.told_ns
        if self.snapshot is not None and self.random.random() < 0.7:
            self.counts["restored"] += 1
            entries, state = self.snapshot[0], GroupState.restore(self.snapshot[2])
            time_ns = max(time_ns, self.snapshot[1])
        else:
            # It was unreadable. A later recovery must not find it: it may speak of messages that
            # the log has lost by now, and of which no event tells that they are lost.
            self.snapshot = None
        for entry in self.ledger[entries:]:
            state.apply(decode(entry))
        self.queue = GroupQueue(state, self.policy, self.world.now_ns, self.world.wall_us)
        self.ahead_ns = time_ns - self.world.now_ns
        self.served_ns = [self.now_ns] * 5
        # The log may have lost more than the ledger, or less.
        while (lost := self.queue.truncate(source.end)).events and not self.commit(lost):
            pass
        self.model.start = min(self.model.start, source.end)
        self.model.fates = {
            offset: self.model.fates.get(offset, Fate()) for offset in source.messages
        }
        self.trim(self.world.start)
        self.end_old_leases()

    def end_old_leases(self) -> None:
        """At the start: leases are over that ended a minute ago by the wall clock."""
        model, true_us = self.model, self.world.true_us
        leased = model.placed("leased")
        while (decision := self.queue.end_old_leases(self.world.wall_us)).events:
            if self.commit(decision):
                break
        over = set(touched(decision.events, model))
        for offset, fate in leased.items():
            if self.unnoted_us:
                model.until_us.pop(fate.nonce, None)  # nobody can know it any more
            until_us = model.until_us.get(fate.nonce)
            if until_us is not None and abs(until_us + GRACE_US - true_us) > 10_000:
                assert (offset in over) == (until_us + GRACE_US < true_us), (fate, true_us)
        self.unnoted_us = 0
        for offset in over:
            self.counts["ended at the start"] += 1
            leased[offset].deadline_ns = self.now_ns
            model.until_us.pop(leased[offset].nonce, None)
            model.told_ns = self.now_ns

    def drain(self) -> None:
        """All that is left is received and acked; then everything is committed."""
        while True:
            self.world.now_ns += 120_000 * MS
            self.expire()
            self.receive()
            leased = self.model.placed("leased")
            for nonce in {fate.nonce for fate in leased.values()}:
                decision = self.queue.ack(self.world.now_ns, nonce)
                if self.commit(decision):
                    for fate in leased.values():
                        if fate.nonce == nonce:
                            fate.place = "done"
            if all(fate.place == "done" for fate in self.model.fates.values()):
                break
        while self.queue.committed < self.world.source.end:
            self.receive()  # finds nothing, and so passes the gaps at the end
        stats = self.queue.stats(self.world.source.end)
        assert (stats.depth, stats.ready, stats.in_flight, stats.retrying) == (0, 0, 0, 0)

    def check(self) -> None:
        """Everything that can be seen from outside agrees with the model."""
        model, source, queue = self.model, self.world.source, self.queue
        stats = queue.stats(source.end)
        leased, waiting = model.placed("leased"), model.placed("waiting")
        assert stats.in_flight == len(leased)
        assert stats.retrying == len(waiting)
        for priority in range(5):
            of = [o for o in leased if source.messages[o].priority == priority]
            assert stats.in_flight_by_priority[priority] == len(of)
            of = [o for o in waiting if source.messages[o].priority == priority]
            assert stats.retrying_by_priority[priority] == len(of)
        undone = [o for o, fate in model.fates.items() if fate.place != "done"]
        floor = min(undone, default=source.end)
        assert queue.committed <= floor
        # It may wait before a gap until a lane has looked there, but never before what is done.
        assert queue.committed == floor or queue.committed not in model.fates
        to_come = [f.deadline_ns for f in leased.values()]
        to_come += [f.deadline_ns for f in waiting.values() if f.deadline_ns > self.now_ns]
        if to_come:
            deadline_ns = queue.next_deadline()
            assert deadline_ns is not None
            assert deadline_ns <= min(to_come) - self.ahead_ns
