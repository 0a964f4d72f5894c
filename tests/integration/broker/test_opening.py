"""While a topic is opened, which takes long if it has many partitions, others are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.api import Api
from penstock.broker.broker import Broker
from penstock.client.client import Client
from penstock.client.local_link import LocalLink
from penstock.errors import BrokerClosed, PenstockError, TopicNotFound
from penstock.model.names import DEAD_LETTER_SUFFIX
from tests.slow_opening import SlowEngine


@pytest.fixture
def engine(tmp_path: Path) -> SlowEngine:
    return SlowEngine(tmp_path, "wide")


@pytest.fixture
def ps(engine: SlowEngine) -> Iterator[Client]:
    with Client(LocalLink(Api(Broker(engine))), "default") as ps:
        ps.create_topic("wide", partitions=40)
        ps.create_topic("other")
        yield ps
        engine.go_on.set()


@pytest.fixture
def beside() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(8) as threads:
        yield threads.submit


def test_other_topics_are_made_opened_changed_and_deleted_meanwhile(
    ps: Client, engine: SlowEngine, beside: Callable[..., Future[Any]]
) -> None:
    first = beside(ps.publish, "wide", b"1")
    assert engine.is_opening.wait(20)
    ps.publish("other", b"a")  # which opens it
    ps.create_topic("third")
    ps.alter_topic("other", partitions=2)
    assert ps.stats("third").messages == 0
    ps.delete_topic("third")
    assert not first.done()
    engine.go_on.set()
    assert first.result(20).offset == 0


def test_who_wants_the_same_topic_waits_for_it(
    ps: Client, engine: SlowEngine, beside: Callable[..., Future[Any]]
) -> None:
    calls = [beside(ps.publish, "wide", b"%d" % number) for number in range(4)]
    assert engine.is_opening.wait(20)
    calls.append(beside(ps.stats, "wide"))
    calls.append(beside(ps.alter_topic, "wide", partitions=41))
    engine.go_on.set()
    for call in calls:
        call.result(20)
    assert ps.stats("wide").messages == 4
    assert max(engine.opened.values()) == 1, "two opened the same log"


def test_who_deletes_a_topic_waits_until_it_is_open(
    ps: Client, engine: SlowEngine, beside: Callable[..., Future[Any]]
) -> None:
    first = beside(ps.publish, "wide", b"1")
    assert engine.is_opening.wait(20)
    deleting = beside(ps.delete_topic, "wide")
    ps.publish("other", b"a")
    assert not deleting.done()
    engine.go_on.set()
    deleting.result(20)
    failure = first.exception(20)  # it was published, or too late
    assert failure is None or isinstance(failure, PenstockError)
    with pytest.raises(TopicNotFound):
        ps.stats("wide")


def test_the_dead_letters_of_a_topic_stay_as_they_are_while_it_is_opened(
    ps: Client, engine: SlowEngine, beside: Callable[..., Future[Any]]
) -> None:
    ps.create_topic("failed")
    ps.create_topic("wide-2", partitions=40, dead_letter_topic="failed")
    first = beside(ps.publish, "wide-2", b"1")
    assert engine.is_opening.wait(20)
    deleting = beside(ps.delete_topic, "failed")
    ps.publish("other", b"a")
    assert not deleting.done()
    engine.go_on.set()
    deleting.result(20)
    assert first.result(20).offset == 0


def test_they_are_not_made_either(
    ps: Client, engine: SlowEngine, beside: Callable[..., Future[Any]]
) -> None:
    first = beside(ps.publish, "wide", b"1")
    assert engine.is_opening.wait(20)
    making = beside(ps.create_topic, "wide" + DEAD_LETTER_SUFFIX)
    ps.publish("other", b"a")
    assert not making.done()
    engine.go_on.set()
    making.result(20)
    assert first.result(20).offset == 0


def test_a_broker_that_is_closed_meanwhile_closes_the_topic_too(
    ps: Client, engine: SlowEngine, beside: Callable[..., Future[Any]], tmp_path: Path
) -> None:
    first = beside(ps.publish, "wide", b"1")
    assert engine.is_opening.wait(20)
    closing = beside(ps.close)
    assert not closing.done()
    engine.go_on.set()
    closing.result(20)
    with pytest.raises(BrokerClosed):
        first.result(20)
    with Broker(SlowEngine(tmp_path, "none")) as broker:  # nothing has the folder any more
        assert [str(name) for name in broker.topics()] == ["other", "wide"]


def test_a_topic_that_cannot_be_opened_is_tried_again(
    ps: Client, engine: SlowEngine, beside: Callable[..., Future[Any]]
) -> None:
    engine.refuses = True
    with pytest.raises(OSError, match="no luck"):
        ps.publish("wide", b"1")
    engine.refuses = False
    engine.go_on.set()
    assert ps.publish("wide", b"1").offset == 0
