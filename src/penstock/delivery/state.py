"""The state of one group on one partition: the fold of its ledger.

`apply` is what changes it, in a live broker and in a recovery alike; beside it only `withhold`, for
what other logs say. Replaying the
ledger from the start, or from a snapshot on, gives the same state, except for read-ahead and whose
turn it is, which nobody is promised.

A ledger that lost an entry to a damaged disk still folds: an ack counts even if its lease is
unknown, and anything else about an unknown lease is void, so that its messages come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
from pyroaring import BitMap64

from penstock.delivery.acked import AckedSet
from penstock.delivery.fairness import Fairness
from penstock.delivery.keys import KeyLocks
from penstock.delivery.lanes import LANES, Cursors, Lanes
from penstock.delivery.leases import Lease, Leases
from penstock.delivery.ledger import (
    Acked,
    Dropped,
    Event,
    Expired,
    Extended,
    Leased,
    Nacked,
    Part,
    Passed,
    Rejected,
    Sought,
    TimePassed,
    Trimmed,
    Truncated,
)
from penstock.delivery.offsets import Offsets, decode_hook, encode_hook
from penstock.delivery.retries import DeliveryHistory, Retries
from penstock.errors import InvalidInput

LEASE_RAN_OUT = "the lease ran out"


class GroupState:
    """Every message is in one of four places: ahead of its lane's cursor, in a lease, waiting for
    a retry, or done. `outstanding` are those of the second and third."""

    def __init__(self, start: int = 0) -> None:
        """A new group begins at an offset."""
        self.time_ns = 0  # ledger time of the last event that tells
        self.jumped_us = 0  # by how much the wall clock was set, in all, while a broker was up
        self.passed = start  # below it no message is ahead of any cursor
        self.lanes = Lanes((start, start, start, start, start))
        self.acked = AckedSet(start)
        self.outstanding = BitMap64()
        self.leases = Leases()
        self.retries = Retries()
        self.keys = KeyLocks()
        self.fair: Fairness | None = None
        """Set where tenants take turns; it is no part of what is stored."""
        self.in_flight_of = [0] * LANES

    @property
    def committed(self) -> int:
        """Below it every message is done."""
        return self.acked.floor

    @property
    def in_flight(self) -> int:
        return sum(self.in_flight_of)

    @property
    def reach(self) -> int:
        """One past the last offset that this state knows anything about."""
        known = [self.passed, self.acked.floor, *(lane.scanned for lane in self.lanes)]
        for bits in (self.acked.above, self.outstanding):
            if bits:
                known.append(bits.max() + 1)
        return max(known)

    def unseen(self, offsets: Offsets) -> Offsets:
        """Without those that were handed out or done: what may be handed out as new."""
        done = self.acked.among(offsets)
        if done.count:
            offsets -= done
        if self.outstanding and offsets.count:
            out = offsets.within(self.outstanding)
            if out.count:
                offsets -= out
        return offsets

    def firsts(self, part: Part, wall_us: int) -> dict[int, Offsets]:
        """Messages of a lease of `wall_us`, by when they were first handed out."""
        if part.delivery_count == 1:
            return {wall_us: part.offsets}
        return self.retries.firsts(part.offsets, wall_us)

    def apply(self, events: Iterable[Event]) -> None:
        """Believe the events of one ledger entry, once it is stored."""
        for event in events:
            _APPLY[type(event)](self, event)
        # The floor is whatever comes first of all that is still to be done.
        floor, acked, outstanding = self.passed, self.acked, self.outstanding
        if outstanding and (first := outstanding.min()) < floor:
            floor = first
        if floor > acked.floor or acked.above:
            acked.advance(floor)

    def withhold(self, offsets: Offsets) -> None:
        """Messages are not for this group, wherever they are: they are done with.

        A lane may have them in its read-ahead; then go on from a snapshot.
        """
        self._forget(offsets)
        self.acked.add(offsets)
        self.apply(())  # the floor may rise

    def _leased(self, event: Leased) -> None:
        at_ns, parts = event.at_ns, event.parts
        if at_ns > self.time_ns:
            self.time_ns = at_ns
        for part in parts:
            offsets = part.offsets
            self.in_flight_of[part.priority] += offsets.count
            if offsets.count == 1:  # most often, and quicker
                self.outstanding.add(offsets.first)
            else:
                offsets.add_to(self.outstanding)
            if self.fair is not None:
                self.fair.leased(offsets)
            if part.delivery_count > 1:
                self.retries.take(offsets)
            else:
                self.lanes.lanes[part.priority].take(offsets, part.cursor)
        if event.keys:
            fresh = [part for part in parts if part.delivery_count == 1]
            for part in fresh:
                self.keys.left_lane(part.priority, part.offsets)
            hashes = np.frombuffer(event.keys, "<u8").tolist()
            self.keys.lock([offset for part in fresh for offset in part.offsets], hashes)
        deadline_ns = at_ns + event.visibility_ns
        consumer, wall_us, until_us = event.consumer, event.wall_us, event.until_us
        lease = Lease(event.nonce, deadline_ns, consumer, wall_us, parts, until_us=until_us)
        self.leases.add(lease)
        if event.passed > self.passed:
            self.passed = event.passed

    def _acked(self, event: Acked | Rejected) -> None:
        lease, offsets = self.leases.get(event.nonce), event.offsets
        retried = lease is None
        if lease is not None:
            left, parts = self.leases.take(lease, offsets), lease.parts
            if len(parts) == 1:
                self.in_flight_of[parts[0].priority] -= left.count
                retried = parts[0].delivery_count > 1
            else:
                for part in lease.parts_of(left):
                    self.in_flight_of[part.priority] -= part.offsets.count
                    retried |= part.delivery_count > 1
        self._done(offsets, retried)

    def _given_back(self, event: Nacked | Expired) -> None:
        self._keep_time(event.at_ns)
        lease = self.leases.get(event.nonce)
        if lease is None:
            return
        error = event.error if isinstance(event, Nacked) else LEASE_RAN_OUT
        for part in lease.parts_of(self.leases.take(lease, event.offsets)):
            if self.fair is not None:
                self.fair.given_back(part.offsets)
            self.in_flight_of[part.priority] -= part.offsets.count
            for first_us, offsets in self.firsts(part, lease.wall_us).items():
                # Only where an entry was lost can a message be acked and still be in a lease.
                offsets -= self.acked.among(offsets)
                history = DeliveryHistory(
                    priority=part.priority,
                    deliveries=part.delivery_count,
                    first_us=first_us,
                    last_us=lease.wall_us,
                    consumer=lease.consumer,
                    error=error,
                    due_ns=event.at_ns + event.delay_ns,
                )
                if offsets.count:
                    self.retries.add(offsets, history)

    def _extended(self, event: Extended) -> None:
        self._keep_time(event.at_ns)
        deadline_ns = event.at_ns + event.visibility_ns
        self.leases.extend(event.nonce, event.offsets, deadline_ns, event.until_us)

    def _dropped(self, event: Dropped) -> None:
        for part in event.parts:
            if not part.delivery_count:
                self.lanes.lanes[part.priority].take(part.offsets, part.cursor)
                self.keys.left_lane(part.priority, part.offsets)
            self._done(part.offsets, retried=part.delivery_count > 0)
        self.passed = max(self.passed, event.passed)

    def _passed(self, event: Passed) -> None:
        self.passed = max(self.passed, event.offset)

    def _trimmed(self, event: Trimmed) -> None:
        self._forget(Offsets.run(0, event.before))
        self.lanes.skip_to(event.before)
        self.passed = max(self.passed, event.before)

    def _truncated(self, event: Truncated) -> None:
        self._forget(Offsets.run(event.end, self.reach))
        self.lanes.back_to(event.end)
        self.acked.forget_from(event.end)
        self.passed = min(self.passed, event.end)

    def _sought(self, event: Sought) -> None:
        self._forget(Offsets.run(0, self.reach))
        self.lanes.back_to(0)
        self.lanes.skip_to(event.offset)
        self.acked.forget_from(event.offset)
        self.passed = event.offset

    def _time_passed(self, event: TimePassed) -> None:
        self._keep_time(event.at_ns)
        self.jumped_us = event.jumped_us

    def _keep_time(self, at_ns: int) -> None:
        if at_ns > self.time_ns:
            self.time_ns = at_ns

    def _done(self, offsets: Offsets, retried: bool) -> None:
        offsets.remove_from(self.outstanding)
        self.acked.add(offsets)
        if retried and self.retries.histories:
            self.retries.forget(offsets)
        if self.keys.key_of:
            self.keys.release(offsets)
        if self.fair is not None:
            self.fair.done(offsets)

    def _forget(self, offsets: Offsets) -> None:
        """Neither held nor waiting any more, nor done."""
        self.keys.forget_ahead()
        if self.fair is not None:
            self.fair.forget_ahead()
        gone = offsets.within(self.outstanding)
        if gone.count:
            if self.fair is not None:
                self.fair.done(gone)
            self.leases.forget(gone)
            self.retries.forget(gone)
            self.keys.release(gone)
            gone.remove_from(self.outstanding)
            self._count_in_flight(self.leases)

    def _count_in_flight(self, leases: Iterable[Lease]) -> None:
        self.in_flight_of = [0] * LANES
        for lease in leases:
            for part in lease.parts_of(lease.held()):
                self.in_flight_of[part.priority] += part.offsets.count

    def snapshot(self) -> bytes:
        """The whole state. With the entries that come after it, it stands for the ledger."""
        keyed, keys = self.keys.columns()
        snapshot = _Snapshot(
            time_ns=self.time_ns,
            passed=self.passed,
            cursors=self.lanes.cursors,
            floor=self.acked.floor,
            acked=self.acked.above,
            leases=list(self.leases),
            histories=self.retries.by_history(self.retries.histories),
            waiting=self.retries.waiting,
            keyed=keyed.tobytes(),
            keys=keys.tobytes(),
            jumped_us=self.jumped_us,
        )
        return _encoder.encode(snapshot)

    @classmethod
    def restore(cls, data: bytes | memoryview) -> GroupState:
        try:
            snapshot = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise InvalidInput(f"not a snapshot of a group's deliveries: {exc}") from exc
        state = cls()
        state.time_ns = snapshot.time_ns
        state.jumped_us = snapshot.jumped_us
        state.passed = snapshot.passed
        state.lanes = Lanes(snapshot.cursors)
        state.acked = AckedSet(snapshot.floor, snapshot.acked)
        state.leases.restore(snapshot.leases)
        for lease in snapshot.leases:
            lease.held().add_to(state.outstanding)
        state._count_in_flight(snapshot.leases)
        for history, offsets in snapshot.histories:
            state.retries.add(offsets, history)
        state.retries.take(BitMap64(state.retries.histories) - snapshot.waiting)
        state.outstanding |= snapshot.waiting
        keyed = np.frombuffer(snapshot.keyed, "<i8")
        state.keys.lock(keyed.tolist(), np.frombuffer(snapshot.keys, "<u8").tolist())
        return state


_APPLY: dict[type, Callable[[GroupState, Any], None]] = {
    Leased: GroupState._leased,
    Acked: GroupState._acked,
    Rejected: GroupState._acked,
    Nacked: GroupState._given_back,
    Expired: GroupState._given_back,
    Extended: GroupState._extended,
    Dropped: GroupState._dropped,
    Passed: GroupState._passed,
    Trimmed: GroupState._trimmed,
    Sought: GroupState._sought,
    Truncated: GroupState._truncated,
    TimePassed: GroupState._time_passed,
}


class _Snapshot(msgspec.Struct, array_like=True, tag="deliveries"):
    """Stored like an event: new fields go to the end and need a default."""

    time_ns: int
    passed: int
    cursors: Cursors
    floor: int
    acked: BitMap64
    leases: list[Lease]
    histories: list[tuple[DeliveryHistory, Offsets]]
    waiting: BitMap64  # those with a history that are not in flight
    keyed: bytes  # int64: messages that lock a key
    keys: bytes  # uint64: the hashes of those keys
    jumped_us: int = 0


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_decoder = msgspec.msgpack.Decoder(_Snapshot, dec_hook=decode_hook)
