"""What one group sees of one partition as a queue: receive, ack, nack, reject, extend, expire.

Every call decides and changes nothing. It returns a `Decision`, and the broker, one call at a time
for each partition, does with it what makes it true:

1. stores its dead letters in the dead-letter topic,
2. appends its events to the ledger as one entry,
3. gives the same events to `apply`.

A crash between any two of these loses nothing: without step 2 the messages are where they were. A
dead letter names its lease, so that a restart can finish what was begun. A failed append is a
decision that was never made.

Time is the monotonic clock's. Leases and delays are kept in ledger time, which goes on from the
last event of the former life; while anything depends on it, it is noted at least every second, so
that a broker that is killed again and again does not keep a lease alive. A wall clock that is set,
by any amount, neither ends a lease nor keeps it alive.

Only a broker that starts asks the wall clock how long it was away: a lease that would have ended a
minute ago by it is over. What it is asked for is the wall clock without the jumps that were seen
while a broker was up (`until_us`, `jumped_us`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import msgspec

from penstock.delivery.backoff import Backoff
from penstock.delivery.fairness import Fairness
from penstock.delivery.lanes import LANES, WEIGHTS, DeficitRoundRobin, Source
from penstock.delivery.leases import Lease
from penstock.delivery.ledger import (
    Acked,
    Event,
    Expired,
    Extended,
    Leased,
    Nacked,
    Part,
    Passed,
    Reason,
    Rejected,
    Sought,
    TimePassed,
    Trimmed,
    Truncated,
)
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.delivery.picking import DeadLetter, Pick
from penstock.delivery.starvation import StarvationTimers
from penstock.delivery.state import LEASE_RAN_OUT, GroupState
from penstock.delivery.timers import NEVER
from penstock.errors import (
    AlreadySettled,
    DeliveryError,
    InvalidInput,
    InvalidReceipt,
    LeaseLost,
)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How a group is served."""

    max_retries: int | None = 3  # after so many more deliveries it is a dead letter; None: never
    backoff: Backoff = Backoff()
    in_flight_max: int | None = None
    ordered_by_key: bool = False
    key_run_max: int = 1  # messages of one key that one receive may hand out
    fair_by: str | None = None  # tenants take turns, who are told apart by this
    weights: tuple[int, int, int, int, int] = WEIGHTS
    boost_after_ms: int = 30_000
    lease_expiry_backoff: bool = False  # whether what a lease lost waits as what is nacked does

    def __post_init__(self) -> None:
        if min(self.weights) < 1:
            raise InvalidInput(f"lane weights {self.weights}: each must be at least 1")
        if self.max_retries is not None and self.max_retries < 0:
            raise InvalidInput(f"max_retries is {self.max_retries}; it must be at least 0")
        if self.key_run_max < 1:
            raise InvalidInput(f"key_run_max is {self.key_run_max}; it must be at least 1")
        if self.in_flight_max is not None and self.in_flight_max < 1:
            raise InvalidInput(f"in_flight_max is {self.in_flight_max}; it must be at least 1")


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What is to be done; nothing of it has happened yet."""

    events: tuple[Event, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    refused: dict[int, type[DeliveryError]] = {}  # by offset: why it cannot be settled
    leased: Leased | None = None  # of a receive: what it hands out, in the order of its parts
    lease: Lease | None = None  # of an ack: where the messages were that are done
    done: Offsets = EMPTY  # of an ack: which they are


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    committed: int
    depth: int  # not done: ready, in flight or waiting for a retry
    ready: int
    in_flight: int
    retrying: int
    in_flight_by_priority: tuple[int, ...]
    retrying_by_priority: tuple[int, ...]
    cursors: tuple[int, ...]  # by priority: no message below was never handed out


NOTHING = Decision()

STARVING = -1
"""In place of the highest priority that is ready: something has waited for too long."""

GRACE_US = 60_000_000
"""How long after its end by the wall clock a lease is surely over."""

_TIME_NOTED_NS_MIN, _TIME_NOTED_NS_MAX = 50_000_000, 1_000_000_000
_JUMP_US_MIN = 1_000_000  # a wall clock that is off by less was not set


class GroupQueue:
    def __init__(
        self,
        state: GroupState,
        policy: Policy,
        now_ns: int,
        wall_us: int,
        random: Random | None = None,
    ) -> None:
        """`state` as the ledger left it; its time goes on from `now_ns`."""
        self.state = state
        self.policy = policy
        self._random = random
        self._turns = DeficitRoundRobin(policy.weights)
        self._starvation = StarvationTimers(policy.boost_after_ms)
        self._began_ns = state.time_ns
        self._ahead_ns = state.time_ns - now_ns  # ledger time minus the clock's
        self._steady_us = wall_us - state.jumped_us - state.time_ns // 1000
        """The wall clock without its jumps, minus ledger time."""
        state.fair = None if policy.fair_by is None else Fairness()
        self.apply: Callable[[Iterable[Event]], None] = state.apply
        """The events of a decision are stored: they count."""

    def receive(
        self,
        now_ns: int,
        wall_us: int,
        max_messages: int,
        visibility_ns: int,
        consumer: str,
        nonce: int,
        source: Source,
        end: int,
    ) -> Decision:
        """Hand out messages below `end` under one lease; its nonce must be new.

        The caller expires first. A decision may have events without a lease: messages outlived
        their TTL. Then more may be ready, so make it true and call again.
        """
        state, policy = self.state, self.policy
        if nonce in state.leases.by_nonce:
            raise InvalidInput("the nonce of a lease that exists cannot be used again")
        count = max_messages
        if policy.in_flight_max is not None:
            count = min(count, policy.in_flight_max - state.in_flight)
        if count <= 0:
            return NOTHING
        at_ns = now_ns + self._ahead_ns
        if not state.outstanding:
            self._steady_us = wall_us - state.jumped_us - at_ns // 1000  # of no jump before
        until_us = (at_ns + visibility_ns) // 1000 + self._steady_us
        due = state.retries.look(at_ns) if state.retries.waiting else 0
        if not due and not policy.ordered_by_key and state.fair is None:  # only new messages
            found = state.lanes.of_one_lane(count, source, end, state.unseen)
            if found is not None and not source.expired(found[1], wall_us).count:
                priority, offsets, passed = found
                parts = (Part(priority, offsets),)
                leased = Leased(
                    at_ns, nonce, visibility_ns, consumer, wall_us, parts, passed, b"", until_us
                )
                return Decision((leased,), (), {}, leased)
        ready = state.lanes.look(source, end, state.unseen) | due
        run_max = policy.key_run_max if policy.ordered_by_key else 0
        pick = Pick(state, source, end, wall_us, key_run_max=run_max)
        if ready & ready - 1:
            for each in self._starvation.starving(state, ready, at_ns, wall_us, source)[:count]:
                count -= pick.draw_one(each.priority, retry=each.is_retry)
            if count:
                self._turns.share(count, ready, pick.draw)
        elif ready:
            pick.draw(ready.bit_length() - 1, count)
        events = pick.events(at_ns, nonce, visibility_ns, consumer, until_us)
        if not events:
            return NOTHING
        handed_out = events[0] if isinstance(events[0], Leased) else None
        return Decision(events, pick.dead_letters(), {}, handed_out)

    def best_ready(self, now_ns: int, wall_us: int, source: Source, end: int) -> int:
        """The highest priority with a message to hand out now, or STARVING; one past the last if
        there is none."""
        state, at_ns = self.state, now_ns + self._ahead_ns
        ready = state.lanes.look(source, end, state.unseen) | state.retries.look(at_ns)
        if not ready:
            return LANES
        if self._starvation.starving(state, ready, at_ns, wall_us, source):
            return STARVING
        return (ready & -ready).bit_length() - 1

    def ack(self, now_ns: int, nonce: int, offsets: Offsets | None = None) -> Decision:
        """Messages are done. Without offsets: all that the lease holds; LeaseLost if it is gone."""
        lease, held, refused = self._held(now_ns, nonce, offsets)
        if not held.count:
            return Decision(refused=refused)
        return Decision((Acked(nonce, held),), (), refused, None, lease, held)

    def ack_lost(self, offsets: Offsets) -> Decision:
        """Messages are done although another consumer may hold them now, or nobody; those that
        were never handed out since the group began, or sought, are refused."""
        lost = offsets.within(self.state.outstanding)
        holders = self.holders(lost)
        events: list[Event] = [Acked(nonce, held) for nonce, held in holders.items()]
        for held in holders.values():
            lost -= held
        if lost.count:  # they wait for a retry
            events.append(Acked(0, lost))
        refused = {
            offset: self._why_not(offset)
            for offset in offsets - offsets.within(self.state.outstanding)
        }
        return Decision(tuple(events), (), refused)

    def holders(self, offsets: Offsets) -> dict[int, Offsets]:
        """The nonces of the leases that hold messages now, and what each holds of them."""
        if not offsets.count or self.state.retries.waiting.issuperset(offsets.bitmap()):
            return {}
        return self.state.leases.holders(offsets)

    def nack(
        self,
        now_ns: int,
        nonce: int,
        offsets: Offsets | None = None,
        *,
        delay_ns: int | None = None,
        error: str = "",
        retries: int | None = None,
    ) -> Decision:
        """Messages are given back, to be tried again after a delay, by default the backoff's.

        `retries`: dead letters after so many, if that is fewer than the policy allows.
        """
        lease, held, refused = self._held(now_ns, nonce, offsets)
        if lease is None or not held.count:
            return Decision(refused=refused)
        at_ns = now_ns + self._ahead_ns
        again, letters = self._sort_out(lease, held, error, retries)
        events: list[Event] = _rejected(nonce, letters)
        for delivery_count, members in _by_count(again).items():
            wait_ns = delay_ns
            if wait_ns is None:
                wait_ns = self._backoff_ns(delivery_count)
            events.append(Nacked(at_ns, nonce, members, wait_ns, error))
        return Decision(tuple(events), tuple(letters), refused)

    def reject(
        self, now_ns: int, nonce: int, offsets: Offsets | None = None, *, error: str = ""
    ) -> Decision:
        """Messages are given up and go straight to the dead letters."""
        lease, held, refused = self._held(now_ns, nonce, offsets)
        if lease is None or not held.count:
            return Decision(refused=refused)
        letters = self._letters(lease, lease.parts_of(held), "rejected", error)
        return Decision((Rejected(nonce, held, "rejected"),), tuple(letters), refused)

    def extend(
        self, now_ns: int, nonce: int, offsets: Offsets | None = None, *, visibility_ns: int
    ) -> Decision:
        """Messages are held for this long from now on; shorter than before is allowed too."""
        lease, held, refused = self._held(now_ns, nonce, offsets)
        if lease is None or not held.count:
            return Decision(refused=refused)
        at_ns = now_ns + self._ahead_ns
        until_us = (at_ns + visibility_ns) // 1000 + self._steady_us
        some = EMPTY if held == lease.held() else held
        return Decision((Extended(at_ns, nonce, visibility_ns, some, until_us),), (), refused)

    def expire(self, now_ns: int, limit: int = 1000) -> Decision:
        """Take back what was held too long, from at most `limit` leases; to be called when
        `next_deadline` has come, and again while it has."""
        at_ns = now_ns + self._ahead_ns
        self.state.retries.look(at_ns)  # what fell due is no longer a deadline
        backs_off = self.policy.lease_expiry_backoff
        events: list[Event] = []
        dead: list[DeadLetter] = []
        for lease in self.state.leases.overdue(at_ns, limit):
            again, letters = self._sort_out(lease, lease.overdue(at_ns), LEASE_RAN_OUT)
            events += _rejected(lease.nonce, letters)
            for delivery_count, members in _by_count(again).items():
                delay_ns = self._backoff_ns(delivery_count) if backs_off else 0
                events.append(Expired(at_ns, lease.nonce, members, delay_ns))
            dead += letters
        return Decision(tuple(events), tuple(dead)) if events else NOTHING

    def note_time(self, now_ns: int, wall_us: int) -> Decision:
        """Tell the ledger the time, if that is due; to be called when `next_look` has come."""
        state, at_ns = self.state, now_ns + self._ahead_ns
        jumped_us = wall_us - self._steady_us - at_ns // 1000
        is_due = at_ns >= self._note_ns() or abs(jumped_us - state.jumped_us) >= _JUMP_US_MIN
        if not is_due or not state.outstanding:
            return NOTHING
        return Decision((TimePassed(at_ns, jumped_us),))

    def end_old_leases(self, wall_us: int) -> Decision:
        """To be called after a recovery: leases end that by the wall clock ended long ago."""
        state = self.state
        now_us = wall_us - state.jumped_us
        over = [
            Extended(state.time_ns, lease.nonce, 0)
            for lease in state.leases
            if lease.until_us and lease.until_us + GRACE_US <= now_us
        ]
        return Decision(tuple(over)) if over else NOTHING

    def may_give_up(self, nonce: int, offset: int) -> bool:
        """Whether a message is held under this nonce or, if it is 0, is to be done and nobody
        holds it: as it was before a dead letter that names this nonce was stored."""
        state = self.state
        if nonce:
            lease = state.leases.get(nonce)
            return lease is not None and lease.those_held(Offsets.one(offset)).count > 0
        if offset in state.outstanding:
            return offset in state.retries.waiting
        return offset not in state.acked

    def seek(self, offset: int) -> Decision:
        """Start again from an offset, forwards or back. All leases are lost, and all counts."""
        return Decision((Sought(offset),))

    def trim(self, before: int) -> Decision:
        """Everything below is done with: the log dropped it, or it is purged."""
        if before <= self.state.committed:
            return NOTHING
        passed = min(lane.after(before) for lane in self.state.lanes)
        return Decision((Trimmed(before), Passed(passed)))

    def truncate(self, end: int) -> Decision:
        """To be called after a recovery: the log ends here, whatever the ledger knows beyond."""
        return Decision((Truncated(end),)) if end < self.state.reach else NOTHING

    def next_deadline(self) -> int | None:
        """When, by the caller's clock, a lease runs out or a message falls due for a retry."""
        next_ns = min(self.state.leases.next_deadline(), self.state.retries.next_deadline())
        return None if next_ns == NEVER else next_ns - self._ahead_ns

    def next_look(self) -> int | None:
        """When, by the caller's clock, something falls due or the ledger wants to know the time."""
        deadline_ns = self.next_deadline()
        if deadline_ns is None:
            return None
        return min(deadline_ns, self._note_ns() - self._ahead_ns)

    @property
    def committed(self) -> int:
        return self.state.committed

    def stats(self, end: int) -> Stats:
        """`end`: where the log ends. Offsets without a message count as ready until passed."""
        state = self.state
        depth = max(0, end - state.committed - len(state.acked.above))
        return Stats(
            committed=state.committed,
            depth=depth,
            ready=max(0, depth - len(state.outstanding)),
            in_flight=state.in_flight,
            retrying=len(state.retries.waiting),
            in_flight_by_priority=tuple(state.in_flight_of),
            retrying_by_priority=tuple(state.retries.waiting_of),
            cursors=state.lanes.cursors,
        )

    def ledger_ns(self, now_ns: int) -> int:
        """The clock's time as leases and retries count it."""
        return now_ns + self._ahead_ns

    def snapshot(self, now_ns: int) -> bytes:
        """The state as it is now, with the time that each lease has left. Note the time first, or
        a jump of the wall clock may be forgotten.

        It may know of messages at the very end of the log: a recovery that uses it truncates, and
        one that does not must see to it that no later one does.
        """
        self.state.time_ns = max(self.state.time_ns, now_ns + self._ahead_ns)
        return self.state.snapshot()

    def _held(
        self, now_ns: int, nonce: int, offsets: Offsets | None
    ) -> tuple[Lease | None, Offsets, dict[int, type[DeliveryError]]]:
        """What of the offsets this nonce may settle now, and why not the rest."""
        lease, held = self.state.leases.get(nonce), EMPTY
        if lease is not None:
            held = lease.held() if offsets is None else lease.those_held(offsets)
            at_ns = now_ns + self._ahead_ns
            if lease.deadline_ns <= at_ns or lease.extended:
                held -= lease.overdue(at_ns)
        if offsets is None:
            if not held.count:
                raise LeaseLost
            return lease, held, {}
        if held.count == offsets.count:
            return lease, held, {}
        return lease, held, {offset: self._why_not(offset) for offset in offsets - held}

    def _why_not(self, offset: int) -> type[DeliveryError]:
        if offset in self.state.acked:
            return AlreadySettled
        return LeaseLost if offset in self.state.outstanding else InvalidReceipt

    def _sort_out(
        self, lease: Lease, offsets: Offsets, error: str, wanted: int | None = None
    ) -> tuple[list[Part], list[DeadLetter]]:
        """Which of the messages are tried again, and the letters of those that are not."""
        parts = lease.parts_of(offsets)
        retries = fewer_retries(self.policy.max_retries, wanted)
        if retries is None:
            return parts, []
        dead = [part for part in parts if part.delivery_count > retries]
        again = [part for part in parts if part.delivery_count <= retries]
        return again, self._letters(lease, dead, "max_retries", error)

    def _letters(
        self, lease: Lease, parts: Sequence[Part], reason: Reason, error: str
    ) -> list[DeadLetter]:
        return [
            DeadLetter(
                offsets=members,
                reason=reason,
                attempts=part.delivery_count,
                first_delivery_us=first_us,
                last_delivery_us=lease.wall_us,
                consumer=lease.consumer,
                error=error,
                nonce=lease.nonce,
            )
            for part in parts
            for first_us, members in self.state.firsts(part, lease.wall_us).items()
        ]

    def _backoff_ns(self, delivery_count: int) -> int:
        return self.policy.backoff.delay_ms(delivery_count, self._random) * 1_000_000

    def _note_ns(self) -> int:
        """When the ledger is to be told the time, in ledger time. Often at first, and then less and
        less so, since a broker may be killed again and again soon after its start."""
        state = self.state
        time_ns = state.time_ns
        next_ns = min(state.leases.next_deadline(), state.retries.next_deadline())
        young_ns = max(time_ns - self._began_ns, _TIME_NOTED_NS_MIN)
        return time_ns + min(time_noted_every_ns(next_ns - time_ns), young_ns)


def time_noted_every_ns(left_ns: int) -> int:
    """How often the time is noted while the next deadline is so far away."""
    return min(max(left_ns // 8, _TIME_NOTED_NS_MIN), _TIME_NOTED_NS_MAX)


def fewer_retries(one: int | None, other: int | None) -> int | None:
    """The limit that counts where there are two; None: no limit."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _rejected(nonce: int, letters: Sequence[DeadLetter]) -> list[Event]:
    if not letters:
        return []
    return [Rejected(nonce, _union(letter.offsets for letter in letters), "max_retries")]


def _by_count(parts: Iterable[Part]) -> dict[int, Offsets]:
    groups: dict[int, Offsets] = {}
    for part in parts:
        known = groups.get(part.delivery_count)
        groups[part.delivery_count] = part.offsets if known is None else known | part.offsets
    return groups


def _union(sets: Iterable[Offsets]) -> Offsets:
    union = Offsets(0, 0)
    for offsets in sets:
        union |= offsets
    return union
