"""What all messages of one receive from one partition share, and how they are settled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from penstock.client.link import SettleLink
from penstock.client.waiting import Steps
from penstock.durations import parse_ns
from penstock.errors import AlreadySettled, RequestTooLarge
from penstock.model.deliveries import Delivered, LeasePart, Refusal, Settle, Verb
from penstock.model.names import TopicName
from penstock.model.problem import refusal_error
from penstock.model.values import Seconds
from penstock.record.batch import Batch

_ASK_MAX = 1000  # messages: a refusal of each comes back


class HeldLease(msgspec.Struct, frozen=True, eq=False):
    link: SettleLink
    topic: TopicName
    group: str
    partition: int
    nonce: int
    since: float = 0.0
    """When it was received, by `time.monotonic`."""
    visibility_s: float | None = None
    """How long it was asked for; None: as long as the topic says."""


Pieces: TypeAlias = list[tuple[Batch, int]]
HandedOut: TypeAlias = list[tuple[HeldLease, Pieces]]
"""What a receive gave: each lease, and its messages with their delivery counts."""


def handed_out(
    link: SettleLink,
    topic: TopicName,
    group: str,
    delivered: Sequence[Delivered],
    visibility: Seconds | None = None,
) -> HandedOut:
    if not delivered:
        return []
    since, visibility_s = time.monotonic(), None
    if visibility is not None:
        visibility_s = parse_ns(visibility, "visibility") / 1e9
    return [
        (
            HeldLease(link, topic, group, each.partition, each.nonce, since, visibility_s),
            each.pieces,
        )
        for each in delivered
    ]


def whole_leases(leases: HandedOut) -> list[LeasePart]:
    return [LeasePart(partition=each.partition, lease=each.nonce) for each, _ in leases]


def settle_all(
    leases: HandedOut, verb: Verb, how: Settle, *, repeated: bool = False
) -> Steps[None]:
    """All messages of one receive. `repeated`: it was asked before, and may have been done."""
    first, _ = leases[0]
    link, topic, group = first.link, first.topic, first.group

    def settle(parts: list[LeasePart], repeated: bool) -> Steps[tuple[list[Refusal], bool]]:
        named = msgspec.structs.replace(how, leases=parts)
        return link.settle(verb, topic, group, named, repeated=repeated)

    refused, repeated = yield from settle(whole_leases(leases), repeated)
    # A lease that is gone may be gone because its messages are done: ask by message.
    gone = {(each.partition, each.lease) for each in refused if each.offset is None}
    parts = [
        LeasePart(partition=each.partition, lease=each.nonce, offsets=_offsets(pieces))
        for each, pieces in leases
        if (each.partition, each.nonce) in gone
    ]
    if parts and repeated:  # by the first attempt, perhaps
        refused = [each for each in refused if each.offset is not None]
        still, _ = yield from settle(parts, True)
        refused += still
    elif parts:
        done = yield from _first_if_done(link, topic, group, verb, how, parts)
        refused = refused if done is None else [done]
    for refusal in refused:
        raise refusal_error(refusal)


def _first_if_done(
    link: SettleLink,
    topic: TopicName,
    group: str,
    verb: Verb,
    how: Settle,
    parts: Sequence[LeasePart],
) -> Steps[Refusal | None]:
    """What is said of the first of many messages, if all are done. Mostly they are not, and then
    the first few tell."""
    first: Refusal | None = None
    for part in parts:
        offsets = part.offsets or []
        for start in range(0, len(offsets), _ASK_MAX):
            some = msgspec.structs.replace(part, offsets=offsets[start : start + _ASK_MAX])
            named = msgspec.structs.replace(how, leases=[some])
            try:
                refused, _ = yield from link.settle(verb, topic, group, named)
            except RequestTooLarge:  # a server that takes very few
                return None
            if not refused or any(each.code != AlreadySettled.code for each in refused):
                return None
            first = first or refused[0]
    return first


def _offsets(pieces: Pieces) -> list[int]:
    return [offset for batch, _ in pieces for offset in batch.offset_numbers().tolist()]
