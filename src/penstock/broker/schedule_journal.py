"""The journal of schedules, `schedules/` in the data folder. It is made with the first schedule."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from penstock.broker.journal import Journal, LazyJournal
from penstock.errors import DiskFull
from penstock.schedule.state import (
    ScheduleEvent,
    SchedulePut,
    ScheduleState,
    ScheduleStates,
    encode_events,
)

_logger = logging.getLogger("penstock.broker")

_CHECKPOINT_BYTES = 1 << 20
_ENTRY_BYTES = 4 << 20


class ScheduleJournal:
    """What is stored here is believed. The caller holds a lock."""

    def __init__(self, open_journal: Callable[[bool], Journal | None]) -> None:
        self._journal = LazyJournal(open_journal)
        self._checkpoint_bytes = 0
        self.states = ScheduleStates(self._journal.entries())

    def store(self, events: Sequence[ScheduleEvent], *, durable: bool = False) -> None:
        """Append events, all of them or none. `durable`: before this returns, and so before what
        is appended anywhere afterwards."""
        if not events:
            return
        journal = self._journal.made()
        journal.append(encode_events(events))
        if durable:
            journal.log.ordered()
        self.states.apply(events)
        if journal.bytes_since_checkpoint > max(_CHECKPOINT_BYTES, self._checkpoint_bytes):
            self._checkpoint(journal)

    def close(self) -> None:
        self._journal.close()

    def _checkpoint(self, journal: Journal) -> None:
        """Write down how each schedule stands, in entries of a few megabytes. Each says all about
        its schedules, so that a crash between two of them does no harm."""
        entries = [encode_events(map(SchedulePut, some)) for some in self._portions()]
        try:
            marked = journal.mark(entries[0])
            for entry in entries[1:]:
                journal.append(entry)
            journal.drop_before(marked)
        except DiskFull as exc:
            _logger.warning("no checkpoint of the schedules: %s", exc)
        self._checkpoint_bytes = sum(map(len, entries))
        journal.bytes_since_checkpoint = 0

    def _portions(self) -> list[list[ScheduleState]]:
        portions: list[list[ScheduleState]] = [[]]
        left = _ENTRY_BYTES
        for state in self.states.by_id.values():
            if left <= 0:
                portions.append([])
                left = _ENTRY_BYTES
            portions[-1].append(state)
            left -= state.definition.payload_bytes + 2000
        return portions
