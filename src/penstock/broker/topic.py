"""One topic: its partitions, where a message goes, delays, deduplication, dead letters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count, pairwise
from typing import TypeAlias

import mmh3
import numpy as np
import pyarrow as pa

from penstock.broker.journal import journal_config
from penstock.broker.partition import Partition
from penstock.broker.partition_order import PartitionOrder
from penstock.broker.topic_delays import TopicDelays
from penstock.broker.waiters import Waiters
from penstock.clock import Clock
from penstock.config import LogConfig
from penstock.delivery.dedup import DedupWindow
from penstock.delivery.offsets import Int64s, Offsets
from penstock.delivery.producers import Duplicate
from penstock.errors import InvalidInput, PartitionNotFound
from penstock.log.base import DONE, Appended
from penstock.model.names import TopicName, dedup_names
from penstock.model.published import CallId, Placed, ProducerSequence, place, place_of
from penstock.model.settings import TopicSettings
from penstock.record.batch import Batch
from penstock.record.schema import BITS
from penstock.record.writing import check_frame, check_messages

DEDUP_HEADER = "penstock-dedup-id"
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
        self.dedup: DedupWindow | None = None
        self.plan_retention: Callable[[], None] = lambda: None
        """Set by the broker: retention is to have a look within a minute or so."""
        self.retention_is_planned = False
        self._dedup_lock = threading.Lock()
        self._turn = count()
        self._clock = clock
        self._watch_settling()

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
        batch = self._with_ttl(batch, self._clock.wall_ns() // 1000)
        if producer is not None:
            return [self._append_idempotent(batch, partition, producer)]
        parts = self._split(batch, partition, call)
        if len(parts) > 1:
            self._check_whole(batch, parts)
        if call is None:
            placed = [
                _placed(number, rows, self.partitions[number].append(part))
                for number, rows, part in parts
            ]
        else:
            placed = [
                _placed(number, rows, self.partitions[number].append_once(part, call))
                for number, rows, part in parts
            ]
        self._news()
        return placed

    def redrive(self, batch: Batch, group: str | None) -> None:
        """Append messages that failed before, for one group alone or, with None, for all."""
        if group is None:
            self.publish(batch)
            return
        batch = self._with_ttl(batch, self._clock.wall_ns() // 1000)
        parts = self._split(batch, None)
        if len(parts) > 1:
            self._check_whole(batch, parts)
        for number, _, part in parts:
            self.partitions[number].append_redriven(part, group)
        self._news()

    def publish_once(
        self, batch: Batch, ids: Sequence[str | bytes | None], partition: int | None = None
    ) -> list[Placed]:
        """Append those messages whose id was not seen within the window."""
        names = dedup_names(ids, len(batch))
        batch = self._with_ttl(batch, self._clock.wall_ns() // 1000)
        batch = with_dedup_ids(batch, names)
        with self._dedup_lock:
            now_ns = self._clock.monotonic_ns()
            window = self._window()
            sifted = window.sift(names, now_ns)
            where: dict[int, tuple[int, int, int, Future[None]]] = {}
            if sifted.new:
                chosen = batch if len(sifted.new) == len(batch) else batch.take(sifted.new)
                parts = self._split(chosen, partition)
                if len(parts) > 1:
                    self._check_whole(chosen, parts)
                for number, rows, part in parts:
                    appended = self.partitions[number].append(part)
                    first = place(number, appended.first_offset)
                    places = range(first, first + len(part))
                    window.record([names[sifted.new[row]] for row in rows], places, now_ns)
                    for nth, row in enumerate(rows):
                        offset, ulid = appended.first_offset + nth, appended.ulid + nth
                        where[sifted.new[row]] = (number, offset, ulid, appended.durable)
        self._news()
        placed = [Placed(p, [row], o, ulid, d) for row, (p, o, ulid, d) in where.items()]
        for row, at in sifted.known.items():
            number, offset = place_of(at)
            self.partitions[number].confirm(offset)
            ulid = self._ulid_at(number, offset)
            placed.append(Placed(number, [row], offset, ulid, DONE, duplicate=True))
        for row, first in sifted.repeated.items():
            number, offset, ulid, durable = where[first]
            placed.append(Placed(number, [row], offset, ulid, durable, duplicate=True))
        return sorted(placed, key=lambda p: p.rows[0])

    def delay(
        self,
        batch: Batch,
        deliver_at_us: int | Int64s,
        partition: int | None,
        call: CallId | None = None,
    ) -> list[Placed]:
        """Keep messages until they fall due, each in its partition; where they wait. Their TTL
        counts from then on."""
        batch = self._with_ttl(batch, deliver_at_us)
        parts = self._split(batch, partition, call)
        if len(parts) > 1:
            self._check_whole(batch, parts)
        placed = []
        for number, rows, part in parts:
            at_us = deliver_at_us
            if len(parts) > 1 and not isinstance(at_us, int):
                at_us = np.asarray(at_us)[rows]
            placed.append(_placed(number, rows, self.delays.add(number, part, at_us, call)))
        return placed

    def move_due(self) -> int:
        """Bring what fell due to its partition."""
        return self.delays.move_due(self._news)

    def rebuild_dedup(self) -> None:
        """Remember again what was published within the window, after a restart."""
        window = self._window()
        wall_us = self._clock.wall_ns() // 1000
        now_ns = self._clock.monotonic_ns()
        since_us = wall_us - self.settings.dedup_window_ms * 1000
        for partition in self.partitions:
            offset = partition.log.find(since_us)
            while offset < partition.log.end:
                read = partition.log.read(offset)
                for batch in read:
                    if batch.columns & BITS["headers"]:
                        seen = [m for m in batch.messages() if m.headers.get(DEDUP_HEADER)]
                        places = [place(partition.number, m.offset) for m in seen]
                        window.record([m.headers[DEDUP_HEADER] for m in seen], places, now_ns)
                offset = read.next_offset

    def change(self, settings: TopicSettings, log_config: LogConfig) -> None:
        """Go on with other settings, from the next message on."""
        self.settings = settings
        self._watch_settling()
        logs = [*self.delays.logs(), *((p.log, p.journal.log) for p in self.partitions)]
        for pair in logs:
            for log, config in zip(pair, (log_config, journal_config(log_config)), strict=True):
                log.reconfigure(config)
                if config.fsync == "always":
                    log.sync()  # a commit that was planned for later is not waited for
        for partition in self.partitions:
            partition.set_policy(settings.policy())
        if self.dedup is not None:
            self.dedup.window_ns = settings.dedup_window_ms * 1_000_000

    def sync(self) -> None:
        """Messages, what became of them, and delays: all that is here lasts from now on."""
        for partition in self.partitions:
            partition.log.sync()
            partition.journal.log.sync()
        for pair in self.delays.logs():
            for log in pair:
                log.sync()

    def checkpoint(self) -> None:
        """Write down the state of every partition, so that the next start is quick."""
        self.delays.ordered()
        for partition in self.partitions:
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
        )
        partition.on_settled = self._settled if matters else None

    def _settled(self) -> None:
        settings = self.settings
        if settings.in_flight_max is not None or settings.ordered_by_key:
            self.waiters.notify()  # what waited for room, or for its key, may go now
        if settings.retention_mode == "consumed":
            self.tend()

    def _news(self) -> None:
        """There is more to read."""
        self.waiters.notify()
        if not self.retention_is_planned:
            self.tend()

    def _window(self) -> DedupWindow:
        if self.dedup is None:
            self.dedup = DedupWindow(self.settings.dedup_window_ms * 1_000_000)
        return self.dedup

    def _with_ttl(self, batch: Batch, from_us: int | Int64s) -> Batch:
        if self.settings.ttl_ms is None:
            return batch
        return batch.expiring(from_us + self.settings.ttl_ms * 1000)

    def _append_idempotent(
        self, batch: Batch, partition: int | None, producer: ProducerSequence
    ) -> Placed:
        if partition is None:
            raise InvalidInput(PARTITION_MISSING)
        target = self.partition(partition)
        outcome = target.append_idempotent(batch, producer.id, producer.epoch, producer.sequence)
        rows = range(len(batch))
        if isinstance(outcome, Duplicate):
            offset = -1 if outcome.offset is None else outcome.offset
            target.confirm(offset)
            ulid = self._ulid_at(partition, offset)
            return Placed(partition, rows, offset, ulid, DONE, duplicate=True)
        self._news()
        return _placed(partition, rows, outcome)

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

    def _split(
        self, batch: Batch, partition: int | None, call: CallId | None = None
    ) -> list[_Part]:
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


def with_dedup_ids(batch: Batch, names: Sequence[bytes | None]) -> Batch:
    """Messages as they are stored: with their deduplication ids."""
    return batch.with_headers([{DEDUP_HEADER: name} if name else {} for name in names])


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
