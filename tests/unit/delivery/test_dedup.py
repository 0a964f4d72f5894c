from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.dedup import DedupWindow, Original, digest_of
from penstock.errors import InvalidInput

SECOND = 1_000_000_000
WINDOW = 160 * SECOND
ULID = 1 << 100


@pytest.fixture
def window() -> DedupWindow:
    return DedupWindow(WINDOW)


def digests(*names: bytes | None) -> list[bytes | None]:
    return [None if name is None else digest_of(name) for name in names]


def publish(
    window: DedupWindow,
    *names: bytes | None,
    now_ns: int = 0,
    place: int = 0,
    window_ns: int = 0,
) -> int:
    """How many of the messages are new; these are stored."""
    keys = digests(*names)
    new = window.sift(keys, now_ns).new
    window.record([keys[index] for index in new], place, ULID + place, now_ns, window_ns)
    return len(new)


def test_an_id_is_new_once(window: DedupWindow) -> None:
    assert publish(window, b"a", b"b", place=70) == 2

    sifted = window.sift(digests(b"c", b"b", b"a"), 0)
    assert sifted.new == [0]
    assert sifted.known == {1: Original(71, ULID + 71), 2: Original(70, ULID + 70)}


def test_an_id_twice_in_one_call_is_stored_once(window: DedupWindow) -> None:
    sifted = window.sift(digests(b"a", b"b", b"a", b"a"), 0)

    assert sifted.new == [0, 1]
    assert sifted.repeated == {2: 0, 3: 0}


def test_messages_without_an_id_are_always_new(window: DedupWindow) -> None:
    assert publish(window, None, None) == 2
    assert publish(window, None, None) == 2
    assert len(window) == 0


def test_what_was_sifted_but_not_stored_stays_new(window: DedupWindow) -> None:
    window.sift(digests(b"a"), 0)

    assert window.sift(digests(b"a"), 0).new == [0]


def test_an_id_is_remembered_for_the_window_and_no_longer(window: DedupWindow) -> None:
    publish(window, b"a", now_ns=5 * SECOND)

    assert publish(window, b"a", now_ns=5 * SECOND + WINDOW - 1) == 0
    assert publish(window, b"a", now_ns=5 * SECOND + WINDOW) == 1


def test_an_id_may_have_a_window_of_its_own(window: DedupWindow) -> None:
    publish(window, b"long", window_ns=10 * WINDOW)
    publish(window, b"short", window_ns=SECOND)
    publish(window, b"usual")

    names = b"long", b"short", b"usual"
    assert publish(window, *names, now_ns=SECOND - 1) == 0
    assert window.sift(digests(*names), SECOND).new == [1]
    assert window.sift(digests(*names), WINDOW).new == [1, 2]
    assert window.sift(digests(*names), 10 * WINDOW).new == [0, 1, 2]


def test_beyond_the_limit_the_oldest_go_first_and_are_counted() -> None:
    window = DedupWindow(WINDOW, ids_max=160)
    for number in range(1000):
        publish(window, b"%d" % number, now_ns=number)

    assert len(window) == 160
    assert window.forgotten_early == 840
    assert window.sift(digests(b"839", b"840", b"999"), 1000).new == [0]


def test_ids_behind_one_with_a_long_window_are_forgotten_too() -> None:
    window = DedupWindow(SECOND)
    publish(window, b"long", window_ns=WINDOW)
    for number in range(100_000):
        publish(window, b"%d" % number, now_ns=number * SECOND // 1000)

    assert len(window) < 5000
    assert window.forgotten_early == 0


def test_an_id_that_was_taken_back_is_new(window: DedupWindow) -> None:
    publish(window, b"a", place=1)
    window.forget(digest_of(b"a"), ULID + 2)
    assert publish(window, b"a") == 0

    window.forget(digest_of(b"a"), ULID + 1)
    assert publish(window, b"a") == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=60))
def test_no_id_is_stored_twice_within_the_window(steps: list[tuple[int, int]]) -> None:
    window, now_ns, stored = DedupWindow(WINDOW), 0, dict[int, int]()
    for number, seconds in steps:
        now_ns += seconds * SECOND
        new = publish(window, b"%d" % number, now_ns=now_ns) == 1
        age_ns = now_ns - stored.get(number, -(10**18))
        assert new == (age_ns >= WINDOW)
        if new:
            stored[number] = now_ns


@pytest.mark.parametrize(("window_ns", "ids_max"), [(0, 1000), (-1, 1000), (1, 0)])
def test_a_window_that_makes_no_sense_is_refused(window_ns: int, ids_max: int) -> None:
    with pytest.raises(InvalidInput):
        DedupWindow(window_ns, ids_max)
