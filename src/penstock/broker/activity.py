"""Which topics a start has to look at, so that it need not open them all.

A topic is opened when it is used. What it has to do by itself, without anybody using it, has to
happen all the same: delayed messages fall due, leases run out, messages grow too old. So a topic is
noted here as active before it is opened, and at rest when it was closed in order and nothing is
left to do before a certain time. A start opens those that are active, since a crash may have left
anything in them, and the others when they are used, or at that time.

Nothing depends on this but when a topic is opened: all that a crash left is put in order then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import msgspec

from penstock.broker.journal import Journal
from penstock.model.names import TopicName

_CHECKPOINT_BYTES = 1 << 20


class Rest(msgspec.Struct, frozen=True, array_like=True):
    """When a topic has something to do again, by the wall clock; None: never by itself."""

    delay_due_us: int | None = None
    retention_due_us: int | None = None


class _Opened(msgspec.Struct, frozen=True, array_like=True, tag=0):
    name: TopicName


class _Rested(msgspec.Struct, frozen=True, array_like=True, tag=1):
    name: TopicName
    rest: Rest


class _Deleted(msgspec.Struct, frozen=True, array_like=True, tag=2):
    name: TopicName


class _Snapshot(msgspec.Struct, frozen=True, array_like=True, tag=3):
    active: list[TopicName]
    resting: list[_Rested]


_Entry = _Opened | _Rested | _Deleted | _Snapshot
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Entry] = msgspec.msgpack.Decoder(_Entry)


class Activity:
    """The fold of a journal. Any thread may call anything."""

    def __init__(self, journal: Journal, topics: Iterable[TopicName]) -> None:
        """`topics`: all that there are. A folder from before this was kept says nothing of them."""
        self._journal = journal
        self._lock = threading.Lock()
        self._active: set[TopicName] = set()
        self._resting: dict[TopicName, Rest] = {}
        known = set(topics)
        is_new = True
        for data in journal.entries():
            is_new = False
            self._apply(_decoder.decode(data))
        if is_new:
            self._active = known
            self._checkpoint()
            journal.log.sync()
        self._active &= known
        self._resting = {name: rest for name, rest in self._resting.items() if name in known}

    def active(self) -> list[TopicName]:
        """Topics that were not closed in order."""
        with self._lock:
            return sorted(self._active)

    def is_active(self, name: TopicName) -> bool:
        """Whether a topic was not closed in order."""
        with self._lock:
            return name in self._active

    def resting(self) -> dict[TopicName, Rest]:
        """Topics that were, and what they have to do."""
        with self._lock:
            return dict(self._resting)

    def opened(self, name: TopicName) -> None:
        """Note durably that a topic is about to be opened, before it is."""
        with self._lock:
            if name not in self._active:
                self._store(_Opened(name))
                self._journal.log.ordered()

    def rested(self, name: TopicName, rest: Rest) -> None:
        """Note that a topic was closed in order."""
        with self._lock:
            self._store(_Rested(name, rest))

    def deleted(self, name: TopicName) -> None:
        with self._lock:
            if name in self._active or name in self._resting:
                self._store(_Deleted(name))

    def close(self) -> None:
        self._journal.close()

    # The lock is held.

    def _store(self, entry: _Entry) -> None:
        self._journal.append(_encoder.encode(entry))
        self._apply(entry)
        if self._journal.bytes_since_checkpoint > _CHECKPOINT_BYTES:
            self._checkpoint()

    def _checkpoint(self) -> None:
        resting = [_Rested(name, rest) for name, rest in self._resting.items()]
        snapshot = _Snapshot(sorted(self._active), resting)
        self._journal.checkpoint(_encoder.encode(snapshot))

    def _apply(self, entry: _Entry) -> None:
        match entry:
            case _Opened(name=name):
                self._active.add(name)
                self._resting.pop(name, None)
            case _Rested(name=name, rest=rest):
                self._active.discard(name)
                self._resting.pop(name, None)
                if rest != Rest():
                    self._resting[name] = rest
            case _Deleted(name=name):
                self._active.discard(name)
                self._resting.pop(name, None)
            case _Snapshot():
                self._active = set(entry.active)
                self._resting = {each.name: each.rest for each in entry.resting}
