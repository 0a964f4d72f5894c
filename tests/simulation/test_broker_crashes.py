"""Crashes at each operation on the disk within one call of a broker.

Random lives (`broker_life.py`) meet them too, now and then; here each is met every time.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from penstock.broker.broker import Broker, BrokerConfig
from penstock.clock import ManualClock
from penstock.delivery.offsets import Offsets
from penstock.errors import AlreadySettled, DiskFull, LogFailed
from penstock.log.commit import ManualCommitter
from penstock.log.local_engine import LocalEngine
from penstock.model.dead_letters import ORIGIN_HEADER
from penstock.model.deliveries import Delivered
from penstock.model.names import TopicName
from penstock.model.published import ProducerSequence
from penstock.record.batch import Batch
from tests.simulation.checkpoints import checkpoint
from tests.simulation.disk import SimulatedFiles

TOPIC = TopicName("default", "orders")
WALL_NS = 1_700_000_000 * 10**9
VISIBILITY_S = 30
HOUR_S = 3600


class Shop:
    """A broker on a simulated disk, with a topic that gives a message two chances."""

    def __init__(self, files: SimulatedFiles) -> None:
        self.files = files
        self.clock = ManualClock(WALL_NS, 0)
        self.committer = ManualCommitter(self.clock)
        self.broker = Broker(
            LocalEngine("/data", files=files, clock=self.clock, committer=self.committer),
            BrokerConfig(free_bytes_min=0),
            housekeeping=False,
        )

    def receive(self, group: str = "billing", topic: TopicName = TOPIC) -> list[Delivered]:
        return self.broker.receive(topic, group, visibility_ns=VISIBILITY_S * 10**9)

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.broker.housekeep()

    def checkpoint(self) -> None:
        checkpoint(self.broker.topic(TOPIC))

    def letters(self) -> list[tuple[str, int]]:
        return [(each.reason, each.attempts) for each in self.broker.dead_letters(TOPIC).list(100)]

    def letters_in_the_end(self) -> list[tuple[str, int]]:
        """Whoever holds the message lets it go, and from then on nobody takes care of it."""
        for _ in range(5):
            self.wait(HOUR_S)
            self.receive()
        return self.letters()


Act = Callable[[Shop, Delivered], None]


def reject(shop: Shop, held: Delivered) -> None:
    shop.broker.reject(TOPIC, held.partition, "billing", held.nonce, None)


def nack(shop: Shop, held: Delivered) -> None:
    shop.broker.nack(TOPIC, held.partition, "billing", held.nonce, None)


def run_out(shop: Shop, held: Delivered) -> None:
    shop.wait(VISIBILITY_S)


def moments(
    shop: Shop, act: Callable[[], object], *, power_cut: bool, outcomes: int = 1
) -> list[Shop]:
    """Shops after a crash before each operation of `act`, and one after all of them. A power cut
    may leave this or that: so many of its outcomes are tried at each."""
    left: list[SimulatedFiles] = []

    def crash(kind: str, path: str) -> None:
        for _ in range(outcomes):
            left.append(shop.files.crash(Random(len(left))) if power_cut else shop.files.kill())

    shop.files.before_operation = crash
    act()
    shop.files.before_operation = None
    left.append(shop.files.kill())
    assert len(left) > 2
    return [Shop(files) for files in left]


def deaths(act: Act, deliveries: int, *, power_cut: bool) -> list[Shop]:
    """A message is given up at its last delivery, and a crash falls into that."""
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(
        TOPIC, {"max_retries": 1, "backoff": (0, 1.0, 0), "fsync": "always", "partitions": 1}
    )
    shop.broker.publish(TOPIC, Batch.build([b"another", b"one that dies"]))
    (other,) = shop.receive()
    reject(shop, other)
    for _ in range(deliveries - 1):
        (held,) = shop.receive()
        nack(shop, held)
    (held,) = shop.receive()
    shop.committer.run_due()
    return moments(shop, lambda: act(shop, held), power_cut=power_cut)


def about_to_die() -> tuple[Shop, Delivered]:
    """A letter is there already, and the next message is held by whoever will give it up."""
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1})
    shop.broker.publish(TOPIC, Batch.build([b"first", b"one that dies"]))
    (first,) = shop.broker.receive(TOPIC, "billing", max_messages=1)
    reject(shop, first)
    (held,) = shop.receive()
    return shop, held


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
@pytest.mark.parametrize(
    ("act", "deliveries", "reason"),
    [
        (reject, 1, "rejected"),
        (reject, 2, "rejected"),
        (nack, 2, "max_retries"),
        (run_out, 2, "max_retries"),
    ],
)
def test_a_message_dies_once_wherever_the_crash_falls(
    act: Act, deliveries: int, reason: str, power_cut: bool
) -> None:
    outcomes: set[int] = set()
    for shop in deaths(act, deliveries, power_cut=power_cut):
        letters = shop.letters()
        outcomes.add(len(letters))
        assert letters[0] == ("rejected", 1)
        if len(letters) == 1:
            assert shop.letters_in_the_end() == [("rejected", 1), ("max_retries", 2)]
        else:
            assert letters[1:] == [(reason, deliveries)]
            assert shop.letters_in_the_end() == letters
            assert shop.receive() == []

    assert outcomes == {1, 2}


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
def test_a_message_whose_time_is_up_dies_once_wherever_the_crash_falls(power_cut: bool) -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(
        TOPIC, {"partitions": 1, "fsync": "always", "dead_letter_expired": True}
    )
    shop.broker.publish(TOPIC, Batch.build([b"another"]))
    (other,) = shop.receive()
    reject(shop, other)
    expires_us = WALL_NS // 1000 + 10**6
    shop.broker.publish(
        TOPIC, Batch.build([b"tried", b"new", b"new too"], expires_at_us=expires_us)
    )
    (tried,) = shop.broker.receive(TOPIC, "billing", max_messages=1)
    nack(shop, tried)
    shop.committer.run_due()
    shop.clock.advance(HOUR_S)

    outcomes: set[int] = set()
    for survivor in moments(shop, shop.receive, power_cut=power_cut):
        outcomes.add(len(survivor.letters()))
        survivor.clock.advance(HOUR_S)
        letters = sorted(survivor.letters_in_the_end())
        assert letters == [("expired", 0), ("expired", 0), ("expired", 1), ("rejected", 1)]
    assert outcomes >= {1, 4}


def test_a_clock_that_is_set_back_hides_no_letter() -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1})
    shop.broker.publish(TOPIC, Batch.build([b"first", b"one that dies"]))
    (first,) = shop.broker.receive(TOPIC, "billing", max_messages=1)
    reject(shop, first)
    shop.checkpoint()
    (held,) = shop.receive()
    shop.clock.jump_wall(-HOUR_S)

    for survivor in moments(shop, lambda: reject(shop, held), power_cut=False):
        assert survivor.letters_in_the_end()[:1] == [("rejected", 1)]
        assert len(survivor.letters()) == 2


@pytest.mark.parametrize("act", [reject, run_out])
@pytest.mark.parametrize("then", ["goes-on", "is-killed"])
def test_a_letter_is_final_even_if_there_was_no_room_for_the_entry_about_it(
    act: Act, then: str
) -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "max_retries": 0})
    shop.broker.publish(TOPIC, Batch.build([b"first"]))
    (first,) = shop.receive()
    reject(shop, first)
    shop.broker.publish(TOPIC, Batch.build([b"one that dies"]))
    (held,) = shop.receive()
    shop.files.fail("append", error=errno.ENOSPC, path="orders/00000/ledger/")

    ledger = shop.broker.topic(TOPIC).partitions[0].journal.log
    entries = ledger.end
    with suppress(DiskFull):  # the housekeeper logs it
        act(shop, held)
    assert ledger.end == entries
    assert len(shop.letters()) == 2

    if then == "is-killed":
        shop = Shop(shop.files.kill())
    refused = shop.broker.ack(TOPIC, 0, "billing", held.nonce, Offsets.one(1)).refused
    assert refused == {1: AlreadySettled}
    assert len(shop.letters_in_the_end()) == 2
    assert shop.receive() == []


def test_an_expired_message_dies_once_even_if_there_was_no_room_for_the_entry_about_it() -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "dead_letter_expired": True})
    shop.broker.publish(TOPIC, Batch.build([b"first"]))
    (first,) = shop.receive()
    reject(shop, first)
    expires_us = WALL_NS // 1000 + 10**6
    shop.broker.publish(TOPIC, Batch.build([b"old", b"old too"], expires_at_us=expires_us))
    shop.broker.publish(TOPIC, Batch.build([b"new"]))
    shop.clock.advance(HOUR_S)
    shop.files.fail("append", error=errno.ENOSPC, path="orders/00000/ledger/")

    with pytest.raises(DiskFull):
        shop.receive()
    shop.files.mend()

    (held,) = shop.receive()
    assert [m.value for m in held.pieces[0][0].messages()] == [b"new"]
    assert shop.letters() == [("rejected", 1), ("expired", 0), ("expired", 0)]


@pytest.mark.parametrize("then", ["checkpoint", "close"])
def test_a_letter_that_may_not_last_ends_no_message(then: str) -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": "always"})
    shop.broker.publish(TOPIC, Batch.build([b"first"]))
    (first,) = shop.receive()
    reject(shop, first)
    shop.broker.publish(TOPIC, Batch.build([b"one that dies"]))
    (held,) = shop.receive()
    shop.committer.run_due()
    shop.files.fail("sync", error=errno.EIO, path="orders.dlq/00000/log/")
    with pytest.raises(LogFailed):
        reject(shop, held)
    if then == "checkpoint":
        shop.checkpoint()
    else:
        with suppress(LogFailed):
            shop.broker.close()

    for seed in range(20):
        assert len(Shop(shop.files.crash(Random(seed))).letters_in_the_end()) == 2


def test_each_of_many_messages_is_a_letter_or_comes_again_when_the_disk_is_full() -> None:
    shop = Shop(SimulatedFiles())
    count = 1500
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": "interval", "max_retries": 0})
    shop.broker.publish(TOPIC, Batch.build([b"first"]))
    (first,) = shop.receive()
    reject(shop, first)
    shop.broker.publish(TOPIC, Batch.build([b"%d" % n for n in range(count)]))
    (held,) = shop.broker.receive(TOPIC, "billing", max_messages=count)
    shop.broker.topic(TOPIC).partitions[0].log.sync()
    shop.files.fail("append", nth=2, error=errno.ENOSPC, path="orders.dlq/00000/log/")
    with pytest.raises(DiskFull):
        reject(shop, held)
    shop.checkpoint()

    for seed in range(8):
        survivor = Shop(shop.files.crash(Random(seed)))
        dead = {each.message.value for each in survivor.broker.dead_letters(TOPIC).list(10_000)}
        survivor.wait(HOUR_S)  # its lease has run out: a letter more for each that was alive
        every = [each.message.value for each in survivor.broker.dead_letters(TOPIC).list(10_000)]
        assert len(every) == len(set(every)) == count + 1
        assert dead <= set(every)


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
def test_a_letter_outlives_no_lease_that_it_names(power_cut: bool) -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": "interval"})
    shop.broker.publish(TOPIC, Batch.build([b"first", b"one that dies"]))
    (first,) = shop.broker.receive(TOPIC, "billing", max_messages=1)
    reject(shop, first)
    shop.committer.run_due()
    (held,) = shop.receive()
    reject(shop, held)

    for seed in range(20):
        files = shop.files.crash(Random(seed)) if power_cut else shop.files.kill()
        survivor = Shop(files)
        assert len(survivor.letters()) == 2
        assert survivor.receive() == []


def test_an_interrupt_between_a_letter_and_its_entry_brings_nothing_back() -> None:
    shop, held = about_to_die()

    def interrupt(kind: str, path: str) -> None:
        if kind == "append" and "orders/00000/ledger" in path:
            raise KeyboardInterrupt

    shop.files.before_operation = interrupt
    with pytest.raises(KeyboardInterrupt):
        reject(shop, held)
    shop.files.before_operation = None
    shop.broker.close()

    survivor = Shop(shop.files.kill())
    assert len(survivor.letters_in_the_end()) == 2
    assert survivor.receive() == []


def test_a_letter_that_nobody_could_look_at_yet_is_looked_at_by_the_next_start() -> None:
    shop, held = about_to_die()

    def interrupt(kind: str, path: str) -> None:
        if kind == "sync" and "orders.dlq/00000/log" in path:
            raise KeyboardInterrupt  # when it is stored, and when it is to be believed

    shop.files.before_operation = interrupt
    with pytest.raises(KeyboardInterrupt):
        reject(shop, held)
    shop.files.before_operation = None
    shop.broker.topic(TOPIC.dead_letters).partitions[0].log.sync()
    shop.checkpoint()

    survivor = Shop(shop.files.kill())
    assert len(survivor.letters_in_the_end()) == 2


def test_letters_that_are_made_again_from_the_start_are_looked_at() -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1})
    shop.broker.publish(TOPIC, Batch.build([b"%d" % n for n in range(4)]))
    for _ in range(2):
        (held,) = shop.broker.receive(TOPIC, "billing", max_messages=1)
        reject(shop, held)
    shop.checkpoint()
    shop.broker.delete_topic(TOPIC.dead_letters)
    (held,) = shop.broker.receive(TOPIC, "billing", max_messages=1)
    reject(shop, held)
    (held,) = shop.receive()

    for survivor in moments(shop, lambda: reject(shop, held), power_cut=False):
        assert len(survivor.letters_in_the_end()) == 2


@pytest.mark.parametrize("origin", ['"partition": -5, "offset": 0', '"partition": 0, "offset": -1'])
def test_a_letter_that_somebody_made_up_does_no_harm(origin: str) -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1})
    shop.broker.publish(TOPIC, Batch.build([b"alive"]))
    (held,) = shop.receive()
    story = (
        f'{{"topic": "orders", {origin}, "id": "x", "group": "billing", "reason": "expired", '
        '"attempts": 1, "published_at_us": 0}'
    )
    made_up = Batch.build([b"?"], headers=[{ORIGIN_HEADER: story.encode()}])
    shop.broker.create_topic(TOPIC.dead_letters, {})
    shop.broker.publish(TOPIC.dead_letters, made_up)

    survivor = Shop(shop.files.kill())
    assert not survivor.broker.ack(TOPIC, 0, "billing", held.nonce, None).refused


def test_a_full_disk_keeps_no_broker_from_starting_after_a_letter() -> None:
    shop, held = about_to_die()
    shop.files.fail("append", error=errno.ENOSPC, path="orders/00000/ledger/")
    with pytest.raises(DiskFull):
        reject(shop, held)
    files = shop.files.kill()
    files.fail("append", error=errno.ENOSPC, path="/ledger/", times=100)

    survivor = Shop(files)

    files.mend()
    assert len(survivor.letters()) == 2
    assert survivor.receive() == []


def test_letters_of_a_topic_that_was_deleted_say_nothing_about_its_successor() -> None:
    shop = Shop(SimulatedFiles())
    settings = {"partitions": 1, "dead_letter_expired": True}
    shop.broker.create_topic(TOPIC, settings)
    expires_us = WALL_NS // 1000 + 10**6
    shop.broker.publish(TOPIC, Batch.build([b"old"], expires_at_us=expires_us))
    shop.clock.advance(HOUR_S)
    assert shop.receive() == []
    assert shop.letters() == [("expired", 0)]
    shop.broker.delete_topic(TOPIC)
    shop.broker.create_topic(TOPIC, settings)
    shop.broker.publish(TOPIC, Batch.build([b"new"]))
    shop.broker.topic(TOPIC).partitions[0].stats("billing")

    survivor = Shop(shop.files.kill())

    (held,) = survivor.receive()
    assert [m.value for m in held.pieces[0][0].messages()] == [b"new"]


def test_a_message_that_is_held_again_is_not_taken_for_the_letter_it_once_was() -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1})
    shop.broker.publish(TOPIC, Batch.build([b"again"]))
    (held,) = shop.receive()
    reject(shop, held)
    shop.broker.seek(TOPIC, "billing", {0: 0})
    (again,) = shop.receive()

    survivor = Shop(shop.files.kill())

    assert survivor.broker.topic(TOPIC).partitions[0].stats("billing").depth == 1
    settled = survivor.broker.ack(TOPIC, 0, "billing", again.nonce, None)
    assert not settled.refused
    assert survivor.letters() == [("rejected", 1)]


def test_a_call_whose_entry_could_not_be_stored_did_not_happen() -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1})
    shop.broker.publish(TOPIC, Batch.build([b"one"]))
    (held,) = shop.receive()
    shop.files.fail("append", error=errno.ENOSPC, path="/ledger/")

    with pytest.raises(DiskFull):
        shop.broker.ack(TOPIC, 0, "billing", held.nonce, None)
    shop.wait(VISIBILITY_S)

    (again,) = shop.receive()
    assert again.pieces[0][1] == 2
    settled = shop.broker.ack(TOPIC, 0, "billing", again.nonce, None)
    assert not settled.refused


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
def test_a_letter_is_redriven_at_least_once_wherever_the_crash_falls(power_cut: bool) -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": "always"})
    shop.broker.publish(TOPIC, Batch.build([b"one"]))
    (held,) = shop.receive()
    reject(shop, held)
    shop.receive("other")
    shop.committer.run_due()

    outcomes = set()
    letters = shop.broker.dead_letters(TOPIC)
    for survivor in moments(
        shop, lambda: letters.redrive(None, lambda letter: True), power_cut=power_cut
    ):
        assert not survivor.receive("other"), "it is not for this group"
        outcome = len(survivor.letters()), len(survivor.receive())
        assert outcome != (0, 0), "neither a letter nor a message"
        outcomes.add(outcome)

    assert outcomes >= {(1, 0), (0, 1)}


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
def test_a_purged_letter_is_there_or_gone_for_all_groups_wherever_the_crash_falls(
    power_cut: bool,
) -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": "always"})
    shop.broker.publish(TOPIC, Batch.build([b"one"]))
    (held,) = shop.receive()
    reject(shop, held)
    for group in ("first", "second"):  # each holds the letter for a while
        shop.receive(group, TOPIC.dead_letters)
    shop.committer.run_due()

    outcomes = set()
    letters = shop.broker.dead_letters(TOPIC)
    for survivor in moments(
        shop, lambda: letters.purge(None, lambda letter: True), power_cut=power_cut
    ):
        survivor.wait(HOUR_S)
        groups = ("first", "second", "new")
        got = {len(survivor.receive(group, TOPIC.dead_letters)) for group in groups}
        assert got == {len(survivor.letters())}
        outcomes |= got

    assert outcomes == {0, 1}


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
def test_a_compaction_takes_what_is_done_and_nothing_else_wherever_the_crash_falls(
    power_cut: bool,
) -> None:
    shop = Shop(SimulatedFiles())
    settings = {"partitions": 1, "fsync": "always", "retention_mode": "consumed"}
    shop.broker.create_topic(TOPIC, settings)
    for n in range(9):
        shop.broker.publish(TOPIC, Batch.build([b"%d" % n]))
    shop.broker.publish(
        TOPIC, Batch.build([b"once"]), producer=ProducerSequence(7, 0, 0), partition=0
    )
    held = [shop.receive()[0] for _ in range(9)]
    reject(shop, held[3])
    shop.broker.dead_letters(TOPIC).redrive(None, lambda letter: True)
    for each in (held[1], held[2], held[5], held[7]):
        shop.broker.ack(TOPIC, 0, "billing", each.nonce, None)
    shop.committer.run_due()

    for survivor in moments(shop, lambda: shop.broker.compact(TOPIC), power_cut=power_cut):
        again = survivor.broker.publish(
            TOPIC, Batch.build([b"once"]), producer=ProducerSequence(7, 0, 0), partition=0
        )
        assert again[0].duplicate
        survivor.wait(HOUR_S)
        assert everything(survivor, "billing") == [b"0", b"3", b"4", b"6", b"8", b"once"]
        new = everything(survivor, "new")
        assert {b"0", b"4", b"6", b"8", b"once"} <= {*new}
        assert new.count(b"3") <= 1, "what was redriven is for another group"


def everything(shop: Shop, group: str) -> list[bytes | None]:
    """All that a group is to do, sorted."""
    found = []
    while delivered := shop.receive(group):
        found += [
            m.value for each in delivered for batch, _ in each.pieces for m in batch.messages()
        ]
    return sorted(value or b"" for value in found)


def test_a_checkpoint_never_takes_more_than_it_brings() -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": "always"})
    shop.broker.publish(TOPIC, Batch.build([b"%d" % n for n in range(6)]))
    for _ in range(3):
        (held,) = shop.receive()
        shop.broker.ack(TOPIC, 0, "billing", held.nonce, None)

    shop.checkpoint()
    (held,) = shop.receive()
    shop.broker.ack(TOPIC, 0, "billing", held.nonce, None)
    shop.committer.run_due()

    for survivor in moments(shop, shop.checkpoint, power_cut=True):
        assert survivor.broker.topic(TOPIC).partitions[0].stats("billing").committed == 4


def test_a_checkpoint_knows_of_no_batch_that_the_log_can_still_lose() -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": "interval"})
    batch, producer = Batch.build([b"one", b"two"]), ProducerSequence(7, 0, 0)

    def publish_and_checkpoint() -> None:
        shop.broker.publish(TOPIC, batch, partition=0, producer=producer)
        shop.checkpoint()

    for survivor in moments(shop, publish_and_checkpoint, power_cut=True, outcomes=8):
        survivor.broker.publish(TOPIC, batch, partition=0, producer=producer)
        log = survivor.broker.topic(TOPIC).partitions[0].log
        assert [m.value for m in log.read(0).messages()] == [b"one", b"two"]


def test_offsets_that_a_power_cut_took_are_delivered_when_they_are_given_out_anew() -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": "interval"})
    shop.broker.publish(TOPIC, Batch.build([b"lost", b"lost too"]))
    for _ in range(2):
        (held,) = shop.receive()
        shop.broker.ack(TOPIC, 0, "billing", held.nonce, None)
    partition = shop.broker.topic(TOPIC).partitions[0]
    partition.journal.log.sync()

    lost = 0
    for seed in range(40):
        survivor = Shop(shop.files.crash(Random(seed)))
        lost += survivor.broker.topic(TOPIC).partitions[0].log.end == 0
        survivor.broker.publish(TOPIC, Batch.build([b"new"]))
        (held,) = survivor.receive()
        assert [m.value for m in held.pieces[0][0].messages()] == [b"new"]
    assert lost


def test_a_delayed_message_whose_move_a_power_cut_took_is_moved_again() -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": "interval"})
    due_us = WALL_NS // 1000 + 1_000_000
    shop.broker.delay(TOPIC, Batch.build([b"late"]), due_us)
    shop.broker.topic(TOPIC).delays.of(0).log.sync()
    shop.wait(1)
    shop.broker.topic(TOPIC).delays.ordered()

    lost = 0
    for seed in range(40):
        survivor = Shop(shop.files.crash(Random(seed)))
        lost += survivor.broker.topic(TOPIC).partitions[0].log.end == 0
        survivor.wait(2)
        assert len(survivor.receive()) == 1
        assert survivor.receive() == []
    assert lost


@pytest.mark.parametrize(
    ("fsync", "power_cut"),
    [("interval", False), ("always", False), ("always", True)],
    ids=["kill", "kill-synced", "power-cut"],
)
def test_a_delayed_message_comes_once_wherever_the_crash_falls(fsync: str, power_cut: bool) -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": fsync})
    now_us = WALL_NS // 1000
    shop.broker.delay(TOPIC, Batch.build([b"first", b"second"]), now_us + 1_000_000)
    shop.broker.delay(TOPIC, Batch.build([b"later"]), now_us + HOUR_S * 1_000_000)
    shop.committer.run_due()

    moved = set()
    for survivor in moments(shop, lambda: shop.wait(1), power_cut=power_cut):
        moved.add(survivor.broker.topic(TOPIC).partitions[0].log.end)
        survivor.wait(2)
        assert everything(survivor, "billing") == [b"first", b"second"]
        again = Shop(survivor.files.kill())
        again.wait(2 * HOUR_S)
        assert everything(again, "new") == [b"first", b"later", b"second"]
        assert again.broker.delay_stats(TOPIC).pending == 0

    assert moved == {0, 2}


def test_what_was_synced_on_demand_survives_a_power_cut_whatever_the_policy() -> None:
    shop = Shop(SimulatedFiles())
    shop.broker.create_topic(TOPIC, {"partitions": 1, "fsync": "never"})
    shop.broker.publish(TOPIC, Batch.build([b"one"]))
    shop.broker.publish(TOPIC, Batch.build([b"two"]))
    (held,) = shop.receive()
    shop.broker.ack(TOPIC, 0, "billing", held.nonce, None)
    due_us = shop.clock.wall_ns() // 1000 + 1_000_000
    shop.broker.delay(TOPIC, Batch.build([b"late"]), due_us)
    shop.broker.sync("default")
    for seed in range(8):
        survivor = Shop(shop.files.crash(Random(seed)))
        survivor.wait(HOUR_S)
        assert everything(survivor, "billing") == [b"late", b"two"]
