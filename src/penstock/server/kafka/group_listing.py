"""Which groups there are, of what kind and in which state.

Groups of streams live in the broker; those with members of the classic protocol are known to the
coordinator, too. A share group is one while it has members: without them it is the queue group of
that name on its topics, which any other consumer may be in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.model import calls
from penstock.server.kafka.call import KafkaCall
from penstock.server.kafka.codes import Code
from penstock.server.kafka.messages import NOW, Answer

_KINDS_FROM = 5
"""The version from which clients can tell a share group from others."""


class _Listed(NamedTuple):
    group: str
    protocol_type: str
    state: str
    kind: str


async def list_groups(call: KafkaCall) -> Answer:
    listed: list[_Listed] = []
    code = Code.NONE if call.may("describe") else Code.GROUP_AUTHORIZATION_FAILED
    if code is Code.NONE:
        asked = calls.ListStreamGroups(namespace=call.namespace)
        found: Any = await call.door.member_aside(call.api.ask, asked)
        listed = [*_of_streams(call, found.groups)]
        if call.version >= _KINDS_FROM:
            listed += _of_shares(call)
    states, kinds = _filter(call, "states_filter"), _filter(call, "types_filter")
    return Answer(
        throttle_time=NOW,
        error_code=code,
        groups=[
            Answer(
                group_id=each.group,
                protocol_type=each.protocol_type,
                group_state=each.state,
                group_type=each.kind,
            )
            for each in listed
            if (not states or each.state.lower() in states)
            and (not kinds or each.kind.lower() in kinds)
        ],
    )


def _of_streams(call: KafkaCall, stored: list[str]) -> Iterator[_Listed]:
    groups = call.broker.groups
    for name in sorted({*stored, *groups.names(call.namespace)}):
        classic = groups.find((call.namespace, name))
        if classic is not None:
            yield _Listed(name, classic.protocol_type or "consumer", classic.state, "Classic")
        elif call.api.has_stream_members(call.namespace, name):
            yield _Listed(name, "consumer", "Stable", "Consumer")
        else:
            yield _Listed(name, "consumer", "Empty", "Classic")


def _of_shares(call: KafkaCall) -> list[_Listed]:
    names = call.broker.shares.names(call.namespace, call.api.clock.monotonic_ns())
    return [_Listed(name, "share", "Stable", "Share") for name in sorted(names)]


def _filter(call: KafkaCall, name: str) -> set[str]:
    """Empty: all of them are wanted, or an older client asks."""
    return {each.lower() for each in getattr(call.body, name, ())}
