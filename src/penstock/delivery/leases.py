"""Who holds which messages until when. A lease covers all that one receive handed out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from struct import Struct

import msgspec
import numpy as np
from pyroaring import BitMap64

from penstock.delivery.ledger import Part
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.delivery.timers import NEVER, TimerWheel

STALE_MIN = 4096
YOUNG_MAX = 1024


class Lease(msgspec.Struct, array_like=True, gc=False):
    """Messages in the hands of a consumer. Times are ledger time, but for `wall_us`."""

    nonce: int
    deadline_ns: int
    consumer: str
    wall_us: int  # when they were handed out
    parts: tuple[Part, ...]
    open: BitMap64 | None = None  # those not given back or done; None: all of the one part
    extended: dict[int, int] | None = None  # messages whose deadline is another one
    until_us: int = 0  # when the last of it ends by the wall clock; 0: nobody knows

    def held(self) -> Offsets:
        return self.parts[0].offsets if self.open is None else Offsets.of(self.open.copy())

    def those_held(self, offsets: Offsets) -> Offsets:
        if self.open is not None:
            return offsets.within(self.open)
        whole = self.parts[0].offsets
        return whole if offsets == whole else whole & offsets

    def overdue(self, now_ns: int) -> Offsets:
        """What is held although its time is up."""
        if not self.extended:
            return self.held() if self.deadline_ns <= now_ns else EMPTY
        late = BitMap64([o for o, deadline in self.extended.items() if deadline <= now_ns])
        if self.deadline_ns <= now_ns:
            late |= self.held().bitmap() - BitMap64(self.extended)
        return self.those_held(Offsets.of(late))

    def deadlines(self) -> Collection[int]:
        """When a look at it is due."""
        if self.extended is None:
            return (self.deadline_ns,)
        return {self.deadline_ns, *self.extended.values()}

    def parts_of(self, offsets: Offsets) -> list[Part]:
        """Its parts, cut down to some of the messages."""
        if len(self.parts) == 1:
            part = self.parts[0]
            return [Part(part.priority, offsets, part.delivery_count)]
        if offsets.count == 1:  # most acks are of one
            first = offsets.first
            found = next((part for part in self.parts if first in part.offsets), None)
            return [Part(found.priority, offsets, found.delivery_count)] if found else []
        cut = [(part, part.offsets & offsets) for part in self.parts]
        return [Part(part.priority, some, part.delivery_count) for part, some in cut if some.count]


class Leases:
    """All leases by nonce, and a timer for each.

    Most leases are settled soon, so the youngest are kept as they are, and only the first deadline
    of them all is known. There may be very many that are not: those get timers, and those on a
    single message are packed into 74 bytes, where the object and its numbers take 300.
    """

    def __init__(self) -> None:
        self.by_nonce: dict[int, Lease | bytes] = {}
        self._young: list[int] = []  # those without a timer, if they are still here
        self._young_deadline_ns: int = NEVER  # none of them ends before
        self._names: list[str] = []  # consumers, so that a packed lease can name its own
        self._consumers: dict[str, int] = {}
        self._timers = TimerWheel()
        self._overdue: dict[int, None] = {}  # timers that rang for leases which are still here

    def __len__(self) -> int:
        return len(self.by_nonce)

    def __contains__(self, nonce: int) -> bool:
        return nonce in self.by_nonce

    def __iter__(self) -> Iterator[Lease]:
        for nonce, lease in self.by_nonce.items():
            yield self._unpack(nonce, lease) if isinstance(lease, bytes) else lease

    def get(self, nonce: int) -> Lease | None:
        lease = self.by_nonce.get(nonce)
        return self._unpack(nonce, lease) if isinstance(lease, bytes) else lease

    def add(self, lease: Lease) -> None:
        """A new one."""
        nonce, by_nonce, young = lease.nonce, self.by_nonce, self._young
        if not by_nonce:  # all that were young are settled
            young.clear()
            self._young_deadline_ns = NEVER
        assert nonce not in by_nonce, "a nonce is used once"
        if len(lease.parts) > 1 and lease.open is None:
            lease.open = BitMap64()
            for part in lease.parts:
                part.offsets.add_to(lease.open)
        young.append(nonce)
        if lease.deadline_ns < self._young_deadline_ns:
            self._young_deadline_ns = lease.deadline_ns
        by_nonce[nonce] = lease
        if len(young) > YOUNG_MAX:
            self._grow_old()

    def restore(self, leases: Sequence[Lease]) -> None:
        """Those of a snapshot. There may be very many."""
        for lease in leases:
            self._put(lease)
        self._add_timers(leases)

    def take(self, lease: Lease, offsets: Offsets) -> Offsets:
        """Messages leave a lease that is here, and ends with the last of them; those that did."""
        still_open = lease.open
        if still_open is None:
            whole = lease.parts[0].offsets
            if offsets is whole or (whole & offsets).count == whole.count:
                del self.by_nonce[lease.nonce]
                return whole
            still_open = lease.open = whole.bitmap()
        left = offsets.leave(still_open)
        if not still_open:
            del self.by_nonce[lease.nonce]
        return left

    def extend(self, nonce: int, offsets: Offsets, deadline_ns: int, until_us: int = 0) -> None:
        """Another deadline for some messages of a lease, or, if EMPTY, for the whole of it."""
        lease = self.get(nonce)
        if lease is None:
            return
        if offsets.count:
            lease.extended = (lease.extended or {}) | dict.fromkeys(offsets, deadline_ns)
            lease.until_us = max(lease.until_us, until_us)
        else:
            lease.deadline_ns, lease.extended, lease.until_us = deadline_ns, None, until_us
        self._put(lease)
        self._timers.add(deadline_ns, nonce)

    def overdue(self, now_ns: int, limit: int) -> list[Lease]:
        """Leases with messages whose time is up. They come again until these are taken."""
        if now_ns >= self._young_deadline_ns:
            self._grow_old()
        if now_ns >= self._timers.next_deadline():
            self._overdue |= dict.fromkeys(self._timers.pop_due(now_ns)[1].tolist())
        found: list[Lease] = []
        gone: list[int] = []
        for nonce in self._overdue:
            lease = self.get(nonce)
            if lease is None or not lease.overdue(now_ns).count:
                gone.append(nonce)
                continue
            if len(found) == limit:
                break
            found.append(lease)
        for nonce in gone:  # settled, or extended and with a later timer
            del self._overdue[nonce]
        return found

    def next_deadline(self) -> int:
        """When a lease is next overdue; NEVER if none is. May be early: that does no harm."""
        if self._overdue:
            return 0
        if not self.by_nonce:
            return NEVER
        return min(self._young_deadline_ns, self._timers.next_deadline())

    def forget(self, offsets: Offsets) -> None:
        """Take messages out of whichever leases they are in."""
        for lease in list(self):
            gone = lease.those_held(offsets)
            if gone.count:
                self.take(lease, gone)

    def holders(self, offsets: Offsets) -> dict[int, Offsets]:
        """Which leases hold some messages. Looks at each lease."""
        found: dict[int, Offsets] = {}
        left = offsets.count
        for nonce, lease in self.by_nonce.items():
            if isinstance(lease, bytes):
                if _FIRST.unpack_from(lease)[0] not in offsets:
                    continue
                lease = self._unpack(nonce, lease)
            held = lease.those_held(offsets)
            if held.count:
                found[nonce] = held
                left -= held.count
                if not left:
                    break
        return found

    def _grow_old(self) -> None:
        """Give timers to the young. Who was packed or extended meanwhile may have one: a timer too
        many does no harm."""
        found = [self.get(nonce) for nonce in self._young]
        here = [lease for lease in found if lease is not None]
        self._add_timers(here)
        for lease in here:
            self._put(lease)
        self._young.clear()
        self._young_deadline_ns = NEVER
        if self._timers.count > 2 * len(self.by_nonce) + STALE_MIN:
            self._rebuild_timers()

    def _put(self, lease: Lease) -> None:
        part = lease.parts[0]
        if len(lease.parts) > 1 or part.offsets.count > 1 or lease.extended:
            self.by_nonce[lease.nonce] = lease
            return
        number = self._consumers.get(lease.consumer)
        if number is None:
            number = self._number(lease.consumer)
        self.by_nonce[lease.nonce] = _SINGLE.pack(
            part.offsets.first,
            lease.deadline_ns,
            lease.wall_us,
            part.delivery_count,
            number,
            part.priority,
            lease.until_us,
        )

    def _unpack(self, nonce: int, packed: bytes) -> Lease:
        offset, deadline_ns, wall_us, delivery_count, consumer, priority, until_us = _SINGLE.unpack(
            packed
        )
        part, name = Part(priority, Offsets(offset, 1), delivery_count), self._names[consumer]
        return Lease(nonce, deadline_ns, name, wall_us, (part,), until_us=until_us)

    def _rebuild_timers(self) -> None:
        """Timers of leases that were settled in time are in the way; most leases are."""
        self._timers.clear()
        self._add_timers(list(self))

    def _add_timers(self, leases: Sequence[Lease]) -> None:
        timers = [(due_ns, lease.nonce) for lease in leases for due_ns in lease.deadlines()]
        if timers:
            self._timers.add_many(*np.array(timers, np.int64).T)

    def _number(self, consumer: str) -> int:
        if len(self._names) > 2 * len(self.by_nonce) + STALE_MIN:
            # Consumers may have a new name for each receive: forget those that hold nothing.
            leases = list(self)
            self._names, self._consumers = [], {}
            for lease in leases:
                self._put(lease)
        number = self._consumers[consumer] = len(self._names)
        self._names.append(consumer)
        return number


# offset, deadline_ns, wall_us; delivery_count, number of the consumer; priority; until_us
_SINGLE = Struct("<qqqIIBq")
_FIRST = Struct("<q")
