"""What is offered can be laid down: every answer in every version, and every error has a code."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.server.kafka.apis import APIS, versions_answer
from penstock.server.kafka.codes import Code, refusal_of
from penstock.server.kafka.messages import Head, _reader, _writer, encode, parse_head

LOOKED_FOR = {0: range(3), 1: range(4), 2: range(1), 8: range(2), 9: range(1)}
"""Versions that are offered for older clients to see, and that nobody sends."""


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: str(api.key))
def test_each_version_that_is_offered_is_known(api: object) -> None:
    for version in range(api.first_version, api.last_version + 1):  # type: ignore[attr-defined]
        key: int = api.key  # type: ignore[attr-defined]
        if version not in LOOKED_FOR.get(key, ()):
            _reader(key, version)
            _writer(key, version)


@pytest.mark.parametrize("version", range(5))
def test_the_versions_are_told_in_each_version(version: int) -> None:
    data = bytes(encode(Head(18, version, 7), versions_answer(Code.NONE)))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert int.from_bytes(data[4:8], "big") == 7


def test_ranges_hold_the_versions_that_older_clients_look_for() -> None:
    wanted = {0: (0, 3, 7), 1: (4, 10), 2: (1,), 8: (2,), 9: (1,), 22: (0,)}
    wanted |= dict.fromkeys((10, 11, 12, 13, 14, 17), (0,))
    for key, versions in wanted.items():
        for version in versions:
            assert APIS[key].first_version <= version <= APIS[key].last_version
    assert not {71, 72, 75} & APIS.keys()


def test_heads_are_read() -> None:
    assert parse_head(b"\x00\x03\x00\x08\x00\x00\x00\x09rest") == Head(3, 8, 9)


def test_errors_that_may_pass_are_told_as_such() -> None:
    """A client that is told of one of these tries again, and one of others does not."""
    retried = {
        Code.REQUEST_TIMED_OUT,
        Code.KAFKA_STORAGE_ERROR,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    for kind in (errors.DiskFull, errors.Unavailable, errors.NotOwner):
        assert kind.retriable
        made = kind.__new__(kind)
        Exception.__init__(made, "why")
        assert refusal_of(made).code in retried, kind
    for kind in (errors.InvalidInput, errors.MessageTooLarge, errors.ProducerFenced):
        made = kind.__new__(kind)
        Exception.__init__(made, "why")
        assert refusal_of(made).code not in retried, kind
