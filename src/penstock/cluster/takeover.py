"""How a node becomes the owner of a shard: its term goes into the stream, and it reads up to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

from penstock.cluster.records import VERSION, Draft, RecordKind, decode, encode
from penstock.cluster.replica import Replica
from penstock.cluster.writer import ShardWriter
from penstock.errors import CacheDamaged, ShardDamaged, ShardLost

_logger = logging.getLogger("penstock.cluster")

_ATTEMPTS = 50


class ShardStream(Protocol):
    """The stream of a shard, for who takes it over or follows it. Calls wait for the network."""

    shard: int
    name: str
    """Which one it is: another one after it was deleted and made anew."""
    record_bytes: int
    """How long a record may be, about."""

    def last_seq(self) -> int:
        """Of the last record."""
        ...

    def last_term(self) -> bytes | None:
        """The last term record."""
        ...

    def begin_term(self, data: bytes, last_seq: int) -> int | None:
        """Store a term record behind this one; its number, or None if another record is there."""
        ...

    def next_of(self, log: int, seq: int) -> tuple[int, bytes] | None:
        """The first record with frames of a log at or behind a number; None if there is none."""
        ...

    def delete(self, seq: int) -> None:
        """Delete one record; one that is not there is no error."""
        ...

    def purge(self, log: int, before_seq: int) -> None:
        """Drop all records with frames of a log that lie before one."""
        ...

    def read(self, first_seq: int, last_seq: int) -> Iterator[tuple[int, bytes]]:
        """The records that are there from one number up to another, that one too."""
        ...


def take_over(
    stream: ShardStream, replica: Replica, node: str, version: int = VERSION
) -> ShardWriter:
    """Own a shard. The replica is then what was committed before, and nothing else.

    Raises ShardLost if another node was quicker, ShardDamaged if the stream cannot be believed.
    """
    for _ in range(_ATTEMPTS):
        # In this order: a term that comes in between lets the append below be refused.
        last = stream.last_seq()
        term = 1 + max(_term_of(stream.last_term()), replica.fold.term)
        data, crc = encode(Draft(RecordKind.TERM, 0, [node.encode()]), term, 0, version)
        seq = stream.begin_term(data, last)
        if seq is not None:
            break
    else:
        raise ShardLost(stream.shard, "others append to its stream all the time")
    follow(stream, replica, seq, whole=True)
    if replica.fold.term != term:
        raise ShardLost(stream.shard, "another node took it over meanwhile")
    return ShardWriter(stream.shard, term, seq, crc, stream.record_bytes, version)


def follow(stream: ShardStream, replica: Replica, last_seq: int, *, whole: bool = False) -> None:
    """Bring a replica up to a record. Files that do not fit are fetched again from the start.

    With `whole` nothing may be missing then: that record is the term of who asks.
    """
    if replica.fold.seq > last_seq:
        raise ShardDamaged(
            last_seq, f"it ends there, and {replica.fold.seq} was committed: it lost its end"
        )
    try:
        _follow(stream, replica, last_seq, whole)
    except (CacheDamaged, ShardDamaged) as exc:
        _logger.warning("%s: its files are fetched again: %s", replica.folder, exc)
        replica.wipe()
        _follow(stream, replica, last_seq, whole)


def _follow(stream: ShardStream, replica: Replica, last_seq: int, whole: bool) -> None:
    """Not up to the end, which moves, nor as many as are said to wait, which may be too few."""
    known = replica.fold.seq
    if known < last_seq:
        for seq, data in stream.read(max(known, 1), last_seq):
            if seq <= known:
                replica.check_same(seq, data)
            else:
                replica.take(seq, data)
    if whole:
        if replica.fold.seq != last_seq:
            raise ShardDamaged(replica.fold.seq, f"the stream should go on up to {last_seq}")
        replica.check_whole()


def _term_of(data: bytes | None) -> int:
    return 0 if data is None else decode(data, 0).term
