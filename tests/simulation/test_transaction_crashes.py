"""Crashes at each operation on the disk within one transaction: all of it is there, or nothing."""

from __future__ import annotations

import errno
from random import Random
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from penstock.broker.broker import Broker
from penstock.delivery.offsets import Offsets
from penstock.errors import DiskFull, LogFailed, TransactionRefused, Unavailable
from penstock.group.assignment import TopicPartition
from penstock.model.deliveries import LeasePart
from penstock.model.groups import PartitionOffset
from penstock.model.names import TopicName
from penstock.model.transactions import (
    StagedMessages,
    StagedOffsets,
    StagedSettle,
    StagedTransaction,
    TransactionOutcome,
)
from penstock.record.batch import Batch
from penstock.record.schema import ulid_text
from tests.simulation.checkpoints import checkpoint
from tests.simulation.disk import SimulatedFiles
from tests.simulation.test_broker_crashes import TOPIC, Shop, moments
from tests.simulation.torture import scaled

SHIPMENTS, MAIL = TopicName("default", "shipments"), TopicName("default", "mail")
GROUP = "readers"


class State(NamedTuple):
    """All that a transaction changes."""

    shipments: list[bytes | None]
    mail: list[bytes | None]
    delayed: int
    not_done: tuple[int, ...]
    letters: int
    committed: int


class Ready(NamedTuple):
    """A shop in which a transaction can be made."""

    shop: Shop
    staged: StagedTransaction


def messages(broker: Broker, name: TopicName) -> list[bytes | None]:
    return sorted(
        message.value or b""
        for partition in broker.topic(name).partitions
        for message in partition.log.read(partition.log.start).messages()
    )


def state_of(shop: Shop) -> State:
    broker = shop.broker
    orders = broker.topic(TOPIC).partitions[0]
    committed = broker.streams.committed(GROUP).get(TopicPartition("mail", 0))
    return State(
        messages(broker, SHIPMENTS),
        messages(broker, MAIL),
        broker.delay_stats(SHIPMENTS).pending,
        tuple(orders.not_done("billing", Offsets.run(0, orders.log.end))),
        len(shop.letters()),
        -1 if committed is None else committed.offset,
    )


def ready(fsync: str, seed: int = 0) -> Ready:
    """Three messages are held under a lease, and a member reads a stream."""
    shop = Shop(SimulatedFiles())
    broker = shop.broker
    settings: dict[str, Any] = {"fsync": fsync}
    broker.create_topic(TOPIC, settings | {"partitions": 1})
    broker.create_topic(SHIPMENTS, settings | {"partitions": 2})
    broker.create_topic(MAIL, settings | {"partitions": 1})
    broker.publish(TOPIC, Batch.build([b"%d" % n for n in range(4)]))
    broker.publish(MAIL, Batch.build([b"read"]))
    (first,) = broker.receive(TOPIC, "billing", 1)
    broker.reject(TOPIC, 0, "billing", first.nonce, None)  # so that there is a dead-letter topic
    (held,) = broker.receive(TOPIC, "billing", 3)
    standing = broker.streams.join(GROUP, "reader", [MAIL])
    part = held.partition, held.nonce
    broker.sync("default")
    shop.committer.run_due()
    return Ready(shop, staged(part, standing.generation, seed))


def staged(part: tuple[int, int], generation: int, seed: int) -> StagedTransaction:
    partition, lease = part

    def settle(verb: Any, offset: int) -> StagedSettle:
        leases = [LeasePart(partition=partition, lease=lease, offsets=[offset])]
        return StagedSettle(verb=verb, group="billing", topic="orders", leases=leases)

    return StagedTransaction(
        id=ulid_text((1 << 100) + seed),
        namespace="default",
        messages=[
            StagedMessages(topic="shipments", batch=Batch.build([b"a", b"b"]), partition=0),
            StagedMessages(topic="shipments", batch=Batch.build([b"c"]), partition=1),
            StagedMessages(topic="shipments", batch=Batch.build([b"late"]), delay="1h"),
            StagedMessages(topic="mail", batch=Batch.build([b"m"]), dedup_ids=["once"]),
        ],
        settle=[settle("ack", 1), settle("nack", 2), settle("reject", 3)],
        offsets=[
            StagedOffsets(
                group="readers",
                member_id="reader",
                generation=generation,
                offsets=[PartitionOffset("mail", 0, 1)],
            )
        ],
    )


BEFORE = State([], [b"read"], 0, (1, 2, 3), 1, -1)
AFTER = State([b"a", b"b", b"c"], [b"m", b"read"], 1, (2,), 2, 1)


def commit(ready: Ready, shop: Shop | None = None) -> TransactionOutcome:
    return (shop or ready.shop).broker.transactions.commit(ready.staged)


@pytest.mark.parametrize(
    ("fsync", "power_cut"),
    [pytest.param("interval", False, id="kill"), pytest.param("always", True, id="power-cut")],
)
def test_all_of_a_transaction_is_there_or_nothing_and_sent_again_it_is_done_once(
    fsync: str, power_cut: bool
) -> None:
    made = ready(fsync)
    assert state_of(made.shop) == BEFORE
    answers: list[TransactionOutcome] = []
    found = []
    for survivor in moments(made.shop, lambda: answers.append(commit(made)), power_cut=power_cut):
        state = state_of(survivor)
        assert state in (BEFORE, AFTER), state
        found.append(state == AFTER)
        again = made.staged
        if not found[-1]:  # members join again after a restart
            standing = survivor.broker.streams.join(GROUP, "reader", [MAIL])
            offsets = replace(again.offsets[0], generation=standing.generation)
            again = replace(again, offsets=[offsets])
        answer = survivor.broker.transactions.commit(again)
        assert state_of(survivor) == AFTER
        places = [(run.partition, run.offset) for each in answer.published for run in each.runs]
        assert places == [(0, 0), (1, 0), (0, 1)]
    assert answer == answers[0], "who was told of it is told the same again"
    assert state_of(made.shop) == AFTER
    assert found == sorted(found), "it is there from the commit on"
    assert (found[0], found[-1]) == (False, True)


@pytest.mark.parametrize(
    ("fsync", "power_cut"),
    [pytest.param("interval", False, id="kill"), pytest.param("always", True, id="power-cut")],
)
def test_what_is_one_append_is_there_or_not_and_sent_again_it_is_done_once(
    fsync: str, power_cut: bool
) -> None:
    made = ready(fsync)
    batch = Batch.build([b"%d" % n for n in range(5)])
    alone = StagedTransaction(
        id=ulid_text(1 << 110),
        namespace="default",
        messages=[StagedMessages(topic="mail", batch=batch)],
    )
    answers: list[TransactionOutcome] = []
    many(made.shop, 2)

    def work() -> None:
        answers.append(made.shop.broker.transactions.commit(alone))

    found = []
    for survivor in moments(made.shop, work, power_cut=power_cut):
        again = Shop(survivor.files.kill())
        for each in (survivor, again):
            stored = messages(each.broker, MAIL)
            assert len(stored) in (3, 8)
        found.append(len(stored) == 8)
        listed = again.broker.transactions.page("default", None, 10).transactions
        assert (listed[0].id == alone.id) == found[-1]
        answer = again.broker.transactions.commit(alone)
        assert len(messages(again.broker, MAIL)) == 8
        assert answer.published[0].runs[0].offset == 3
        many(again, 3)
        assert again.broker.transactions.commit(alone) == answer
        assert len(messages(again.broker, MAIL)) == 9
    assert found == sorted(found)
    assert (found[0], found[-1]) == (False, True)
    assert answer == answers[0]


def test_an_append_that_fails_is_no_transaction() -> None:
    made = ready("interval")
    shop = made.shop
    shop.files.fail("append", error=errno.ENOSPC, path="mail/00000/log/")
    alone = StagedTransaction(
        id=ulid_text(1 << 110),
        namespace="default",
        messages=[StagedMessages(topic="mail", batch=Batch.build([b"x"]))],
    )
    with pytest.raises(DiskFull):
        shop.broker.transactions.commit(alone)
    for each in (shop, Shop(shop.files.kill())):
        assert each.broker.transactions.page("default", None, 10).transactions == []
        assert each.broker.transactions.commit(alone).number == 2
        assert messages(each.broker, MAIL) == [b"read", b"x"]


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
def test_a_crash_while_a_start_finishes_a_transaction_is_finished_by_the_next(
    power_cut: bool,
) -> None:
    made = ready("always")
    for survivor in moments(made.shop, lambda: commit(made), power_cut=power_cut)[::6]:
        again: list[SimulatedFiles] = []

        def crash(kind: str, path: str, files: SimulatedFiles = survivor.files) -> None:
            again.append(files.crash(Random(len(again))) if power_cut else files.kill())  # noqa: B023

        survivor.files.before_operation = crash
        state = state_of(survivor)
        survivor.files.before_operation = None
        for files in again[:: max(len(again) // 5, 1)]:
            assert state_of(Shop(files)) == state


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
def test_what_was_confirmed_stays_as_it_is_whatever_is_done_afterwards(power_cut: bool) -> None:
    made = ready("always")
    shop, broker = made.shop, made.shop.broker
    commit(made)
    shop.wait(2)
    broker.seek(TOPIC, "billing", {0: 0})
    broker.cancel(SHIPMENTS, broker.delayed(SHIPMENTS)[0][1].id)
    broker.streams.leave(GROUP, "reader", made.staged.offsets[0].generation)
    broker.streams.set_offsets(GROUP, {TopicPartition("mail", 0): 0})
    checkpoint(broker.topic(TOPIC))
    broker.sync("default")
    shop.committer.run_due()
    wanted = AFTER._replace(delayed=0, not_done=(0, 1, 2, 3), committed=0)
    assert state_of(shop) == wanted
    for seed in range(10):
        files = shop.files.crash(Random(seed)) if power_cut else shop.files.kill()
        survivor = Shop(files)
        assert state_of(survivor) == wanted
        assert survivor.broker.transactions.commit(made.staged).state == "committed"
        assert state_of(survivor) == wanted


def test_a_start_knows_by_its_number_what_is_done_although_it_is_not_confirmed() -> None:
    made = ready("interval")
    shop, broker = made.shop, made.shop.broker
    commit(made)
    broker.seek(TOPIC, "billing", {0: 0})
    broker.cancel(SHIPMENTS, broker.delayed(SHIPMENTS)[0][1].id)
    checkpoint(broker.topic(TOPIC))
    broker.topic(SHIPMENTS).delays.checkpoint()
    broker.purge(SHIPMENTS)

    survivor = Shop(shop.files.kill())

    state = state_of(survivor)
    assert (state.shipments, state.delayed, state.not_done) == ([], 0, (0, 1, 2, 3))


def many(shop: Shop, count: int) -> list[TransactionOutcome]:
    return [
        shop.broker.transactions.commit(
            StagedTransaction(
                id=ulid_text((1 << 101) + n),
                namespace="default",
                messages=[
                    StagedMessages(topic="shipments", batch=Batch.build([b"%d" % n]), partition=0),
                    StagedMessages(topic="mail", batch=Batch.build([b"%d" % n])),
                ],
            )
        )
        for n in range(count)
    ]


def test_the_answers_of_many_are_kept_while_their_journal_is_dropped() -> None:
    made = ready("interval")
    shop = made.shop
    answers = []
    for _ in range(3):
        answers = many(shop, 30)
        shop.broker.transactions._journal.made().bytes_since_checkpoint += 5 << 20
        shop.wait(2)
        shop.wait(2)
    journal = shop.broker.transactions._journal.made()
    assert journal.log.start > 0
    for survivor in (Shop(shop.files.kill()), Shop(shop.files.crash(Random(1)))):
        assert many(survivor, 30) == answers
        assert len(messages(survivor.broker, MAIL)) == 31


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
def test_no_crash_while_transactions_are_confirmed_repeats_or_loses_one(power_cut: bool) -> None:
    made = ready("always")
    shop = made.shop
    answers = many(shop, 5)
    shop.broker.transactions._journal.made().bytes_since_checkpoint += 5 << 20
    for survivor in moments(shop, lambda: shop.wait(2), power_cut=power_cut):
        assert [each.id for each in many(survivor, 5)] == [each.id for each in answers]
        assert messages(survivor.broker, MAIL) == [b"0", b"1", b"2", b"3", b"4", b"read"]
        (more,) = many(survivor, 6)[5:]
        assert more.number > answers[-1].number


def test_numbers_go_on_above_what_a_power_cut_left_in_the_logs() -> None:
    lost = 0
    for seed in range(20):
        made = ready("interval")
        many(made.shop, 3)
        survivor = Shop(made.shop.files.crash(Random(seed)))
        before = messages(survivor.broker, MAIL)
        lost += len(before) < 4
        commit = StagedTransaction(
            id=ulid_text(1 << 102),
            namespace="default",
            messages=[StagedMessages(topic="mail", batch=Batch.build([b"new"]))],
        )
        survivor.broker.transactions.commit(commit)
        assert messages(survivor.broker, MAIL) == sorted([*before, b"new"]), f"seed {seed}"
    assert lost


def test_what_cannot_be_stored_after_the_commit_is_stored_later() -> None:
    made = ready("interval")
    shop = made.shop
    shop.files.fail("append", error=errno.ENOSPC, path="mail/00000/log/")
    outcome = commit(made)
    assert outcome.state == "finishing"
    assert state_of(shop).not_done == (2,), "what was settled is settled"
    assert messages(shop.broker, MAIL) == [b"read"]
    assert shop.broker.transactions.totals().finishing == 1
    survivor = Shop(shop.files.kill())
    assert state_of(survivor) == AFTER
    shop.wait(2)
    assert state_of(shop) == AFTER
    assert commit(made).state == "committed"
    assert shop.broker.transactions.totals().finishing == 0


def test_nothing_overtakes_what_waits_to_be_stored() -> None:
    made = ready("interval")
    shop = made.shop
    shop.files.fail("append", error=errno.ENOSPC, path="mail/00000/log/", times=3)
    commit(made)
    with pytest.raises(Unavailable):
        many(shop, 1)
    assert messages(shop.broker, SHIPMENTS) == [b"a", b"b", b"c"]
    shop.wait(2)
    many(shop, 1)
    assert messages(shop.broker, MAIL) == [b"0", b"m", b"read"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_commit_that_cannot_be_stored_did_not_happen(error: int) -> None:
    made = ready("interval")
    many(made.shop, 1)
    shop = made.shop
    shop.files.fail("append", nth=5, error=error, path="transactions/journal/")
    with pytest.raises((DiskFull, LogFailed)):
        commit(made)
    left = state_of(shop)
    assert left.not_done == (1, 2, 3)
    assert left.committed == -1
    assert left.shipments == [b"0"]
    assert state_of(Shop(shop.files.kill())) == left


def test_a_refused_transaction_writes_nothing() -> None:
    made = ready("interval")
    shop = made.shop
    shop.broker.ack(TOPIC, 0, "billing", made.staged.settle[0].leases[0].lease, Offsets.one(1))
    before = state_of(shop)
    written: list[str] = []
    shop.files.before_operation = lambda kind, path: written.append(path)
    with pytest.raises(TransactionRefused) as caught:
        commit(made)
    shop.files.before_operation = None
    assert [(each.item, each.code) for each in caught.value.reasons] == [
        ("settle[0]", "already_settled")
    ]
    assert [path for path in written if "catalog" not in path and "/delays/" not in path] == []
    assert state_of(shop) == before


def test_a_topic_that_was_made_anew_gets_nothing_of_its_predecessor() -> None:
    made = ready("interval")
    commit(made)
    shop = made.shop
    shop.broker.delete_topic(MAIL)
    shop.clock.advance(1)
    shop.broker.create_topic(MAIL, {"partitions": 1})

    survivor = Shop(shop.files.kill())

    survivor.wait(2)
    assert messages(survivor.broker, MAIL) == []
    assert messages(survivor.broker, SHIPMENTS) == [b"a", b"b", b"c"]


def life(seed: int, *, power_cut: bool) -> int:
    """Transactions in a row, each of which moves a message on, and crashes anywhere in between."""
    rng = Random(seed)
    shop = Shop(SimulatedFiles())
    names = [TopicName("default", f"step{n}") for n in range(3)]
    for name in names:
        shop.broker.create_topic(name, {"partitions": 1, "fsync": "always"})
    count = 12
    shop.broker.publish(names[0], Batch.build([b"%d" % n for n in range(count)]))
    shop.committer.run_due()
    moved = 0
    for _ in range(200):
        at = rng.randrange(2)
        crashes = rng.random() < 0.3
        left: list[SimulatedFiles] = []
        if crashes:
            nth = rng.randrange(1, 25)

            def crash(kind: str, path: str) -> None:
                nonlocal nth
                nth -= 1
                if not nth:
                    files = shop.files  # noqa: B023
                    left.append(files.crash(rng) if power_cut else files.kill())  # noqa: B023

            shop.files.before_operation = crash
        for held in shop.broker.receive(names[at], "g", rng.randrange(1, 4)):
            values = [m.value for batch, _ in held.pieces for m in batch.messages()]
            verb = "ack" if rng.random() < 0.8 else "nack"
            moves = rng.random() < 0.7
            settle = StagedSettle(
                verb="ack" if moves else verb,
                group="g",
                topic=names[at].topic,
                leases=[LeasePart(partition=0, lease=held.nonce)],
                delay=0 if not moves and verb == "nack" else None,
            )
            on = names[at + 1] if moves else names[at]
            batch = [StagedMessages(topic=on.topic, batch=Batch.build(values))]
            stays = not moves and verb == "nack"
            transaction = StagedTransaction(
                id=ulid_text(rng.getrandbits(127)),
                namespace="default",
                messages=[] if stays else batch,
                settle=[settle],
            )
            shop.broker.transactions.commit(transaction)
            moved += moves
        shop.files.before_operation = None
        shop.wait(rng.random() * 2)
        if left:
            shop = Shop(left[0])
            shop.wait(100)  # leases of the life before are over
        ready = sum(
            len(partition.unfinished("g", 0, 1000, 1 << 30))
            for name in names
            for partition in shop.broker.topic(name).partitions
        )
        assert ready == count, f"seed {seed}: {ready} messages"
    shop.broker.close()
    return moved


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
def test_messages_that_are_moved_on_are_never_two_nor_none(power_cut: bool) -> None:
    assert sum(life(seed, power_cut=power_cut) for seed in (0, 1, 2, 1082)) > 10


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
def test_messages_that_are_moved_on_for_long(power_cut: bool) -> None:
    seeds = range(1000, 1000 + scaled(300))
    moved = sum(life(seed, power_cut=power_cut) for seed in seeds)
    print(f"\n{len(seeds)} lives, {moved} transactions that moved messages")
