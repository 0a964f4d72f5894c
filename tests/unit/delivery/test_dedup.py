from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.dedup import SLICES, DedupWindow
from penstock.errors import InvalidInput

SECOND = 1_000_000_000
WINDOW = 160 * SECOND


@pytest.fixture
def window() -> DedupWindow:
    return DedupWindow(WINDOW)


def publish(window: DedupWindow, *names: bytes | None, now_ns: int = 0, place: int = 0) -> int:
    """How many of the messages are new; these are stored."""
    new = window.sift(names, now_ns).new
    window.record([names[index] for index in new], range(place, place + len(new)), now_ns)
    return len(new)


def test_an_id_is_new_once(window: DedupWindow) -> None:
    assert publish(window, b"a", b"b", place=70) == 2

    sifted = window.sift([b"c", b"b", b"a"], 0)
    assert sifted.new == [0]
    assert sifted.known == {1: 71, 2: 70}


def test_an_id_twice_in_one_call_is_stored_once(window: DedupWindow) -> None:
    sifted = window.sift([b"a", b"b", b"a", b"a"], 0)

    assert sifted.new == [0, 1]
    assert sifted.repeated == {2: 0, 3: 0}


def test_messages_without_an_id_are_always_new(window: DedupWindow) -> None:
    assert publish(window, None, None) == 2
    assert publish(window, None, None) == 2
    assert len(window) == 0


def test_what_was_sifted_but_not_stored_stays_new(window: DedupWindow) -> None:
    window.sift([b"a"], 0)

    assert window.sift([b"a"], 0).new == [0]


def test_an_id_is_remembered_for_the_window_and_not_much_longer(window: DedupWindow) -> None:
    publish(window, b"a", now_ns=5 * SECOND)

    assert publish(window, b"a", now_ns=5 * SECOND + WINDOW - 1) == 0
    late = 5 * SECOND + WINDOW + WINDOW // SLICES
    assert publish(window, b"a", now_ns=late) == 1


def test_memory_is_bounded_and_what_is_lost_is_counted() -> None:
    window = DedupWindow(WINDOW, ids_max=160)
    for number in range(1000):
        publish(window, b"%d" % number)

    assert len(window) <= 160
    assert window.forgotten_early == 1000 - len(window)
    assert publish(window, b"999") == 0


def test_it_survives_a_restart_with_the_age_of_each_id(window: DedupWindow) -> None:
    publish(window, b"old", now_ns=0, place=1)
    publish(window, b"young", now_ns=100 * SECOND, place=2)

    after = DedupWindow(WINDOW)
    boot_ns = 5_000 * SECOND  # another boot, another monotonic clock
    after.restore(window.snapshot(now_ns=110 * SECOND), now_ns=boot_ns)

    assert after.sift([b"old", b"young"], boot_ns).known == {0: 1, 1: 2}
    assert after.sift([b"old", b"young"], boot_ns + 50 * SECOND).known == {1: 2}
    assert after.sift([b"young"], boot_ns + 150 * SECOND).known == {}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=60))
def test_no_id_is_stored_twice_within_the_window(steps: list[tuple[int, int]]) -> None:
    window, now_ns, stored = DedupWindow(WINDOW), 0, dict[int, int]()
    for number, seconds in steps:
        now_ns += seconds * SECOND
        new = publish(window, b"%d" % number, now_ns=now_ns) == 1
        age_ns = now_ns - stored.get(number, -(10**18))
        if age_ns < WINDOW:
            assert not new
        if age_ns >= WINDOW + WINDOW // SLICES:
            assert new
        if new:
            stored[number] = now_ns


@pytest.mark.parametrize(("window_ns", "ids_max"), [(0, 1000), (-1, 1000), (1, 3)])
def test_a_window_that_makes_no_sense_is_refused(window_ns: int, ids_max: int) -> None:
    with pytest.raises(InvalidInput):
        DedupWindow(window_ns, ids_max)


def test_a_damaged_snapshot_is_an_error_with_a_code(window: DedupWindow) -> None:
    for data in (b"", b"\x91\x01", window.snapshot(0) + b"x"):
        with pytest.raises(InvalidInput):
            window.restore(data, 0)
