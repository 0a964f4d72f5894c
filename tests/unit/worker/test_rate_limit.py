"""Rate limits decide on a time that they are told."""

from __future__ import annotations

from penstock.worker.rate_limit import RateLimit, Throttle, parse_limits, throttles

SECOND = 1_000_000_000


def test_messages_begin_at_an_even_pace() -> None:
    throttle = Throttle(RateLimit.parse("4/s"))
    assert [throttle.reserve(None, 0) for _ in range(4)] == [n * SECOND // 4 for n in range(4)]


def test_a_quiet_time_saves_nothing_up() -> None:
    throttle = Throttle(RateLimit.parse("1/s"))
    throttle.reserve(None, 0)
    later = 100 * SECOND
    assert [throttle.reserve(None, later) for _ in range(2)] == [later, later + SECOND]


def test_a_batch_takes_the_place_of_its_messages() -> None:
    throttle = Throttle(RateLimit.parse("10/s"))
    assert throttle.reserve(None, 0, 20) == 0
    assert throttle.reserve(None, 0, 1) == 2 * SECOND


def test_keys_have_limits_of_their_own() -> None:
    throttle = Throttle(RateLimit.parse("1/m per key"))
    assert [throttle.reserve(key, 0) for key in (b"a", b"b", None, b"a")] == [0, 0, 0, 60 * SECOND]


def test_limits_by_key_come_first() -> None:
    limits = parse_limits(["100/s", "1/s per key"])
    by_key, overall = throttles(limits)
    assert by_key.reserve(b"a", 0) == by_key.reserve(b"b", 0) == 0
    assert overall.reserve(b"a", 0) == 0
    assert overall.reserve(b"b", 0) == SECOND // 100


def test_keys_of_the_past_are_forgotten() -> None:
    throttle = Throttle(RateLimit.parse("1/s per key"))
    for n in range(25_000):
        throttle.reserve(str(n).encode(), n * SECOND)
    assert len(throttle._next_ns) <= 10_001
