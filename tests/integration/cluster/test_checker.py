"""The checker on trial: each thing that must not happen is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.cluster.checker import Checker


def told() -> Checker:
    checker = Checker()
    for number in range(1, 4):
        value = b"p0:%d" % number
        checker.sending(value)
        checker.sent(value)
    return checker


GOOD = [(b"k", b"p0:1"), (b"k", b"p0:2"), (b"k", b"p0:3")]


def test_what_is_as_it_was_told_is_no_problem() -> None:
    checker = told()
    checker.received(b"p0:1")
    checker.ack_confirmed(b"p0:1")
    assert checker.check([GOOD]) == []


def late(checker: Checker) -> list[tuple[bytes, bytes]]:
    checker.sending(b"p0:9", delay_s=60)
    checker.received(b"p0:9")
    return [*GOOD, (b"k", b"p0:9")]


def back(checker: Checker) -> list[tuple[bytes, bytes]]:
    checker.ack_confirmed(b"p0:1")
    checker.received(b"p0:1")
    return GOOD


def test_halves_of_transactions_and_positions_that_go_back_are_told() -> None:
    checker = told()
    checker.sending_both(b"p0:4")
    log = [*GOOD, (b"both", b"p0:4")]
    assert checker.check([log], [b"p0:4"]) == []
    assert "half" in str(checker.check([log], []))
    assert "half" in str(checker.check([GOOD], [b"p0:4"]))
    assert "2 times" in str(checker.check([log], [b"p0:4"] * 2))
    checker.offsets_confirmed({0: 7, 1: 3})
    checker.began_at(0, 7)
    assert checker.problems == []
    checker.began_at(1, 2)
    assert "committed 3" in checker.problems[0]


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        (lambda checker: GOOD[:2], "is lost"),
        (lambda checker: [*GOOD, GOOD[0]], "2 times"),
        (lambda checker: [*GOOD, (b"k", b"p9:9")], "nobody sent it"),
        (lambda checker: [GOOD[1], GOOD[0], GOOD[2]], "order"),
        (late, "before its time"),
        (back, "came back"),
    ],
)
def test_what_must_not_be_is_told(
    what: Callable[[Checker], list[tuple[bytes, bytes]]], problem: str
) -> None:
    checker = told()
    log = what(checker)
    assert any(problem in each for each in checker.check([log]))
