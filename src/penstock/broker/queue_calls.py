"""How messages are handed out to queue groups, and settled by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.broker.check_text import ERROR_LENGTH_MAX, check_text
from penstock.broker.dead_letter_store import NoDeadLetterTopic
from penstock.broker.partition import Partition
from penstock.broker.settlement import Settlement
from penstock.broker.topic_calls import TopicCalls
from penstock.config import DELAY_MS_MAX
from penstock.delivery.offsets import Offsets
from penstock.delivery.queue import Decision, GroupQueue
from penstock.errors import InvalidInput, storage_error
from penstock.model.deliveries import Delivered
from penstock.model.names import TopicName, group_name
from penstock.model.settings import check_visibility

RECEIVE_MAX = 100_000
CONSUMER_LENGTH_MAX = 256


class QueueCalls(TopicCalls):
    """Queue mode: any member of a group receives any message that is ready, under a lease."""

    def receive(
        self,
        name: TopicName,
        group: str,
        max_messages: int = 1,
        visibility_ns: int | None = None,
        consumer: str = "",
        partition: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Delivered]:
        """Messages that are ready now, each under a lease; an empty list if there are none.

        With `bytes_max` they end where they have about so many bytes; there is one at the least.
        """
        group_name(group)
        if type(max_messages) is not int or not 1 <= max_messages <= RECEIVE_MAX:
            raise InvalidInput(f"max_messages is {max_messages!r}; from 1 to {RECEIVE_MAX}")
        if consumer != "":
            check_text("consumer", consumer)
            if len(consumer) > CONSUMER_LENGTH_MAX:
                raise InvalidInput(
                    f"the name of a consumer has {len(consumer)} characters; "
                    f"{CONSUMER_LENGTH_MAX} at most"
                )
        if visibility_ns is not None:
            check_visibility(visibility_ns)
        topic = self._topics.get(name) or self.topic(name)
        if visibility_ns is None:
            visibility_ns = topic.settings.visibility_ms * 1_000_000
        delivered: list[Delivered] = []
        wanted = max_messages
        if partition is not None:
            in_turn: Sequence[Partition] = [topic.partition(partition)]
        else:
            in_turn = topic.partition_order.order(group, topic.partitions)
        for each in in_turn:
            try:
                got = each.receive(group, wanted, visibility_ns, consumer, bytes_max)
            except NoDeadLetterTopic:
                self.make_dead_letter_topic(name)
                got = each.receive(group, wanted, visibility_ns, consumer, bytes_max)
            if got is not None:
                delivered.append(got)
                wanted -= got.count
                if not wanted:
                    break
                if bytes_max is not None:
                    bytes_max -= sum([batch.payload_bytes for batch, _ in got.pieces])
                    if bytes_max <= 0:
                        break
        return delivered

    def receive_now(
        self,
        namespace: str,
        topic: str,
        group: str,
        max_messages: int,
        bytes_max: int | None = None,
    ) -> tuple[TopicName, list[Delivered]] | None:
        """`receive` as most callers ask for it, from a topic of one partition by a group that is
        there, with nothing on the way that this does not need; and the topic's name.

        None: there is more to look at; `receive` does that.
        """
        known = self._topics.get((namespace, topic))  # type: ignore[call-overload]
        if known is None or len(known.partitions) > 1 or self.tenants.limited:
            return None
        partition, settings = known.partitions[0], known.settings
        if group not in partition.queues:
            return None
        if type(max_messages) is not int or not 1 <= max_messages <= RECEIVE_MAX:
            return None
        visibility_ns = settings.visibility_ms * 1_000_000
        try:
            got = partition.receive(group, max_messages, visibility_ns, "", bytes_max)
        except NoDeadLetterTopic:
            return None
        except OSError as exc:
            raise storage_error(exc) from exc
        return known.name, [] if got is None else [got]

    def begin_at_end(self, name: TopicName, group: str) -> None:
        """A group that is not there yet begins after the newest message of each partition."""
        group_name(group)
        topic = self._topics.get(name) or self.topic(name)
        if not any(group in partition.queues for partition in topic.partitions):
            for partition in topic.partitions:
                partition.begin_at_end(group)

    def ack(
        self, name: TopicName, partition: int, group: str, nonce: int, offsets: Offsets | None
    ) -> Settlement:
        topic = self._topics.get(name) or self.topic(name, create=False)
        return topic.partition(partition).ack(group, nonce, offsets)

    def nack(
        self,
        name: TopicName,
        partition: int,
        group: str,
        nonce: int,
        offsets: Offsets | None,
        *,
        delay_ns: int | None = None,
        error: str = "",
        retries: int | None = None,
    ) -> Settlement:
        check_text("error", error)
        if retries is not None and (type(retries) is not int or retries < 0):
            raise InvalidInput(f"retries is {retries!r:.100}; it must be a whole number from 0 up")
        if delay_ns is not None and delay_ns > DELAY_MS_MAX * 1_000_000:
            raise InvalidInput("a message can be delayed by 90 days at the most")
        error = error[:ERROR_LENGTH_MAX]
        return self._settle(
            name,
            partition,
            group,
            lambda q, now: q.nack(
                now, nonce, offsets, delay_ns=delay_ns, error=error, retries=retries
            ),
        )

    def reject(
        self,
        name: TopicName,
        partition: int,
        group: str,
        nonce: int,
        offsets: Offsets | None,
        *,
        error: str = "",
    ) -> Settlement:
        check_text("reason", error)
        error = error[:ERROR_LENGTH_MAX]
        return self._settle(
            name,
            partition,
            group,
            lambda q, now: q.reject(now, nonce, offsets, error=error),
        )

    def extend(
        self,
        name: TopicName,
        partition: int,
        group: str,
        nonce: int,
        offsets: Offsets | None,
        *,
        visibility_ns: int,
    ) -> Settlement:
        check_visibility(visibility_ns)
        return self._settle(
            name,
            partition,
            group,
            lambda q, now: q.extend(now, nonce, offsets, visibility_ns=visibility_ns),
        )

    def seek(self, name: TopicName, group: str, offsets: dict[int, int]) -> None:
        """Let a group start again at an offset of each partition that is named."""
        topic = self.topic(name, create=False)
        for number, offset in offsets.items():
            topic.partition(number).seek(group_name(group), offset)
        topic.waiters.notify()

    def purge(self, name: TopicName, group: str | None = None) -> int:
        """Drop every message, or only skip them for one group; how many there were."""
        topic = self.topic(name, create=False)
        if group is not None:
            return sum(p.purge(group_name(group)) for p in topic.partitions)
        purged = 0
        for partition in topic.partitions:
            purged += partition.log.end - partition.log.start
            partition.traces.purged(Offsets.run(partition.log.start, partition.log.end))
            with topic.delays.at_rest(partition.number):
                partition.trim_to(partition.log.end)
        return purged + topic.delays.purge()

    def groups(self, name: TopicName) -> list[str]:
        """The groups that read this topic as a queue."""
        return self.topic(name, create=False).groups()

    def delete_group(self, name: TopicName, group: str) -> bool:
        partitions = self.topic(name, create=False).partitions
        deleted = sum(p.delete_group(group_name(group)) for p in partitions) > 0
        self.latencies.forget_group(name, group)
        return deleted

    # Inside.

    def _settle(
        self,
        name: TopicName,
        partition: int,
        group: str,
        decide: Callable[[GroupQueue, int], Decision],
    ) -> Settlement:
        target = self.topic(name, create=False).partition(partition)
        try:
            return target.settle(group, decide)
        except NoDeadLetterTopic:
            self.make_dead_letter_topic(name)
            return target.settle(group, decide)
