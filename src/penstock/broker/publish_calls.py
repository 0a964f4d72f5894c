"""How messages come into a broker: at once, or to be delivered later."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from penstock.broker.admission import Admitted, admit, check_schema
from penstock.broker.topic import PARTITION_MISSING, Topic, check_partition
from penstock.broker.topic_calls import TopicCalls
from penstock.broker.topic_dedup import with_dedup_ids
from penstock.config import DELAY_MS_MAX
from penstock.delivery.offsets import Int64s
from penstock.errors import InvalidInput, storage_error
from penstock.log.base import DONE, all_durable
from penstock.model.names import TopicName, dedup_names
from penstock.model.published import CallId, DelayedIds, Placed, ProducerSequence, Published
from penstock.record.batch import Batch
from penstock.record.schema import ulid_text
from penstock.record.writing import (
    NOBODY,
    FrameProducer,
    check_headers,
    check_messages,
    encode,
)


class PublishCalls(TopicCalls):
    """Publishing. Everything is checked before any of it is stored."""

    def publish(
        self,
        name: TopicName,
        batch: Batch,
        *,
        partition: int | None = None,
        producer: ProducerSequence | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        dedup_window_ms: int = 0,
        call: CallId | None = None,
    ) -> list[Placed]:
        """Store messages. When this returns the operating system has them; see the futures.

        A producer's number, a deduplication id or the id of the call is what they are known by if
        they are sent again. `dedup_window_ms`: for how long these ids are, 0: the topic's window.
        """
        if not len(batch):
            self.topic(name)
            return []
        check_headers(batch)
        topic = self._topics.get(name)
        if topic is None:
            self.check(name, batch, partition=partition, producer=producer, dedup_ids=dedup_ids)
            topic = self.topic(name)
        if topic.settings.schema_check == "none":
            return self._append(topic, batch, partition, producer, dedup_ids, dedup_window_ms, call)
        # The messages of an idempotent producer are numbered: all are taken, or none.
        whole = producer is not None
        admitted = self._admit(topic, batch, dedup_ids, dedup_window_ms, call, whole=whole)
        if not len(admitted.batch):
            return admitted.placed([])
        ids = None if dedup_ids is None else admitted.of_rows(dedup_ids)
        return admitted.placed(
            self._append(topic, admitted.batch, partition, producer, ids, dedup_window_ms, call)
        )

    def publish_value(
        self, namespace: str, topic: str, value: bytes
    ) -> tuple[Published, Future[None] | None] | None:
        """`publish` of one message that is a value and no more: what most callers send, with
        nothing on the way that it does not need. When it is durable, where that is not now.

        None: the topic is not open, or asks for more than an append; `publish` does that.
        """
        known = self._topics.get((namespace, topic))  # type: ignore[call-overload]
        if known is None or not known.takes_values or self.tenants.limited:
            return None
        try:
            number, at = known.publish_value(value)
        except OSError as exc:
            raise storage_error(exc) from exc
        published = Published(number, at.first_offset, ulid_text(at.ulid))
        return published, None if at.durable is DONE else at.durable

    def check(
        self,
        name: TopicName,
        batch: Batch,
        *,
        partition: int | None = None,
        producer: ProducerSequence | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        deliver_at_us: int | Int64s | None = None,
    ) -> None:
        """Raise what `publish`, or `delay`, would refuse the messages for; nothing is written.

        No topic is made for messages that it would not take.
        """
        is_there = name in self._catalog
        settings = self.settings(name) if is_there else self._settings_if_made(name)
        partitions = settings.partitions
        if partition is not None:
            check_partition(name, partition, partitions)
        elif producer is not None:
            raise InvalidInput(PARTITION_MISSING)
        if dedup_ids is not None:
            batch = with_dedup_ids(batch, dedup_names(dedup_ids, len(batch)))
        if deliver_at_us is not None:
            self._check_due(deliver_at_us)
        if not is_there:  # its only partition would get all of it
            by = NOBODY
            if producer is not None:
                by = FrameProducer(producer.id, producer.sequence, producer.epoch)
            encode(batch, 0, 0, by=by)
        if batch.payload_bytes > settings.message_bytes_max:  # to look at each takes a while
            check_messages(batch, settings.message_bytes_max)
        check_headers(batch)
        check_schema(self.schemas, name, settings, batch)

    def delay(
        self,
        name: TopicName,
        batch: Batch,
        deliver_at_us: int | Int64s,
        *,
        partition: int | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        dedup_window_ms: int = 0,
        call: CallId | None = None,
    ) -> tuple[DelayedIds, Future[None]]:
        """Store messages that are to be delivered later; their ids, to cancel them by, and when
        they are durable."""
        self._check_due(deliver_at_us)
        check_headers(batch)
        topic = self._topics.get(name)
        if topic is None:
            self.check(
                name,
                batch,
                partition=partition,
                dedup_ids=dedup_ids,
                deliver_at_us=deliver_at_us,
            )
            topic = self.topic(name)
        admitted = self._admit(topic, batch, dedup_ids, dedup_window_ms, call)
        if admitted.rows is not None:
            batch = admitted.batch
            dedup_ids = None if dedup_ids is None else admitted.of_rows(dedup_ids)
            if not isinstance(deliver_at_us, int):
                deliver_at_us = deliver_at_us[np.array(admitted.rows, np.int64)]
        if not len(batch):
            placed: list[Placed] = []
        elif dedup_ids is None:
            placed = topic.delay(batch, deliver_at_us, partition, call)
        else:
            self._catalog.note_dedup(name, dedup_window_ms)
            placed = topic.delay_once(batch, deliver_at_us, dedup_ids, partition, dedup_window_ms)
        placed = admitted.placed(placed)
        self._chores[name].plan_delays()
        return DelayedIds(placed), all_durable([each.durable for each in placed])

    def cancel(self, name: TopicName, id_: str) -> bool:
        return self.topic(name, create=False).cancel(id_)

    def publish_letters(
        self,
        name: TopicName,
        letters: Batch,
        dedup_ids: Sequence[str | bytes | None] | None,
        dedup_window_ms: int,
        call: CallId | None,
    ) -> list[Placed]:
        """Store messages that a topic did not take as its dead letters."""
        self.make_dead_letter_topic(name)
        dead = self.topic(self.dead_letters_of(name))
        return self._append(dead, letters, None, None, dedup_ids, dedup_window_ms, call)

    def note_dedup(self, name: TopicName, window_ms: int) -> None:
        """Ids are about to be sent to a topic."""
        self._catalog.note_dedup(name, window_ms)

    # Inside.

    def _append(
        self,
        topic: Topic,
        batch: Batch,
        partition: int | None,
        producer: ProducerSequence | None,
        dedup_ids: Sequence[str | bytes | None] | None,
        dedup_window_ms: int,
        call: CallId | None,
    ) -> list[Placed]:
        if dedup_ids is None:
            return topic.publish(batch, partition=partition, producer=producer, call=call)
        self._catalog.note_dedup(topic.name, dedup_window_ms)
        return topic.publish_once(batch, dedup_ids, partition, dedup_window_ms)

    def _admit(
        self,
        topic: Topic,
        batch: Batch,
        dedup_ids: Sequence[str | bytes | None] | None,
        dedup_window_ms: int,
        call: CallId | None,
        *,
        whole: bool = False,
    ) -> Admitted:
        if topic.settings.schema_check == "none":
            return Admitted(batch, None, ())
        return admit(
            self,
            topic,
            batch,
            dedup_ids=dedup_ids,
            dedup_window_ms=dedup_window_ms,
            call=call,
            whole=whole,
        )

    def _check_due(self, deliver_at_us: int | Int64s) -> None:
        latest = deliver_at_us
        if not isinstance(latest, int):
            latest = int(np.max(latest, initial=0))
        if latest > self.clock.wall_ns() // 1000 + DELAY_MS_MAX * 1000:
            raise InvalidInput("a message can be delayed by 90 days at the most")
