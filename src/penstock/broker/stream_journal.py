"""The journal of stream groups, `groups/` in the data folder, entry by entry.

The first byte of an entry says what it is: an event of a group, a checkpoint with the state of all
groups, what a transaction committed, or a checkpoint with the number of the last transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from concurrent.futures import Future

from penstock.broker.journal import Journal
from penstock.group import events as group_events
from penstock.group.events import Event, OffsetsCommitted, StreamGroupState
from penstock.log.base import PartitionLog
from penstock.model.names import parse_stream_group, parse_topic, stream_group

_EVENT, _SNAPSHOT, _TRANSACTION, _SNAPSHOT_AFTER = b"\x00", b"\x01", b"\x02", b"\x03"
_NUMBER = struct.Struct("<Q")
_CHECKPOINT_BYTES = 4 << 20


class StreamJournal:
    """The caller holds the lock of the groups."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.transaction = 0
        """The number of the last transaction that is in the journal."""

    @property
    def log(self) -> PartitionLog:
        return self._journal.log

    @property
    def is_long(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._journal.bytes_since_checkpoint > _CHECKPOINT_BYTES

    def read(self) -> tuple[dict[str, StreamGroupState], bool]:
        """The groups at a start, and whether they were those of an older folder."""
        states: dict[str, StreamGroupState] = {}
        for entry in self._journal.entries():
            if entry[:1] == _SNAPSHOT:
                states = group_events.decode_snapshot(entry[1:])
            elif entry[:1] == _SNAPSHOT_AFTER:
                (self.transaction,) = _NUMBER.unpack_from(entry, 1)
                states = group_events.decode_snapshot(entry[1 + _NUMBER.size :])
            elif entry[:1] == _TRANSACTION:
                self.transaction, events = group_events.decode_transaction(entry[1:])
                states = group_events.fold(states, events)
            else:
                states = group_events.fold(states, [group_events.decode(entry[1:])])
        return _by_namespace(states)

    def append(self, event: Event) -> Future[None]:
        return self._journal.append(_EVENT + group_events.encode(event))

    def append_transaction(self, number: int, events: Sequence[OffsetsCommitted]) -> None:
        """What a transaction commits is one entry."""
        self._journal.append(_TRANSACTION + group_events.encode_transaction(number, events))
        self.transaction = number

    def checkpoint(self, states: dict[str, StreamGroupState]) -> None:
        number = _NUMBER.pack(self.transaction)
        self._journal.checkpoint(_SNAPSHOT_AFTER + number + group_events.encode_snapshot(states))

    def close(self) -> None:
        self._journal.close()


def _by_namespace(states: dict[str, StreamGroupState]) -> tuple[dict[str, StreamGroupState], bool]:
    """Groups of a folder in which a name meant one group for all namespaces: now it means one in
    each whose topics it has read. Whether there were such."""
    found: dict[str, StreamGroupState] = {}
    for name, state in states.items():
        namespace, group = parse_stream_group(name)
        places = {place: parse_topic(place.topic).namespace for place in state.offsets}
        for where in {*places.values()} or {namespace}:
            offsets = {p: state.offsets[p] for p, its in places.items() if its == where}
            found[stream_group(group, where)] = StreamGroupState(
                state.generations_reserved, offsets
            )
    return found, found.keys() != states.keys()
