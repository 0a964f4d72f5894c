"""While a topic is opened, which takes long if it has many partitions, others are used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.api import Api
from penstock.broker.broker import Broker
from penstock.client.client import Client
from penstock.client.local_link import LocalLink
from penstock.errors import (
    BrokerClosed,
    InvalidInput,
    PenstockError,
    QuotaExceeded,
    TopicNotFound,
)
from penstock.model.names import DEAD_LETTER_SUFFIX, topic_name
from penstock.model.namespaces import Quotas
from tests.slow_opening import SlowEngine


@pytest.fixture
def engine(tmp_path: Path) -> SlowEngine:
    return SlowEngine(tmp_path, "wide")


@pytest.fixture
def broker(engine: SlowEngine) -> Broker:
    return Broker(engine)


@pytest.fixture
def ps(broker: Broker, engine: SlowEngine) -> Iterator[Client]:
    with Client(LocalLink(Api(broker)), "default") as ps:
        ps.create_topic("wide", partitions=40)
        ps.create_topic("other")
        yield ps
        engine.go_on.set()


@pytest.fixture
def somebody_waits(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until somebody else's claim on a topic has ended."""
    waiting, wait = threading.Event(), broker._claims._ended.wait

    def told(timeout_s: float) -> bool:
        waiting.set()
        return wait(timeout_s)

    monkeypatch.setattr(broker._claims._ended, "wait", told)
    return waiting


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
    ps: Client,
    engine: SlowEngine,
    beside: Callable[..., Future[Any]],
    somebody_waits: threading.Event,
) -> None:
    first = beside(ps.publish, "wide", b"1")
    assert engine.is_opening.wait(20)
    making = beside(ps.create_topic, "wide" + DEAD_LETTER_SUFFIX)
    assert somebody_waits.wait(20)
    ps.publish("other", b"a")
    assert not making.done()
    assert "wide" + DEAD_LETTER_SUFFIX not in ps.topics()
    engine.go_on.set()
    making.result(20)
    assert first.result(20).offset == 0


def test_quotas_are_kept_and_what_is_made_stays_meanwhile(
    ps: Client, engine: SlowEngine, beside: Callable[..., Future[Any]], tmp_path: Path
) -> None:
    ps.set_quotas("default", topics=4, partitions=1000)
    first = beside(ps.publish, "wide", b"1")
    assert engine.is_opening.wait(20)

    def make_and_publish(value: bytes) -> None:
        ps.create_topic("new", partitions=1, exist_ok=True)
        ps.publish("new", value)

    values = [b"%d" % number for number in range(6)]
    for call in [beside(make_and_publish, value) for value in values]:
        call.result(20)  # they are counted without the one that is being opened
    others = [beside(ps.create_topic, f"new-{number}") for number in range(6)]
    refusals = [failure for call in others if (failure := call.exception(20)) is not None]
    assert [type(failure) for failure in refusals] == [QuotaExceeded] * 5
    ps.alter_topic("other", partitions=2)
    assert not first.done()
    engine.go_on.set()
    first.result(20)
    assert sorted(message.value for message in ps.peek("new", limit=10)) == values
    ps.close()
    with Client(LocalLink(Api(Broker(SlowEngine(tmp_path, "none")))), "default") as ps:
        assert sorted(message.value for message in ps.peek("new", limit=10)) == values


def test_others_are_made_while_new_dead_letters_are_opened(
    ps: Client, engine: SlowEngine, beside: Callable[..., Future[Any]], broker: Broker
) -> None:
    ps.publish("other", b"a")
    altering = beside(ps.alter_topic, "other", dead_letter_topic="wide", partitions=2)
    assert engine.is_opening.wait(20)
    again = beside(ps.alter_topic, "other", partitions=8)
    beside(ps.create_topic, "third").result(20)
    assert not altering.done()
    assert not again.done()
    engine.go_on.set()
    altering.result(20)
    assert again.result(20).partitions == 8
    assert len(broker.topic(topic_name("other", "default")).partitions) == 8
    assert ps.publish("other", b"b", partition=7).offset == 0


def test_a_topic_changes_at_once_though_its_new_dead_letters_are_being_opened(
    ps: Client,
    engine: SlowEngine,
    beside: Callable[..., Future[Any]],
    broker: Broker,
    somebody_waits: threading.Event,
) -> None:
    ps.publish("other", b"a")
    opening = beside(ps.publish, "wide", b"1")
    assert engine.is_opening.wait(20)
    altering = beside(ps.alter_topic, "other", dead_letter_topic="wide", partitions=2)
    assert somebody_waits.wait(20)
    ps.alter_topic("other", partitions=8)
    engine.go_on.set()
    assert isinstance(altering.exception(20), InvalidInput)  # it has more by now
    opening.result(20)
    topic = broker.topic(topic_name("other", "default"))
    assert (ps.describe_topic("other").partitions, len(topic.partitions)) == (8, 8)
    assert topic.settings.partitions == 8
    assert max(engine.opened.values()) == 1, "two opened the same log"


def test_a_topic_that_goes_meanwhile_is_not_changed(
    ps: Client,
    engine: SlowEngine,
    beside: Callable[..., Future[Any]],
    somebody_waits: threading.Event,
    tmp_path: Path,
) -> None:
    ps.publish("other", b"a")
    opening = beside(ps.publish, "wide", b"1")
    assert engine.is_opening.wait(20)
    altering = beside(ps.alter_topic, "other", dead_letter_topic="wide", partitions=2)
    assert somebody_waits.wait(20)
    ps.delete_topic("other")
    engine.go_on.set()
    assert isinstance(altering.exception(20), TopicNotFound)
    opening.result(20)
    assert not (tmp_path / "topics" / "default" / "other").exists()


def test_what_is_made_while_a_namespace_is_deleted_goes_too(
    ps: Client,
    engine: SlowEngine,
    beside: Callable[..., Future[Any]],
    somebody_waits: threading.Event,
) -> None:
    ps.set_quotas("default", topics=100)
    opening = beside(ps.publish, "wide", b"1")
    assert engine.is_opening.wait(20)
    deleting = beside(ps.delete_namespace, "default", force=True)
    assert somebody_waits.wait(20)
    ps.create_topic("late")
    engine.go_on.set()
    assert deleting.result(20)
    opening.exception(20)  # it was published, or too late
    assert ps.topics() == []
    assert ps.describe_namespace("default").quotas == Quotas()


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
