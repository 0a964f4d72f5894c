"""What a broker knows of its schedules: the events of their journal, and the fold of these.

A fire is committed by its `FireCommitted`, before its message is published. `FirePublished` tells
where the message is, and `FiresConfirmed` that it lasts: what is committed and not confirmed is
published again at the next start, under the same id of a call, which stores it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from penstock.schedule.calendar import Calendar
from penstock.schedule.definition import FireKind, ScheduleDefinition

FIRES_KEPT = 20


class ScheduleName(msgspec.Struct, frozen=True, array_like=True, order=True):
    namespace: str
    name: str


class Fire(msgspec.Struct, array_like=True, kw_only=True):
    """One fire. `number` counts the fires of a schedule from 1."""

    number: int
    scheduled_us: int
    """The moment that it was for."""
    made_us: int
    kind: FireKind
    partition: int
    """Where the message goes; -1: nowhere, see `error`."""
    error: str = ""
    """Why there is no message, and will be none."""
    published: bool = False
    offset: int = -1
    """Where the message is; -1: nobody knows."""
    ulid: bytes = b""


class ScheduleState(msgspec.Struct, array_like=True, kw_only=True):
    """All that is known of a schedule. New fields go to the end and need a default."""

    id: int
    """The caller whose calls its publishes are: `penstock.delivery.callers`."""
    name: ScheduleName
    definition: ScheduleDefinition
    created_us: int
    anchor_us: int
    """From where an interval without a start counts."""
    cursor_us: int
    """All fires up to here are decided."""
    paused: bool = False
    fired: int = 0
    """The number of the last fire."""
    confirmed: int = 0
    """The messages of all fires up to this number last."""
    skipped: int = 0
    """Fires that were not made, because the message of the last one was not settled."""
    buffered_us: int | None = None
    fires: list[Fire] = []
    """The last ones, oldest first, and all that are not confirmed."""
    trouble: str = ""
    """Why the last fire is not published yet; it is tried again."""

    @property
    def calendar(self) -> Calendar:
        return Calendar(self.definition.timing, self.anchor_us, self.id)

    @property
    def next_us(self) -> int | None:
        """The next fire, whatever became of earlier ones."""
        return None if self.paused else self.calendar.next_after(self.cursor_us)

    def unconfirmed(self) -> Iterator[Fire]:
        """Fires whose messages may be missing after a crash, oldest first."""
        return (fire for fire in self.fires if fire.number > self.confirmed)

    def fire(self, number: int) -> Fire | None:
        return next((fire for fire in reversed(self.fires) if fire.number == number), None)


class SchedulePut(msgspec.Struct, array_like=True, tag=0):
    """A schedule was made or changed, or a checkpoint says how it stands."""

    state: ScheduleState


class ScheduleDeleted(msgspec.Struct, array_like=True, tag=1):
    id: int


class FiresDecided(msgspec.Struct, array_like=True, tag=2):
    """Fires up to the cursor are decided."""

    id: int
    cursor_us: int
    skipped: int = 0
    buffered_us: int | None = None


class FireCommitted(msgspec.Struct, array_like=True, tag=3):
    id: int
    fire: Fire


class FirePublished(msgspec.Struct, array_like=True, tag=4):
    """The message of a fire is stored; -1 as its offset: it is, and nobody knows where."""

    id: int
    number: int
    offset: int
    ulid: bytes


class FireFailed(msgspec.Struct, array_like=True, tag=5):
    """There will be no message of a fire."""

    id: int
    number: int
    error: str


class FiresConfirmed(msgspec.Struct, array_like=True, tag=6):
    id: int
    number: int


ScheduleEvent: TypeAlias = (
    SchedulePut
    | ScheduleDeleted
    | FiresDecided
    | FireCommitted
    | FirePublished
    | FireFailed
    | FiresConfirmed
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[ScheduleEvent]] = msgspec.msgpack.Decoder(
    list[ScheduleEvent]
)


def encode_events(events: Iterable[ScheduleEvent]) -> bytes:
    """As one entry of the journal, which is there as a whole or not at all."""
    return _encoder.encode(list(events))


class ScheduleStates:
    """The fold of the events so far."""

    def __init__(self, entries: Iterable[bytes] = ()) -> None:
        self.by_id: dict[int, ScheduleState] = {}
        self.by_name: dict[ScheduleName, ScheduleState] = {}
        self.payload_bytes = 0
        """Of the messages of all schedules."""
        for entry in entries:
            self.apply(_decoder.decode(entry))

    def apply(self, events: Iterable[ScheduleEvent]) -> None:
        for event in events:
            if isinstance(event, SchedulePut):
                self.payload_bytes += event.state.definition.payload_bytes
                self._forget_payload(event.state.id)
                self.by_id[event.state.id] = self.by_name[event.state.name] = event.state
                continue
            state = self.by_id.get(event.id)
            if state is not None:
                self._apply(state, event)

    def _apply(self, state: ScheduleState, event: ScheduleEvent) -> None:
        match event:
            case ScheduleDeleted():
                self._forget_payload(state.id)
                del self.by_id[state.id]
                del self.by_name[state.name]
            case FiresDecided():
                state.cursor_us = event.cursor_us
                state.skipped += event.skipped
                state.buffered_us = event.buffered_us
            case FireCommitted():
                state.fired = event.fire.number
                state.fires.append(event.fire)
                _forget_old(state)
            case FirePublished() | FireFailed():
                fire = state.fire(event.number)
                if fire is not None and isinstance(event, FirePublished):
                    fire.published, fire.offset, fire.ulid = True, event.offset, event.ulid
                elif fire is not None and isinstance(event, FireFailed):
                    fire.error = event.error
            case FiresConfirmed():
                state.confirmed = max(state.confirmed, event.number)
                _forget_old(state)

    def _forget_payload(self, id_: int) -> None:
        known = self.by_id.get(id_)
        if known is not None:
            self.payload_bytes -= known.definition.payload_bytes


def _forget_old(state: ScheduleState) -> None:
    old = len(state.fires) - FIRES_KEPT
    while old > 0 and state.fires[0].number <= state.confirmed:
        del state.fires[0]
        old -= 1
