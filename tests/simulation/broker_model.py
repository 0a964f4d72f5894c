"""A plain model of a broker: what was sent, what became of it in each group, what is promised.

Everything is looked up the slow and obvious way. A group's part of a partition is a dictionary of
fates; each change of it is one entry of the ledger, and the model keeps what the fates were after
each entry. So after a crash it can say which of these states may come back: after a kill the last
one, after a power cut any that is not older than what the fsync policy has promised.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from penstock.broker.dead_letters import ORIGIN_HEADER, Origin
from penstock.broker.partition import Partition
from penstock.broker.withheld import LETTERS_GROUP
from penstock.config import FsyncPolicy
from penstock.delivery.state import LEASE_RAN_OUT
from penstock.model.settings import TopicSettings
from penstock.record.batch import Message


class BrokenPromise(AssertionError):
    """The broker does not keep what it promised."""


def require(kept: object, broken: str) -> None:
    if not kept:
        raise BrokenPromise(broken)


class Story(NamedTuple):
    """What a dead letter tells of its message."""

    partition: int
    offset: int
    group: str
    reason: str
    attempts: int
    first_us: int | None
    last_us: int | None
    consumer: str
    error: str


class Row(NamedTuple):
    """A message as it was handed over."""

    value: bytes
    key: bytes | None = None
    priority: int = 2
    expires_at_us: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    story: Story | None = None

    def expired(self, wall_us: int) -> bool:
        return self.expires_at_us is not None and self.expires_at_us <= wall_us


def row_of(message: Message) -> Row:
    """A message that was found, as it was handed over."""
    headers = dict(message.headers)
    origin = headers.pop(ORIGIN_HEADER, None)
    story = None
    if origin is not None:
        told = msgspec.json.decode(origin, type=Origin)
        story = Story(
            told.partition,
            told.offset,
            told.group,
            told.reason,
            told.attempts,
            told.first_delivery_us,
            told.last_delivery_us,
            told.consumer,
            told.error,
        )
    return Row(
        message.value or b"",
        message.key,
        message.priority,
        message.expires_at_us,
        tuple(sorted(headers.items())),
        story,
    )


class Fate(NamedTuple):
    """What became of a message in a group. Deadlines are ledger time."""

    place: Literal["ready", "leased", "waiting", "done"] = "ready"
    deliveries: int = 0
    nonce: int = 0
    deadline_ns: int = 0
    first_us: int = 0
    last_us: int = 0
    consumer: str = ""
    error: str = ""


READY, DONE = Fate(), Fate("done")
Fates = dict[int, Fate]
"""By offset; messages that are ready are left out."""


class Promise(NamedTuple):
    """When something was acknowledged, and by which policy."""

    policy: FsyncPolicy
    interval_ns: int
    at_ns: int
    durable: Future[None] | None = None

    def kept(self, synced_ns: int) -> bool:
        """Whether a power cut must not take it; the committer had its last turn at `synced_ns`."""
        if self.policy == "always":
            durable = self.durable
            return durable is not None and durable.done() and durable.exception() is None
        return self.policy == "interval" and self.at_ns + self.interval_ns <= synced_ns


@dataclass
class Snapshot:
    """The fates in all groups of a partition after one entry of its ledger."""

    fates: dict[str, Fates]
    told_ns: dict[str, tuple[int, int]]
    """Of each group: the ledger time that was told last, and how far it is ahead of the clock."""
    deaths: int
    promise: Promise | None = None
    returned: bool = False
    """Whether the call that wrote the entry has returned: then a kill cannot undo it."""

    def seen(self, start: int, end: int) -> dict[str, Fates]:
        """As it looks in a log that holds these offsets."""
        return {
            group: {o: fate for o, fate in fates.items() if start <= o < end}
            for group, fates in self.fates.items()
        }


@dataclass
class GroupModel:
    ahead_ns: int
    """Ledger time minus the clock's."""
    told_ns: int = 0
    """The ledger time that an entry told last: from there it goes on after a crash."""
    fates: Fates = field(default_factory=dict)

    def fate(self, offset: int) -> Fate:
        return self.fates.get(offset, READY)

    def placed(self, place: str) -> dict[int, Fate]:
        return {offset: fate for offset, fate in self.fates.items() if fate.place == place}


class PartitionModel:
    """One partition. Each method that changes fates is one entry of the ledger."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows: dict[int, Row] = {}
        self.stamps_us: dict[int, int] = {}
        self.start = 0
        self.end = 0
        self.ends: list[tuple[int, Promise]] = []
        self.groups: dict[str, GroupModel] = {}
        self.only_for: dict[int, str] = {}
        """Messages that were sent back to the group in which they failed."""
        self.deaths: list[Story] = []
        self.history = [Snapshot({}, {}, 0, returned=True)]

    # The log.

    def append(self, row: Row, wall_us: int) -> int:
        self.rows[self.end] = row
        self.stamps_us[self.end] = wall_us
        self.end += 1
        return self.end - 1

    def trim(self, start: int) -> None:
        """The log begins later: what is below is of no interest to anyone."""
        self.start = max(start, self.start)
        self.rows = {o: row for o, row in self.rows.items() if o >= start}
        self.only_for = {o: group for o, group in self.only_for.items() if o in self.rows}
        for group in self.groups.values():
            group.fates = {o: fate for o, fate in group.fates.items() if o >= start}

    def promised_end(self, synced_ns: int) -> int:
        return max((end for end, promise in self.ends if promise.kept(synced_ns)), default=0)

    # The ledger.

    def group(self, name: str, now_ns: int) -> GroupModel:
        """A group; who asks for one that is not there makes it."""
        if name not in self.groups:
            self.groups[name] = GroupModel(-now_ns, fates=self.withheld(name))
            self.note()
        return self.groups[name]

    def reserve(self, offset: int, name: str) -> None:
        """A message is for one group alone. No entry says so, but the message itself."""
        self.only_for[offset] = name
        for other, group in self.groups.items():
            if other not in (name, LETTERS_GROUP):
                group.fates[offset] = DONE

    def withheld(self, name: str, letters: Fates | None = None) -> Fates:
        """What a group passes over: letters that are gone, and what is for another group."""
        if name == LETTERS_GROUP:
            return {}
        others = [o for o, group in self.only_for.items() if group != name]
        return dict.fromkeys([*(self.gone() if letters is None else letters), *others], DONE)

    def gone(self) -> set[int]:
        """Letters that were redriven or purged."""
        return {*self.groups[LETTERS_GROUP].fates} if LETTERS_GROUP in self.groups else set()

    def expire(
        self, name: str, now_ns: int, settings: TopicSettings, gone_below: int = 0
    ) -> list[Story]:
        """Take back what was held too long; the dead letters that this makes.

        Retention may be quicker with what is below an offset: then no entry tells the time.
        """
        group = self.groups[name]
        at_ns = now_ns + group.ahead_ns
        overdue = {o: f for o, f in group.placed("leased").items() if f.deadline_ns <= at_ns}
        if not overdue:
            return []
        dead = [o for o, fate in overdue.items() if self.is_last(fate, settings)]
        for offset, fate in overdue.items():
            if offset in dead:
                self._bury(name, offset, "max_retries", LEASE_RAN_OUT)
            else:
                group.fates[offset] = fate._replace(
                    place="waiting", nonce=0, deadline_ns=at_ns, error=LEASE_RAN_OUT
                )
                if offset >= gone_below:
                    group.told_ns = at_ns
        self.note()
        return self.deaths[len(self.deaths) - len(dead) :]

    def settle(
        self,
        name: str,
        verb: str,
        held: Iterable[int],
        now_ns: int,
        settings: TopicSettings,
        *,
        delay_ns: int | None,
        visibility_ns: int,
        error: str,
    ) -> list[Story]:
        """Messages are acked, nacked, rejected or extended by who holds them."""
        group = self.groups[name]
        at_ns = now_ns + group.ahead_ns
        before = len(self.deaths)
        backoff = settings.policy().backoff
        for offset in held:
            fate = group.fates[offset]
            if verb == "ack":
                group.fates[offset] = DONE
            elif verb == "reject":
                self._bury(name, offset, "rejected", error)
            elif verb == "nack" and self.is_last(fate, settings):
                self._bury(name, offset, "max_retries", error)
            elif verb == "nack":
                wait_ns = delay_ns
                if wait_ns is None:
                    wait_ns = backoff.delay_ms(fate.deliveries) * 1_000_000
                group.fates[offset] = fate._replace(
                    place="waiting", nonce=0, deadline_ns=at_ns + wait_ns, error=error
                )
                group.told_ns = at_ns
            else:
                group.fates[offset] = fate._replace(deadline_ns=at_ns + visibility_ns)
                group.told_ns = at_ns
        self.note()
        return self.deaths[before:]

    def drop_expired(self, name: str, offset: int, *, letter: bool) -> None:
        """A message outlived its TTL. The caller notes it."""
        fate = self.groups[name].fate(offset)
        self.groups[name].fates[offset] = DONE
        if letter:
            times = (fate.first_us, fate.last_us) if fate.deliveries else (None, None)
            story = (fate.deliveries, *times, fate.consumer, fate.error)
            self.deaths.append(Story(self.number, offset, name, "expired", *story))

    def lease(
        self,
        name: str,
        offsets: Iterable[int],
        nonce: int,
        now_ns: int,
        wall_us: int,
        visibility_ns: int,
        consumer: str,
    ) -> None:
        """Messages are handed out. The caller notes it."""
        group = self.groups[name]
        group.told_ns = now_ns + group.ahead_ns
        for offset in offsets:
            fate = group.fate(offset)
            group.fates[offset] = Fate(
                "leased",
                fate.deliveries + 1,
                nonce,
                group.told_ns + visibility_ns,
                fate.first_us or wall_us,
                wall_us,
                consumer,
            )

    def finish(self, name: str, offsets: Iterable[int], now_ns: int) -> None:
        done = dict.fromkeys(offsets, DONE)
        self.group(name, now_ns).fates.update(done)
        if name == LETTERS_GROUP:
            for group in self.groups.values():
                group.fates.update(done)
        self.note()

    def seek(self, name: str, offset: int, now_ns: int) -> None:
        self.group(name, now_ns).fates = {
            **{o: DONE for o in self.rows if o < offset},
            **self.withheld(name),
        }
        self.note()

    def delete_group(self, name: str) -> None:
        del self.groups[name]
        self.note()

    def note(self, promise: Promise | None = None) -> None:
        """An entry is on its way to the ledger."""
        self.history.append(
            Snapshot(
                {name: dict(group.fates) for name, group in self.groups.items()},
                {name: (group.told_ns, group.ahead_ns) for name, group in self.groups.items()},
                len(self.deaths),
                promise,
            )
        )

    def returned(self, promise: Promise) -> None:
        """The call that is under way has returned: what it did is acknowledged."""
        for snapshot in self.history:
            if not snapshot.returned:
                snapshot.returned, snapshot.promise = True, promise

    def may_come_back(self, synced_ns: int, *, power_cut: bool) -> list[Snapshot]:
        """The states that a crash may leave, newest first."""
        possible: list[Snapshot] = []
        for snapshot in reversed(self.history):
            possible.append(snapshot)
            promise = snapshot.promise
            if snapshot.returned and (
                not power_cut or (promise is not None and promise.kept(synced_ns))
            ):
                break
        return possible

    def forget_history(self, synced_ns: int) -> None:
        """What cannot come back any more need not be kept."""
        kept = self.may_come_back(synced_ns, power_cut=True)
        self.history = kept[::-1]

    def is_last(self, fate: Fate, settings: TopicSettings) -> bool:
        return settings.max_retries is not None and fate.deliveries > settings.max_retries

    def undone(self, name: str) -> list[int]:
        group = self.groups[name]
        return [o for o in self.rows if group.fate(o).place != "done"]

    def _bury(self, name: str, offset: int, reason: str, error: str) -> None:
        fate = self.groups[name].fates[offset]
        self.groups[name].fates[offset] = DONE
        times = (fate.first_us, fate.last_us)
        story = (fate.deliveries, *times, fate.consumer, error)
        self.deaths.append(Story(self.number, offset, name, reason, *story))


def fates_of(partition: Partition) -> dict[str, Fates]:
    """What a partition of the broker itself knows of its messages."""
    found: dict[str, Fates] = {}
    for name, queue in partition.queues.items():
        state = queue.state
        offsets = range(partition.log.start, partition.log.end)
        fates: Fates = {offset: DONE for offset in offsets if offset in state.acked}
        histories = state.retries.histories
        for lease in state.leases:
            extended = lease.extended or {}
            for part in lease.parts_of(lease.held()):
                for offset in part.offsets:
                    require(offset not in fates, f"{name}: {offset} is held, and done or held")
                    known = histories.get(offset)
                    fates[offset] = Fate(
                        "leased",
                        part.delivery_count,
                        lease.nonce,
                        extended.get(offset, lease.deadline_ns),
                        known.first_us if known else lease.wall_us,
                        lease.wall_us,
                        lease.consumer,
                    )
        for offset in state.retries.waiting:
            require(offset not in fates, f"{name}: {offset} waits, and is held or done")
            known = histories[offset]
            fates[offset] = Fate(
                "waiting",
                known.deliveries,
                0,
                known.due_ns,
                known.first_us,
                known.last_us,
                known.consumer,
                known.error,
            )
        found[name] = fates
    return found
