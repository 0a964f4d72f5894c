"""What producers do in a broker's life: publish, send again, delay, cancel, redrive letters."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import numpy as np

from penstock.broker.topic_dedup import DEDUP_HEADER
from penstock.broker.withheld import LETTERS_GROUP
from penstock.errors import OutOfOrderSequence, ProducerFenced
from penstock.model.dead_letters import Letter, LetterPlace, RedriveTo
from penstock.model.published import Placed, ProducerSequence, place_of
from penstock.record.batch import Batch
from penstock.record.schema import parse_ulid
from tests.simulation.broker_model import Row, require, row_of
from tests.simulation.broker_world import (
    BrokerWorld,
    DelayedModel,
    Expected,
    Seen,
    Stored,
    TopicModel,
)

EPOCH = 3
RETURNED: Future[None] = Future()
RETURNED.set_result(None)
"""Of calls that have no future: they are as durable as the policy says when they return."""


class PublishActs(BrokerWorld):
    serial = 0

    def publish(self) -> None:
        topic = self.some_topic()
        rows = self.some_rows(topic)
        partition = self.some_partition(topic)
        self.note(f"publish {len(rows)} to {topic.name}/{partition}")
        self.expect(topic, self.with_ttl(topic, rows, self.wall_us), partition)
        placed = self.broker.publish(topic.name, batch_of(rows), partition=partition)
        self._check_placed(topic, self.with_ttl(topic, rows, self.wall_us), placed)
        self.counts["published"] += len(rows)

    def publish_value(self) -> None:
        """One message that is a value and no more, by the short way where there is one."""
        topic = self.some_topic()
        self.serial += 1
        sent = [Row(b"%d-%d:" % (self.seed, self.serial) + self.rng.randbytes(5))]
        self.note(f"publish a value to {topic.name}")
        stored = self.with_ttl(topic, sent, self.wall_us)
        self.expect(topic, stored, None)
        told = self.broker.publish_value(*topic.name, sent[0].value)
        if told is None:
            placed = self.broker.publish(topic.name, batch_of(sent))
        else:
            published, durable = told
            ulid = parse_ulid(published.id)
            where = published.partition, range(1), published.offset
            placed = [Placed(*where, ulid, RETURNED if durable is None else durable)]
            self.counts["published by the short way"] += 1
        self._check_placed(topic, stored, placed)
        self.counts["published"] += 1

    def publish_once(self) -> None:
        """With deduplication ids, some of which were used before."""
        topic = self.some_topic()
        rows = self.some_rows(topic)
        used = list(topic.seen)
        ids: list[str | None] = [
            self.rng.choice(used)
            if used and self.rng.random() < 0.4
            else self.rng.choice((f"id-{self.seed}-{self.rng.randrange(10**9)}", None))
            for _ in rows
        ]
        if len(rows) > 1 and self.rng.random() < 0.3:
            ids[-1] = ids[0]
        self.note(f"publish once {ids} to {topic.name}")
        rows = [
            row._replace(headers=tuple(sorted((*row.headers, (DEDUP_HEADER, id_.encode())))))
            if id_
            else row
            for row, id_ in zip(rows, ids, strict=True)
        ]
        stored = self.with_ttl(topic, rows, self.wall_us)
        first: dict[str, int] = {}
        for index, (row, id_) in enumerate(zip(stored, ids, strict=True)):
            if id_ is None:
                self.expected.append(Expected(topic.name, row))
            elif first.setdefault(id_, index) == index and not self._must_be_known(topic, id_):
                new = id_ not in topic.seen
                # Its time is that of this call, even if only a recovery finds it.
                arrived = partial(self._first_seen, topic, id_, self.wall_us)
                self.expected.append(Expected(topic.name, row, None, new, arrived))
        plain = [
            row._replace(headers=tuple(h for h in row.headers if h[0] != DEDUP_HEADER))
            for row in rows
        ]
        placed = self.broker.publish(topic.name, batch_of(plain), dedup_ids=ids)
        self.futures.update(
            {(topic.name, each.partition): each.durable for each in placed if not each.duplicate}
        )
        self.absorb()
        for each in placed:
            (index,) = each.rows
            id_, where = ids[index], (each.partition, each.first_offset)
            if not each.duplicate:
                row = topic.partitions[each.partition].rows.get(each.first_offset)
                require(row == stored[index], f"{stored[index]} is not at {where}")
                continue
            self.counts["deduplicated"] += 1
            seen = topic.seen.get(id_ or "")
            known = seen is not None and (seen[:2] == where or where in seen.before)
            require(known, f"{id_} is called a duplicate of {where}: {seen}")

    def _first_seen(
        self, topic: TopicModel, id_: str, sent_us: int, partition: int, offset: int
    ) -> None:
        last = topic.seen.get(id_)
        before = last.before | {last[:2]} if last else frozenset()
        topic.seen[id_] = Seen(partition, offset, before, self.now_ns, sent_us)

    def _must_be_known(self, topic: TopicModel, id_: str) -> bool:
        seen = topic.seen.get(id_)
        if seen is None:
            return False
        window_ms = topic.settings.dedup_window_ms
        return self.now_ns - seen.since_ns < window_ms * 1_000_000

    def publish_idempotently(self) -> None:
        """The next batch of a producer, one that it sent before, or one that comes too soon."""
        topic = self.some_topic()
        partition = self.rng.choice(topic.partitions).number
        producer_id = self.rng.randint(1, 3)
        stored = topic.producers.setdefault((producer_id, partition), [])
        following = stored[-1].sequence + len(stored[-1].rows) if stored else 0
        kind = self.rng.random()
        self.note(f"producer {producer_id} to {topic.name}/{partition}, {kind:.2f}")
        if stored and kind < 0.4:
            again = self.rng.choice(stored[-5:])
            placed = self._send(topic, partition, producer_id, again.sequence, again.rows)
            require(placed.duplicate, f"sequence {again.sequence} was stored twice")
            require(placed.first_offset == again.offset, "the duplicate is said to be elsewhere")
            self.counts["sent again"] += 1
            return
        rows = self.some_rows(topic)
        if kind < 0.45:
            self._must_refuse(
                OutOfOrderSequence, topic, partition, (producer_id, EPOCH, following + 1)
            )
            return
        if stored and kind < 0.5:
            self._must_refuse(ProducerFenced, topic, partition, (producer_id, EPOCH - 1, following))
            return
        self.expect(topic, self.with_ttl(topic, rows, self.wall_us), partition)
        self.expected[0].arrived = lambda _, offset: stored.append(Stored(following, rows, offset))
        placed = self._send(topic, partition, producer_id, following, rows)
        require(not placed.duplicate, f"sequence {following} of {producer_id} is new")
        self._check_placed(topic, self.with_ttl(topic, rows, self.wall_us), [placed])

    def _send(
        self, topic: TopicModel, partition: int, producer_id: int, sequence: int, rows: list[Row]
    ) -> Placed:
        producer = ProducerSequence(producer_id, EPOCH, sequence)
        (placed,) = self.broker.publish(
            topic.name, batch_of(rows), partition=partition, producer=producer
        )
        return placed

    def _must_refuse(
        self, error: type[Exception], topic: TopicModel, partition: int, of: tuple[int, int, int]
    ) -> None:
        try:
            self.broker.publish(
                topic.name,
                batch_of([Row(b"no")]),
                partition=partition,
                producer=ProducerSequence(*of),
            )
        except error:
            return
        require(False, f"a batch of producer {of} was taken; {error.__name__} was due")

    def _check_placed(self, topic: TopicModel, rows: list[Row], placed: list[Placed]) -> None:
        self.futures.update({(topic.name, each.partition): each.durable for each in placed})
        self.absorb()
        for each in placed:
            model = topic.partitions[each.partition]
            for place, row in enumerate(each.rows):
                found = model.rows.get(each.first_offset + place)
                require(found == rows[row], f"{rows[row]} is not where it was said to be: {each}")

    # Delays.

    def delay(self) -> None:
        topic = self.some_topic()
        rows = self.some_rows(topic)
        partition = self.some_partition(topic)
        due = [self.wall_us + self.some_wait_us() for _ in rows]
        if self.rng.random() < 0.5:
            due = due[:1] * len(rows)
        self.note(f"delay {len(rows)} in {topic.name}/{partition} to {due}")
        stored = [
            self.with_ttl(topic, [row], at_us)[0] for row, at_us in zip(rows, due, strict=True)
        ]
        self.delaying = topic, stored, due, partition
        ids, durable = self.broker.delay(
            topic.name, batch_of(rows), np.array(due, np.int64), partition=partition
        )
        self.delaying = None
        promise = self.promise(topic, durable)
        where = {row: each.partition for each in ids.placed for row in each.rows}
        for nth, (id_, row, at_us) in enumerate(zip(ids, stored, due, strict=True)):
            waits_in = where[nth]
            require(partition in (None, waits_in), f"{id_} is not for partition {partition}")
            topic.delayed[id_] = DelayedModel(id_, row, at_us, waits_in, promise)
        self.counts["delayed"] += len(rows)

    delaying: tuple[TopicModel, list[Row], list[int], int | None] | None = None
    """What a call that is under way adds to the delays."""
    cancelling: set[str] = frozenset()  # type: ignore[assignment]
    """The delayed messages that a call which is under way takes back."""

    def cancel(self) -> None:
        topic = self.some_topic()
        if not topic.delayed:
            return
        each = self.rng.choice(list(topic.delayed.values())[-20:])
        self.note(f"cancel {each.id} of {topic.name}, {each.state}")
        self.cancelling = {each.id}
        cancelled = self.broker.cancel(topic.name, each.id)
        self.cancelling = set()
        require(cancelled == (each.state == "pending"), f"cancel of {each} says {cancelled}")
        if cancelled:
            each.state, each.done = "cancelled", self.promise(topic, RETURNED)
            self.counts["cancelled"] += 1

    def cancel_what_is_not_there(self) -> None:
        topic = self.some_topic()
        gone = self.broker.cancel(topic.name, "0" * 26)
        require(not gone, "a message that was never sent was cancelled")

    def expect_due(self) -> None:
        """Delayed messages that housekeeping will move, or may move, now."""
        exact = self.now_ns - self.jumped_ns >= 1_000_000_000
        for topic in self.topics.values():
            for each in topic.pending():
                if each.deliver_at_us <= self.wall_us:
                    arrived = partial(self._moved, topic, each)
                    self.expected.append(
                        Expected(topic.name, each.row, each.partition, exact, arrived)
                    )

    def _moved(self, topic: TopicModel, each: DelayedModel, partition: int, offset: int) -> None:
        each.state, each.place, each.done = "moved", (partition, offset), self.promise(topic)
        self.counts["moved"] += 1

    def check_delayed(self, topic: TopicModel) -> None:
        found = self.delayed_of(topic)
        for each in topic.pending():
            require(each.id in found, f"{each} is not among the delayed ones")
            require(found[each.id] == (each.deliver_at_us, each.row), f"{each} has changed")
        extra = found.keys() - {each.id for each in topic.pending()}
        require(not extra, f"delayed, although cancelled, moved or never sent: {extra}")
        stats = self.broker.delay_stats(topic.name)
        due = min((each.deliver_at_us for each in topic.pending()), default=None)
        require(stats.pending == len(found), f"{stats.pending} pending, {len(found)} are")
        if due is not None:
            require(stats.next_due_us is not None and stats.next_due_us <= due, "due unnoticed")

    waits_in: dict[str, int] = {}  # noqa: RUF012 - filled anew by each look
    """The partition of each delayed message that was looked at last."""

    def delayed_of(self, topic: TopicModel) -> dict[str, tuple[int, Row]]:
        found: dict[str, tuple[int, Row]] = {}
        self.waits_in = {}
        after = 0
        while page := self.broker.delayed(topic.name, after, 7):
            for offset, each in page:
                row = row_of(each.message)
                found[each.id] = each.deliver_at_us, row
                self.waits_in[each.id] = place_of(offset)[0]
                after = offset + 1
        return found

    # Dead letters.

    def redrive_or_purge_letters(self) -> None:
        topic = self.some_topic()
        dead = self.topics.get(topic.name.dead_letters)
        if dead is None:
            return
        redrive = self.rng.random() < 0.7
        groups = [model.group(LETTERS_GROUP, self.now_ns) for model in dead.partitions]
        waiting = {
            (model.number, offset): row
            for model, group in zip(dead.partitions, groups, strict=True)
            for offset, row in model.rows.items()
            if group.fate(offset).place != "done"
        }
        box = self.broker.dead_letters(topic.name)
        listed = list(box.list(1 << 30))
        require([_place(letter) for letter in listed] == [*waiting], "other letters are there")
        for letter in listed:
            require(row_of(letter.message) == waiting[_place(letter)], "a letter changed")
        chosen = self._choose(listed)
        self.note(f"{'redrive' if redrive else 'purge'} {len(chosen)} letters of {topic.name}")
        if not chosen:
            return
        places = {_place(letter) for letter in chosen}
        to: RedriveTo = "group" if self.rng.random() < 0.7 else "topic"
        if redrive:
            for place in sorted(places):
                self._expect_again(topic, waiting[place], to)
        for model in dead.partitions:
            offsets = {offset for number, offset in places if number == model.number}
            if offsets:
                model.finish(LETTERS_GROUP, offsets, self.now_ns)
        act = partial(box.redrive, to=to) if redrive else box.purge
        if self.rng.random() < 0.5:
            named = [LetterPlace(partition=n, offset=offset) for n, offset in places]
            done = act(named, lambda letter: True)
        else:
            done = act(None, lambda letter: _place(letter) in places)
        require(done == len(chosen), f"{done} letters instead of {len(chosen)}")
        self.counts["redriven" if redrive else "letters purged"] += done

    def _expect_again(self, topic: TopicModel, letter: Row, to: RedriveTo) -> None:
        """The message of a letter comes once more, perhaps for the group alone that gave it up."""
        (row,) = self.with_ttl(topic, [_revived(letter)], self.wall_us)
        group = letter.story.group if to == "group" and letter.story is not None else None

        def arrived(number: int, offset: int) -> None:
            if group is not None:
                topic.partitions[number].reserve(offset, group)
                self.counts["redriven to a group"] += 1

        self.expected.append(Expected(topic.name, row, arrived=arrived))

    def _choose(self, letters: list[Letter]) -> list[Letter]:
        """No message twice: which copy is whose could not be told."""
        letters = [*{letter.value: letter for letter in letters}.values()]
        kind = self.rng.random()
        if kind < 0.4 and len(letters) < 20:
            return letters
        if kind < 0.7:
            reason = self.rng.choice(("rejected", "max_retries", "expired"))
            return [letter for letter in letters if letter.reason == reason][:20]
        return self.rng.sample(letters, min(len(letters), 2))

    # How messages come about.

    def some_topic(self) -> TopicModel:
        return self.rng.choice([t for t in self.topics.values() if not t.name.is_dead_letters])

    def some_partition(self, topic: TopicModel) -> int | None:
        if self.rng.random() < 0.7:
            return None
        return self.rng.choice(topic.partitions).number

    def some_wait_us(self) -> int:
        return self.rng.choice((-1000, 0, 1, 500_000, 3_000_000, 40_000_000, 3_700_000_000))

    def some_rows(self, topic: TopicModel) -> list[Row]:
        rng = self.rng
        keyed, prioritised, expiring, with_headers = (rng.random() < 0.4 for _ in range(4))
        keyed = keyed or topic.settings.ordered_by_key
        rows = []
        for _ in range(rng.choice((1, 1, 1, 2, 4, 9))):
            self.serial += 1
            rows.append(
                Row(
                    b"%d-%d:" % (self.seed, self.serial) + rng.randbytes(rng.choice((0, 5, 300))),
                    b"k%d" % rng.randint(0, 5) if keyed and rng.random() < 0.9 else None,
                    rng.randint(0, 4) if prioritised else 2,
                    self.wall_us + rng.choice((1, 3_000_000, 3_700_000_000))
                    if expiring and rng.random() < 0.5
                    else None,
                    (("n", b"%d" % self.serial),) if with_headers else (),
                )
            )
        return rows

    def with_ttl(self, topic: TopicModel, rows: list[Row], from_us: int) -> list[Row]:
        ttl_ms = topic.settings.ttl_ms
        if ttl_ms is None:
            return rows
        return [
            row._replace(expires_at_us=from_us + ttl_ms * 1000)
            if row.expires_at_us is None
            else row
            for row in rows
        ]


def _place(letter: Letter) -> tuple[int, int]:
    return letter.partition, letter.message.offset


def _revived(letter: Row) -> Row:
    headers = tuple(header for header in letter.headers if header[0] != DEDUP_HEADER)
    return letter._replace(headers=headers, story=None)


def batch_of(rows: list[Row]) -> Batch:
    return Batch.build(
        [row.value for row in rows],
        keys=[row.key for row in rows] if any(row.key for row in rows) else None,
        headers=[dict(row.headers) for row in rows] if any(row.headers for row in rows) else None,
        priority=[row.priority for row in rows],
        expires_at_us=[row.expires_at_us for row in rows]
        if any(row.expires_at_us for row in rows)
        else None,
    )
