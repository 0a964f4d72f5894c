"""Who waits for news is told, once he asked and as long as he asks."""

from __future__ import annotations

from penstock.broker.waiters import Waiters


def test_all_who_wait_are_told_each_time() -> None:
    waiters, told = Waiters(), []
    waiters.notify()
    first = waiters.add(lambda: told.append("first"))
    waiters.add(lambda: told.append("second"))
    waiters.notify()
    assert told == ["first", "second"]
    waiters.remove(first)
    waiters.remove(first)
    waiters.notify()
    assert told == ["first", "second", "second"]
    assert len(waiters) == 1


def test_who_is_told_may_leave_at_that_moment() -> None:
    waiters, told = Waiters(), []

    def leave() -> None:
        waiters.remove(ticket)
        told.append("left")

    ticket = waiters.add(leave)
    waiters.notify()
    waiters.notify()
    assert told == ["left"]
