"""Leases that a transaction holds while its block runs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from penstock.client.leases import HeldLease
from penstock.client.link import Link
from penstock.client.waiting import Steps, run, run_async
from penstock.errors import PenstockError
from penstock.model.calls import DescribeTopic
from penstock.model.deliveries import Extend, LeasePart
from penstock.model.names import TopicName

_logger = logging.getLogger("penstock.client")

_FIRST_LOOK_S = 0.1
"""Most blocks are over by then, and cost nothing."""
_IDLE_S = 10.0


class KeptLeases:
    """Those of one transaction. They are extended when a third of their time is over."""

    def __init__(self, link: Link, leases: Sequence[tuple[HeldLease, int | None]]) -> None:
        """`leases` may become more."""
        self._link = link
        self._leases = leases
        self._visibility_s: dict[TopicName, float] = {}
        self._extended: dict[tuple[HeldLease, int | None], float] = {}
        self.due = time.monotonic() + _FIRST_LOOK_S

    def extend(self) -> Steps[None]:
        """Extend what is due; when to come back is in `due`."""
        now, next_due = time.monotonic(), time.monotonic() + _IDLE_S
        for key in list(self._leases):
            lease, offset = key
            try:
                visibility_s = yield from self._visibility(lease)
                due = self._extended.get(key, lease.since) + visibility_s / 3
                if due <= now:
                    self._extended[key] = now
                    due = now + visibility_s / 3
                    yield from self._extend(lease, offset, visibility_s)
            except PenstockError as exc:  # the commit will tell
                _logger.warning("a lease of a transaction is not extended: %s", exc)
                due = now + 1.0
            next_due = min(next_due, due)
        self.due = next_due

    def _extend(self, lease: HeldLease, offset: int | None, visibility_s: float) -> Steps[None]:
        offsets = None if offset is None else [offset]
        part = LeasePart(partition=lease.partition, lease=lease.nonce, offsets=offsets)
        named = Extend(leases=[part], visibility=visibility_s)
        yield from lease.link.settle("extend", lease.topic, lease.group, named)

    def _visibility(self, lease: HeldLease) -> Steps[float]:
        """How long the lease was taken for."""
        if lease.visibility_s is not None:
            return lease.visibility_s
        known = self._visibility_s.get(lease.topic)
        if known is None:
            name = lease.topic
            call = DescribeTopic(namespace=name.namespace, topic=name.topic)
            settings = (yield from self._link.ask(call)).settings
            known = self._visibility_s[name] = settings.visibility_ms / 1000
        return known


class LeaseThread:
    """Keeps the leases of all transactions of a blocking client. The thread begins with the first
    that needs it, and ends when there is none for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: set[KeptLeases] = set()
        self._is_running = False

    def add(self, kept: KeptLeases) -> None:
        with self._lock:
            self._kept.add(kept)
            if not self._is_running:
                self._is_running = True
                name = "penstock-transaction-leases"
                threading.Thread(target=self._run, name=name, daemon=True).start()

    def remove(self, kept: KeptLeases) -> None:
        with self._lock:
            self._kept.discard(kept)

    def _run(self) -> None:
        """It is not woken, which would cost each transaction more than all else: it looks."""
        used = time.monotonic()
        while True:
            time.sleep(_FIRST_LOOK_S)
            now = time.monotonic()
            with self._lock:
                if self._kept:
                    used = now
                elif now - used > _IDLE_S:
                    self._is_running = False
                    return
                due = [each for each in self._kept if each.due <= now]
            for each in due:
                with suppress(Exception):  # a client that is closed; the commit will tell
                    run(each.extend())


async def keep_on_loop(kept: KeptLeases) -> None:
    """The same as a task, for ever."""
    while True:
        await asyncio.sleep(max(kept.due - time.monotonic(), 0.001))
        await run_async(kept.extend())
