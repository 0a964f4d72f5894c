"""What consumers do in a broker's life: receive, settle with receipts of all kinds, seek, purge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.delivery.offsets import Offsets
from penstock.errors import AlreadySettled, DeliveryError, InvalidReceipt, LeaseLost
from penstock.model.deliveries import Delivered
from penstock.model.names import TopicName
from tests.simulation.broker_model import DONE, READY, PartitionModel, Story, require, row_of
from tests.simulation.broker_publish import RETURNED, PublishActs
from tests.simulation.broker_world import Expected, TopicModel

GROUPS = ("g1", "g2")
MS = 1_000_000


class Receipt(NamedTuple):
    topic: TopicName
    partition: int
    group: str
    nonce: int
    offset: int


@dataclass
class Receiving:
    """A receive that is under way."""

    topic: TopicModel
    group: str
    asked: list[PartitionModel]
    count: int
    visibility_ns: int
    consumer: str
    now_ns: int
    wall_us: int

    def eligible(self, model: PartitionModel) -> set[int]:
        """Messages that may be handed out, if they have not outlived their TTL."""
        group = model.groups[self.group]
        at_ns = self.now_ns + group.ahead_ns
        return {
            offset
            for offset in model.rows
            if (fate := group.fate(offset)) == READY
            or (fate.place == "waiting" and fate.deadline_ns <= at_ns)
        }

    def expired(self, model: PartitionModel) -> set[int]:
        eligible = self.eligible(model)
        return {o for o in eligible if model.rows[o].expired(self.wall_us)}

    def room(self, model: PartitionModel) -> int:
        most = self.topic.settings.in_flight_max
        leased = len(model.groups[self.group].placed("leased"))
        return 1 << 40 if most is None else max(0, most - leased)


class QueueActs(PublishActs):
    receiving: Receiving | None = None
    purging: TopicModel | None = None
    receipts: list[Receipt]

    def receive(self, *, of_one: bool = False) -> None:
        topic, rng = self.some_topic(), self.rng
        group = rng.choice(GROUPS)
        asked = topic.partitions
        if of_one or rng.random() < 0.3:
            asked = [rng.choice(topic.partitions)]
        receiving = self.receiving = Receiving(
            topic,
            group,
            list(asked),
            rng.choice((1, 1, 1, 2, 5, 20)),
            rng.choice((1, 50, 500, 5_000, 30_000, 30_000)) * MS,
            rng.choice(("", "", "c1", "c2")),
            self.now_ns,
            self.wall_us,
        )
        numbers = [model.number for model in asked]
        self.note(f"receive {receiving.count} of {topic.name}/{numbers} for {group}")
        self.take(receiving)

    def _receive(self, receiving: Receiving) -> list[Delivered]:
        topic, asked = receiving.topic, receiving.asked
        of_all = len(asked) == len(topic.partitions)
        default_ns = topic.settings.visibility_ms * MS
        if of_all and receiving.visibility_ns == default_ns and not receiving.consumer:
            told = self.broker.receive_now(*topic.name, receiving.group, receiving.count)
            if told is not None:
                self.counts["received by the short way"] += len(told[1])
                return told[1]
        return self.broker.receive(
            topic.name,
            receiving.group,
            receiving.count,
            visibility_ns=receiving.visibility_ns,
            consumer=receiving.consumer,
            partition=None if of_all else asked[0].number,
        )

    def take(self, receiving: Receiving) -> None:
        topic, group = receiving.topic, receiving.group
        for model in receiving.asked:
            model.group(group, self.now_ns)
        if len(receiving.asked) == 1:  # what is overdue is taken back first
            self.expect_letters(
                topic, receiving.asked[0].expire(group, self.now_ns, topic.settings)
            )
        letters = self._may_expire(receiving)
        delivered = self._receive(receiving)
        self.receiving = None
        for model in receiving.asked:
            self._drop(receiving, model, letters)
        self._check_delivered(receiving, delivered)
        for each in delivered:
            model = topic.partitions[each.partition]
            offsets = offsets_of(each)
            model.lease(
                group,
                offsets,
                each.nonce,
                receiving.now_ns,
                receiving.wall_us,
                receiving.visibility_ns,
                receiving.consumer,
            )
            model.note()
            self.receipts += [
                Receipt(topic.name, each.partition, group, each.nonce, offset) for offset in offsets
            ]
            self.counts["received"] += len(offsets)
        if sum(len(offsets_of(each)) for each in delivered) < receiving.count:
            served = {each.partition for each in delivered}
            for model in receiving.asked:
                if topic.settings.ordered_by_key and model.number in served:
                    continue  # a receive does not look at the same message twice
                left = free_of(receiving, model)
                require(not left, f"not handed out of partition {model.number}: {left}")

    def _may_expire(self, receiving: Receiving) -> dict[tuple[int, int], Expected | None]:
        """Messages that will be found expired if they are looked at, and their letters."""
        found: dict[tuple[int, int], Expected | None] = {}
        for model in receiving.asked:
            for offset in receiving.expired(model):
                letter = None
                if receiving.topic.settings.dead_letter_expired:
                    story = expired_story(model, receiving.group, offset)
                    (letter,) = self.expect_letters(receiving.topic, [story])
                    letter.required = False
                found[model.number, offset] = letter
        return found

    def _drop(
        self,
        receiving: Receiving,
        model: PartitionModel,
        letters: dict[tuple[int, int], Expected | None],
    ) -> None:
        topic = self.broker.topic(receiving.topic.name)
        acked = topic.partitions[model.number].queues[receiving.group].state.acked
        dropped = [o for number, o in letters if number == model.number and o in acked]
        for offset in dropped:
            letter = letters[model.number, offset]
            model.drop_expired(receiving.group, offset, letter=letter is not None)
            if letter is not None:
                letter.required = True
            self.counts["expired"] += 1
        if dropped:
            model.note()

    def _check_delivered(self, receiving: Receiving, delivered: list[Delivered]) -> None:
        """Nobody else has them, they are due, they are what was sent, and counted right."""
        total = sum(len(offsets_of(each)) for each in delivered)
        require(total <= receiving.count, "more than asked for")
        require(len({d.partition for d in delivered}) == len(delivered), "two leases of one")
        for each in delivered:
            model = receiving.topic.partitions[each.partition]
            require(model in receiving.asked, f"partition {each.partition} was not asked")
            group = model.groups[receiving.group]
            good = receiving.eligible(model) - receiving.expired(model)
            got = offsets_of(each)
            require(len(got) <= receiving.room(model), "more in flight than allowed")
            for batch, count in each.pieces:
                for message in batch.messages():
                    offset = message.offset
                    require(offset in good, f"handed out {offset}: {group.fate(offset)}")
                    require(row_of(message) == model.rows[offset], f"{offset} is another message")
                    times = group.fate(offset).deliveries + 1
                    require(count == times, f"delivery {count} of {offset} is the {times}th")
            require(len(set(got)) == len(got), "a message twice in one lease")
            check_order(receiving, model, got)

    def settle(self) -> None:
        """Ack, nack, reject or extend, with receipts of all kinds."""
        rng = self.rng
        verb = rng.choice(("ack", "ack", "ack", "ack", "nack", "nack", "reject", "extend"))
        receipts = self._some_receipts()
        if not receipts:
            return
        name, number, group, nonce, _ = receipts[0]
        topic = self.topics[name]
        model = topic.partitions[number]
        offsets = sorted({receipt.offset for receipt in receipts})
        held, refused = self._sort_out(model, group, nonce, offsets)
        delay_ns = rng.choice((None, None, 0, 20 * MS, 3000 * MS))
        visibility_ns = rng.choice((10, 1000, 60_000)) * MS
        error = rng.choice(("", "boom"))
        self.note(f"{verb} {offsets} of {name}/{number} for {group}, held {held}")
        if held:
            stories = model.settle(
                group,
                verb,
                held,
                self.now_ns,
                topic.settings,
                delay_ns=delay_ns,
                visibility_ns=visibility_ns,
                error=error,
            )
            self.expect_letters(topic, stories)
        how: dict[str, Any] = {
            "ack": {},
            "nack": {"delay_ns": delay_ns, "error": error},
            "reject": {"error": error},
            "extend": {"visibility_ns": visibility_ns},
        }[verb]
        call = getattr(self.broker, verb)
        settled = call(name, number, group, nonce, Offsets.of(offsets), **how)
        require(settled.refused == refused, f"refused {settled.refused}, expected {refused}")
        if held:
            self.futures[name, number] = settled.durable
        self.counts[verb] += len(held)
        self.counts["refused"] += len(refused)

    def _sort_out(
        self, model: PartitionModel, group: str, nonce: int, offsets: Iterable[int]
    ) -> tuple[list[int], dict[int, type[DeliveryError]]]:
        """What a nonce may settle, and why not the rest."""
        held: list[int] = []
        refused: dict[int, type[DeliveryError]] = {}
        state = model.groups.get(group)
        for offset in offsets:
            fate = DONE if offset < model.start else state.fate(offset) if state else READY
            mine = state is not None and fate.place == "leased" and fate.nonce == nonce
            if mine and fate.deadline_ns > self.now_ns + state.ahead_ns:
                held.append(offset)
            elif fate.place == "done":
                refused[offset] = AlreadySettled
            elif fate.place == "ready" or offset >= model.end:
                refused[offset] = InvalidReceipt
            else:
                refused[offset] = LeaseLost
        return held, refused

    def _some_receipts(self) -> list[Receipt]:
        """Of one lease, old or new; or with a nonce that nobody got."""
        rng = self.rng
        if rng.random() < 0.6:
            live = self._live_receipts()
            if live:
                one = rng.choice(live)
                mine = [r for r in live if r[:4] == one[:4]]
                return rng.sample(mine, rng.randint(1, len(mine)))
        recent = self.receipts[-40:] if rng.random() < 0.9 else self.receipts
        if not recent:
            return []
        one = rng.choice(recent)
        kind = rng.random()
        if kind < 0.05:
            return [one._replace(nonce=rng.getrandbits(60))]
        if kind < 0.08:
            end = self.topics[one.topic].partitions[one.partition].end
            return [one, one._replace(offset=end + 5)]
        mine = [r for r in recent if r[:4] == one[:4]]
        if kind < 0.5:
            return [one]
        return mine if kind < 0.75 else rng.sample(mine, rng.randint(1, len(mine)))

    def _live_receipts(self) -> list[Receipt]:
        return [
            Receipt(topic.name, model.number, name, fate.nonce, offset)
            for topic, model in self.partitions()
            for name, group in model.groups.items()
            for offset, fate in group.placed("leased").items()
        ]

    # Moving about.

    def seek(self) -> None:
        topic, group = self.some_topic(), self.rng.choice(GROUPS)
        chosen = self.rng.sample(topic.partitions, self.rng.randint(1, len(topic.partitions)))
        offsets = {p.number: self.rng.randint(p.start, p.end) for p in chosen}
        self.note(f"seek {topic.name} for {group} to {offsets}")
        for number, offset in offsets.items():
            model = topic.partitions[number]
            model.group(group, self.now_ns)
            model.seek(group, offset, self.now_ns)
        self.broker.seek(topic.name, group, offsets)
        self.counts["sought"] += 1

    def purge_group(self) -> None:
        topic, group = self.some_topic(), self.rng.choice(GROUPS)
        self.note(f"purge {topic.name} for {group}")
        depth = 0
        for model in topic.partitions:
            model.group(group, self.now_ns)
            undone = model.undone(group)
            depth += len(undone)
            model.finish(group, undone, self.now_ns)
        purged = self.broker.purge(topic.name, group)
        require(purged == depth, f"purged {purged}, there were {depth}")
        self.counts["purged for a group"] += 1

    def purge_topic(self) -> None:
        topic = self.some_topic()
        self.note(f"purge {topic.name}")
        pending = topic.pending()
        there = sum(p.end - p.start for p in topic.partitions) + len(pending)
        for model in topic.partitions:
            self.trims_may_reach[topic.name, model.number] = model.end
        self.cancelling, self.purging = {each.id for each in pending}, topic
        purged = self.broker.purge(topic.name)
        self.cancelling, self.purging = set(), None
        require(purged == there, f"purged {purged}, there were {there}")
        for model in topic.partitions:
            model.trim(model.end)
        topic.seen.clear()  # a restart knows them by their messages
        for each in pending:
            each.state, each.done = "cancelled", self.promise(topic, RETURNED)
        self.counts["purged"] += 1

    def delete_group(self) -> None:
        topic, group = self.some_topic(), self.rng.choice(GROUPS)
        self.note(f"delete {group} of {topic.name}")
        there = [model for model in topic.partitions if group in model.groups]
        for model in there:
            model.delete_group(group)
        deleted = self.broker.delete_group(topic.name, group)
        require(deleted == bool(there), f"deleted: {deleted}, was there: {bool(there)}")


def offsets_of(delivered: Delivered) -> list[int]:
    return [m.offset for batch, _ in delivered.pieces for m in batch.messages()]


def expired_story(model: PartitionModel, group: str, offset: int) -> Story:
    fate = model.groups[group].fate(offset)
    times = (fate.first_us, fate.last_us) if fate.deliveries else (None, None)
    story = (fate.deliveries, *times, fate.consumer, fate.error)
    return Story(model.number, offset, group, "expired", *story)


def check_order(receiving: Receiving, model: PartitionModel, got: list[int]) -> None:
    """New messages come in the order of their priority, or of their key."""
    group, rows = model.groups[receiving.group], model.rows
    good = receiving.eligible(model) - receiving.expired(model)
    ready = sorted(o for o in good if group.fate(o).place == "ready")
    new = [o for o in got if group.fate(o).place == "ready"]
    if receiving.topic.settings.fair_by:
        for tenant in {(rows[o].priority, rows[o].key) for o in new}:
            here = [o for o in new if (rows[o].priority, rows[o].key) == tenant]
            expected = [o for o in ready if (rows[o].priority, rows[o].key) == tenant]
            require(here == expected[: len(here)], f"{here} of {tenant} came before {expected}")
        return
    if not receiving.topic.settings.ordered_by_key:
        for priority in range(5):
            here = [o for o in new if rows[o].priority == priority]
            expected = [o for o in ready if rows[o].priority == priority]
            require(here == expected[: len(here)], f"{here} came before {expected}")
        return
    busy = busy_keys(receiving, model)
    keys = [rows[o].key for o in new if rows[o].key is not None]
    require(len(keys) == len(set(keys)), f"two messages of a key at once: {got}")
    require(not busy & set(keys), f"an earlier message of a key is not done: {got}")
    for offset in new:
        row = rows[offset]
        earlier = [
            o
            for o in ready
            if o < offset and (rows[o].priority, rows[o].key) == (row.priority, row.key)
        ]
        require(row.key is None or not earlier, f"{offset} overtook {earlier}, of the same key")


def busy_keys(receiving: Receiving, model: PartitionModel) -> set[bytes | None]:
    group = model.groups[receiving.group]
    out = group.placed("leased").keys() | group.placed("waiting").keys()
    return {model.rows[o].key for o in out} - {None}


def free_of(receiving: Receiving, model: PartitionModel) -> list[int]:
    """What could have been handed out."""
    if not receiving.room(model):
        return []
    group = model.groups[receiving.group]
    good = receiving.eligible(model) - receiving.expired(model)
    if not receiving.topic.settings.ordered_by_key:
        return sorted(good)
    busy = busy_keys(receiving, model)
    return [o for o in good if group.fate(o).place == "waiting" or model.rows[o].key not in busy]
