"""One topic: its partitions, where a message goes, delays, deduplication, dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from typing import TypeAlias

import mmh3
import msgspec
import numpy as np
import pyarrow as pa

from penstock.broker.journal import journal_config
from penstock.broker.partition import Partition
from penstock.broker.partition_order import PartitionOrder
from penstock.broker.topic_dedup import TopicDedup, waiting_at, with_dedup_ids
from penstock.broker.topic_delays import TopicDelays
from penstock.broker.waiters import Waiters
from penstock.clock import Clock
from penstock.config import LogConfig
from penstock.delivery.dedup import Original
from penstock.delivery.offsets import Int64s, Offsets
from penstock.delivery.producers import Duplicate
from penstock.errors import InvalidInput, PartitionNotFound
from penstock.log.base import DONE, Appended
from penstock.model.names import TopicName, dedup_names
from penstock.model.published import CallId, Placed, ProducerSequence, place_of
from penstock.model.settings import TopicSettings
from penstock.record.batch import Batch
from penstock.record.schema import BITS
from penstock.record.writing import check_frame, check_messages

PARTITION_MISSING = "an idempotent producer numbers messages by partition: name it"

SPREAD_ROWS = 1000
"""A batch without keys is spread over partitions in runs of no fewer messages."""

_Part: TypeAlias = tuple[int, range | list[int], Batch]
"""What goes to one partition: its number, and messages with their rows in the batch."""


class Topic:
    def __init__(
        self,
        name: TopicName,
        settings: TopicSettings,
        partitions: list[Partition],
        delays: TopicDelays,
        clock: Clock,
    ) -> None:
        self.name = name
        self.settings = settings
        self.partitions = partitions
        self.delays = delays
        self.waiters = Waiters()
        self.partition_order = PartitionOrder()
        self.dedup = TopicDedup(settings, clock)
        self.plan_retention: Callable[[], None] = lambda: None
        """Set by the broker: retention is to have a look within a minute or so."""
        self.retention_is_planned = False
        self._settled_callbacks: dict[object, Callable[[], None]] = {}
        self._turn = count()
        self._clock = clock
        self.takes_values = False
        """Whether a message that is a value and no more is appended as it is."""
        self._follow_settings()

    def partition(self, number: int) -> Partition:
        partitions = self.partitions
        if type(number) is int and 0 <= number < len(partitions):
            return partitions[number]
        raise PartitionNotFound(str(self.name), number, len(partitions))

    def groups(self) -> list[str]:
        """The groups that read this topic as a queue."""
        return sorted({group for p in self.partitions for group in [*p.queues] if group[0] != "~"})

    def publish(
        self,
        batch: Batch,
        *,
        partition: int | None = None,
        producer: ProducerSequence | None = None,
        call: CallId | None = None,
    ) -> list[Placed]:
        """Append messages to their partitions: the one named, that of their key, or the next."""
        if self.settings.ttl_ms is not None:
            batch = self.with_ttl(batch, self._clock.wall_ns() // 1000)
        if producer is not None:
            return [self._append_idempotent(batch, partition, producer)]
        parts = self.split(batch, partition, call)
        if len(parts) > 1:
            self._check_whole(batch, parts)
        placed = []
        for number, rows, part in parts:
            target = self.partitions[number]
            at = target.append(part) if call is None else target.append_once(part, call)
            placed.append(Placed(number, rows, at.first_offset, at.ulid, at.durable))
        self.news()
        return placed

    def publish_value(self, value: bytes) -> tuple[int, Appended]:
        """The same of one message that is a value and no more, where `takes_values`: the partition
        that it went to, and where it is there."""
        partitions = self.partitions
        number = next(self._turn) % len(partitions) if len(partitions) > 1 else 0
        appended = partitions[number].append_value(value)
        self.news()
        return number, appended

    def route(self, key: bytes | None, call: CallId) -> int:
        """The partition to which the message of a call goes."""
        if len(self.partitions) == 1:
            return 0
        return self.split(Batch.build([b""], keys=[key]), None, call)[0][0]

    def redrive(self, batch: Batch, group: str | None) -> list[Placed]:
        """Append messages that failed before, for one group alone or, with None, for all."""
        if group is None:
            return self.publish(batch)
        batch = self.with_ttl(batch, self._clock.wall_ns() // 1000)
        parts = self.split(batch, None)
        if len(parts) > 1:
            self._check_whole(batch, parts)
        placed = [
            _placed(number, rows, self.partitions[number].append_redriven(part, group))
            for number, rows, part in parts
        ]
        self.news()
        return placed

    def publish_once(
        self,
        batch: Batch,
        ids: Sequence[str | bytes | None],
        partition: int | None = None,
        window_ms: int = 0,
    ) -> list[Placed]:
        """Append those messages whose id is not remembered; `window_ms` says for how long these
        are to be, 0: for the topic's window."""
        names = dedup_names(ids, len(batch))
        batch = self.with_ttl(batch, self._clock.wall_ns() // 1000)

        def store(chosen: Batch, _: Sequence[int]) -> Iterator[Placed]:
            parts = self.split(chosen, partition)
            if len(parts) > 1:
                self._check_whole(chosen, parts)
            for number, rows, part in parts:
                yield _placed(number, rows, self.partitions[number].append(part))

        batch = with_dedup_ids(batch, names, window_ms)
        stored, known = self.dedup.store(batch, names, window_ms, store, delayed=False)
        self.news()
        if not known and len(stored) == 1:
            return stored
        stored += [self._original(row, original) for row, original in known.items()]
        return sorted(stored, key=_first_row)

    def delay(
        self,
        batch: Batch,
        deliver_at_us: int | Int64s,
        partition: int | None,
        call: CallId | None = None,
    ) -> list[Placed]:
        """Keep messages until they fall due, each in its partition; where they wait. Their TTL
        counts from then on."""
        return list(self._delay_parts(batch, deliver_at_us, partition, call))

    def delay_once(
        self,
        batch: Batch,
        deliver_at_us: int | Int64s,
        ids: Sequence[str | bytes | None],
        partition: int | None,
        window_ms: int = 0,
    ) -> list[Placed]:
        """The same of those messages whose id is not remembered."""
        names = dedup_names(ids, len(batch))

        def store(chosen: Batch, rows: Sequence[int]) -> Iterator[Placed]:
            at_us = deliver_at_us
            if len(rows) < len(batch) and not isinstance(at_us, int):
                at_us = np.asarray(at_us)[rows]
            return self._delay_parts(chosen, at_us, partition)

        batch = with_dedup_ids(batch, names, window_ms)
        stored, known = self.dedup.store(batch, names, window_ms, store, delayed=True)
        stored = [self._with_due(each) if each.duplicate else each for each in stored]
        stored += [self._original(row, original, delayed=True) for row, original in known.items()]
        return sorted(stored, key=_first_row)

    def cancel(self, id_: str) -> bool:
        """Forget a delayed message that is not due yet; False if it is gone already."""
        return self.dedup.cancel(lambda: self.delays.cancel(id_))

    def move_due(self) -> int:
        """Bring what fell due to its partition."""
        return self.delays.move_due(self.news)

    def rebuild_dedup(self, longest_window_ms: int) -> None:
        """Remember again what was published within the window, after a restart."""
        self.dedup.rebuild(self.partitions, self.delays, longest_window_ms)

    def change(self, settings: TopicSettings, log_config: LogConfig) -> None:
        """Go on with other settings, from the next message on."""
        self.settings = settings
        self._follow_settings()
        logs = [*self.delays.logs(), *((p.log, p.journal.log) for p in self.partitions)]
        for pair in logs:
            for log, config in zip(pair, (log_config, journal_config(log_config)), strict=True):
                log.reconfigure(config)
                if config.fsync == "always":
                    log.sync()  # a commit that was planned for later is not waited for
        for partition in self.partitions:
            partition.set_policy(settings.policy())
            partition.traces.sample(settings.trace_sample)
        self.dedup.change(settings)

    def sync(self) -> None:
        """Messages, what became of them, and delays: all that is here lasts from now on."""
        for partition in self.partitions:
            partition.log.sync()
            partition.journal.log.sync()
        for pair in self.delays.logs():
            for log in pair:
                log.sync()

    def checkpoint(self) -> None:
        """Write down the state of partitions, so that the next start is quick."""
        slow = [partition for partition in self.partitions if not partition.starts_quickly()]
        if slow:
            self.delays.ordered()
            for partition in slow:
                partition.checkpoint()

    def close(self) -> None:
        self.delays.close()
        for partition in self.partitions:
            partition.close()

    def tend(self) -> None:
        """There is more to keep, or less that has to be kept."""
        if not self.retention_is_planned:
            self.retention_is_planned = True
            self.plan_retention()

    def add(self, partition: Partition) -> None:
        """One more. Whoever sees it may use it."""
        self._watch(partition)
        self.partitions.append(partition)

    def on_settled(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when a group is done with messages or gives them back; returns how to stop
        that. One that gives up by itself, when a lease runs out, is not told of."""
        ticket = object()
        self._settled_callbacks = {**self._settled_callbacks, ticket: callback}
        self._watch_settling()

        def stop() -> None:
            self._settled_callbacks = {
                each: call for each, call in self._settled_callbacks.items() if each is not ticket
            }
            self._watch_settling()

        return stop

    def _follow_settings(self) -> None:
        settings = self.settings
        self.takes_values = settings.schema_check == "none" and settings.ttl_ms is None
        self._watch_settling()

    def _watch_settling(self) -> None:
        for partition in self.partitions:
            self._watch(partition)

    def _watch(self, partition: Partition) -> None:
        """Be told when a group is done with messages or gives them back, if that matters here."""
        settings = self.settings
        matters = (
            settings.in_flight_max is not None
            or settings.ordered_by_key
            or settings.retention_mode == "consumed"
            or bool(self._settled_callbacks)
        )
        partition.on_settled = self._settled if matters else None

    def _settled(self) -> None:
        settings = self.settings
        if settings.in_flight_max is not None or settings.ordered_by_key:
            self.waiters.notify()  # what waited for room, or for its key, may go now
        if settings.retention_mode == "consumed":
            self.tend()
        for callback in self._settled_callbacks.values():
            callback()

    def news(self) -> None:
        """There is more to read."""
        if self.waiters.callbacks:
            self.waiters.notify()
        if not self.retention_is_planned:
            self.tend()

    def with_ttl(self, batch: Batch, from_us: int | Int64s) -> Batch:
        if self.settings.ttl_ms is None:
            return batch
        return batch.expiring(from_us + self.settings.ttl_ms * 1000)

    def _append_idempotent(
        self, batch: Batch, partition: int | None, producer: ProducerSequence
    ) -> Placed:
        if partition is None:
            raise InvalidInput(PARTITION_MISSING)
        target = self.partition(partition)
        outcome = target.append_idempotent(
            batch, producer.id, producer.epoch, producer.sequence, wraps=producer.wraps
        )
        rows = range(len(batch))
        if isinstance(outcome, Duplicate):
            offset = -1 if outcome.offset is None else outcome.offset
            target.confirm(offset)
            ulid = self._ulid_at(partition, offset)
            return Placed(partition, rows, offset, ulid, DONE, duplicate=True)
        self.news()
        return _placed(partition, rows, outcome)

    def _delay_parts(
        self,
        batch: Batch,
        deliver_at_us: int | Int64s,
        partition: int | None,
        call: CallId | None = None,
    ) -> Iterator[Placed]:
        batch = self.with_ttl(batch, deliver_at_us)
        parts = self.split(batch, partition, call)
        if len(parts) > 1:
            self._check_whole(batch, parts)
        for number, rows, part in parts:
            at_us = deliver_at_us
            if len(parts) > 1 and not isinstance(at_us, int):
                at_us = np.asarray(at_us)[rows]
            yield _placed(number, rows, self.delays.add(number, part, at_us, call))

    def _original(self, row: int, original: Original, *, delayed: bool = False) -> Placed:
        """What is told about a message whose id another one had before. `delayed`: it would have
        waited, so that it is told when that one falls due."""
        waiting = waiting_at(original)
        if waiting is None:
            number, offset = place_of(original.place)
            self.partitions[number].confirm(offset)
            return Placed(number, [row], offset, original.ulid, DONE, duplicate=True)
        number, offset = waiting
        delays = self.delays.of(number)
        delays.confirm(offset)
        due_us = delays.due_us(offset) if delayed else 0
        return Placed(number, [row], -1, original.ulid, DONE, True, due_us)

    def _with_due(self, repeated: Placed) -> Placed:
        """Of a message that repeats one of the same call: when that falls due."""
        due_us = self.delays.of(repeated.partition).due_us(repeated.first_offset)
        return msgspec.structs.replace(repeated, deliver_at_us=due_us)

    def _ulid_at(self, number: int, offset: int) -> int:
        """The id of a message that was stored before; 0 if it is gone."""
        partition = self.partitions[number]
        if not partition.log.start <= offset < partition.log.end:
            return 0
        for batch in partition.source.fetch(Offsets.one(offset)):
            return int.from_bytes(batch.ids[0].as_py(), "big")
        return 0

    def _check_whole(self, batch: Batch, parts: Sequence[_Part]) -> None:
        """A batch for several partitions is taken or refused as one: before any of it is written,
        what would be refused of a part is looked for in all."""
        bytes_max = self.settings.message_bytes_max
        if batch.nbytes > bytes_max:
            check_messages(batch, bytes_max)
        for _, _, part in parts:
            check_frame(part)

    def split(self, batch: Batch, partition: int | None, call: CallId | None = None) -> list[_Part]:
        """The messages of each partition, with their rows in the batch. A call that is made again
        goes where it went before."""
        rows = range(len(batch))
        if partition is not None:
            return [(self.partition(partition).number, rows, batch)]
        partitions = len(self.partitions)
        if partitions == 1:
            return [(0, rows, batch)]
        turn = next(self._turn) if call is None else call.caller + call.number
        turn %= partitions
        if not batch.columns & BITS["key"]:
            return self._spread(batch, turn)
        target = np.fromiter(
            (
                turn if key is None else mmh3.hash(key, signed=False) % partitions
                for key in batch.keys.to_pylist()
            ),
            np.int64,
            len(batch),
        )
        parts: list[_Part] = []
        for number in np.unique(target).tolist():
            chosen = np.flatnonzero(target == number)
            if len(chosen) == len(batch):
                return [(number, rows, batch)]
            parts.append((number, chosen.tolist(), batch.take(chosen)))
        return parts

    def _spread(self, batch: Batch, turn: int) -> list[_Part]:
        """Messages without keys: all to the partition whose turn it is, or, if there are many, each
        run of them to the next one."""
        partitions, rows = len(self.partitions), len(batch)
        runs = min(partitions, rows // SPREAD_ROWS)
        if runs <= 1:
            return [(turn, range(rows), batch)]
        ends = [rows * nth // runs for nth in range(runs + 1)]
        return [
            ((turn + nth) % partitions, range(start, end), batch.slice(start, end - start))
            for nth, (start, end) in enumerate(pairwise(ends))
        ]


def check_partition(name: TopicName, number: object, partitions: int) -> None:
    if type(number) is not int or not 0 <= number < partitions:
        raise PartitionNotFound(str(name), number, partitions)


def moved_ids(partition: Partition) -> list[pa.Array]:
    """The ids of delayed messages that a partition got since its last checkpoint."""
    found: list[pa.Array] = []
    for offset in partition.moved_at:
        offset = max(offset, partition.log.start)  # of a frame that is half trimmed
        read = partition.log.read(offset, 1)
        found += [batch.ids for batch in read if batch.base_offset == offset]
    return found


def _placed(number: int, rows: range | list[int], appended: Appended) -> Placed:
    return Placed(number, rows, appended.first_offset, appended.ulid, appended.durable)


def _first_row(placed: Placed) -> int:
    return placed.rows[0]
