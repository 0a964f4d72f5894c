"""Rate limits: how many requests each client may make.

A token bucket for each client, kept as the one moment at which it would be full again. Memory is
bounded: buckets that are full are forgotten, and while all of them are in use clients that are new
share one bucket, so that whoever comes from a thousand addresses gets no thousand shares.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput

CLIENTS_MAX = 10_000


class Limiter:
    """So many requests a second for each client, and so many at once after a pause."""

    def __init__(
        self,
        per_second: float,
        burst: int | None = None,
        *,
        clock: Clock | None = None,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        """`burst` is by default what two seconds bring."""
        if not 0 < per_second < 1e9:
            raise InvalidInput(f"per_second is {per_second!r}; it must be more than 0")
        burst = max(1, round(2 * per_second)) if burst is None else burst
        if burst < 1:
            raise InvalidInput(f"burst is {burst!r}; it must be at least 1")
        self._token_ns = 1e9 / per_second
        self._burst_ns = burst * self._token_ns
        self._clock = clock or SystemClock()
        self._clients_max = clients_max
        self._full_at: OrderedDict[str, float] = OrderedDict()  # the longest unheard of first
        self._newcomers_full_at = 0.0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many clients have a bucket of their own."""
        return len(self._full_at)

    def take(self, who: str, cost: float = 1) -> float | None:
        """None if the client may go on; otherwise the seconds after which it may try again."""
        now = self._clock.monotonic_ns()
        with self._lock:
            owned = who in self._full_at or self._make_room(now)
            full_at = self._full_at.get(who, now) if owned else self._newcomers_full_at
            # What costs more than a whole bucket must go through some time: it takes all of it.
            after = max(full_at, now) + min(cost * self._token_ns, self._burst_ns)
            refused = after - now > self._burst_ns + 1  # a nanosecond for what floats round off
            if not refused:
                full_at = after
            if owned:
                self._full_at[who] = full_at
                self._full_at.move_to_end(who)
            else:
                self._newcomers_full_at = full_at
        return (after - now - self._burst_ns) / 1e9 if refused else None

    def _make_room(self, now: int) -> bool:
        """Whether there is room for one more bucket."""
        if len(self._full_at) < self._clients_max:
            return True
        who, full_at = next(iter(self._full_at.items()))
        if full_at > now:
            return False
        del self._full_at[who]
        return True
