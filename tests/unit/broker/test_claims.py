"""Claims on topics: one at a time for each thread, and none is waited for with the lock in hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from penstock.broker.claims import Claims
from penstock.model.names import TopicName

ORDERS, OTHER = TopicName("default", "orders"), TopicName("default", "other")


class Held:
    """A claim of another thread's, until `end` is set."""

    def __init__(self, claims: Claims, name: TopicName, threads: ThreadPoolExecutor) -> None:
        self.end = threading.Event()
        begun = threading.Event()

        def hold() -> None:
            begun.set()
            assert self.end.wait(20)

        self.done: Future[None] = threads.submit(claims.holding, lambda: [name], hold)
        assert begun.wait(20)


@pytest.fixture
def lock() -> threading.RLock:
    return threading.RLock()


@pytest.fixture
def claims(lock: threading.RLock) -> Claims:
    return Claims(lock)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def test_who_has_the_lock_makes_no_claim(claims: Claims, lock: threading.RLock) -> None:
    with lock:
        with pytest.raises(RuntimeError, match="lock in hand"):
            claims.holding(lambda: [ORDERS], lambda: None)
        with pytest.raises(RuntimeError, match="lock in hand"):
            claims.wait_for_all()
    assert claims.holding(lambda: [ORDERS], lambda: 7) == 7
    claims.wait_for_all()


@pytest.mark.parametrize("name", [ORDERS, OTHER])
def test_who_has_a_claim_makes_no_other(claims: Claims, name: TopicName) -> None:
    def another() -> None:
        with pytest.raises(RuntimeError, match="has one"):
            claims.holding(lambda: [name], lambda: None)
        with pytest.raises(RuntimeError, match="has one"):
            claims.wait_for_all()

    claims.holding(lambda: [ORDERS], another)


def test_the_lock_is_free_while_a_claim_is_held(claims: Claims, lock: threading.RLock) -> None:
    def others() -> None:
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(claims.holding, lambda: [OTHER], lambda: 7).result(20) == 7

    claims.holding(lambda: [ORDERS], others)


def test_who_waits_asks_again_which_topics_it_needs(
    claims: Claims, threads: ThreadPoolExecutor
) -> None:
    held, asked, needed = Held(claims, ORDERS, threads), threading.Event(), [ORDERS]

    def names() -> list[TopicName]:
        asked.set()
        return list(needed)

    waiting = threads.submit(claims.holding, names, lambda: None)
    assert asked.wait(20)
    assert not waiting.done()
    needed[:] = [OTHER]
    waiting.result(20)  # it looks by itself now and then
    held.end.set()
    held.done.result(20)


def test_a_claim_ends_with_the_call_however_that_ends(
    claims: Claims, threads: ThreadPoolExecutor
) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    def no_names() -> list[TopicName]:
        raise KeyboardInterrupt

    for names, call in ((lambda: [ORDERS], fail), (no_names, fail)):
        with pytest.raises(KeyboardInterrupt):
            claims.holding(names, call)
    claims.wait_for_all()
    assert threads.submit(claims.holding, lambda: [ORDERS], lambda: 7).result(20) == 7
